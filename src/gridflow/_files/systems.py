"""Finds the file system of a path with or without a scheme.

pyarrow's own file systems come first: local, HDFS, S3, Google Cloud Storage, Azure. fsspec provides
all others by scheme. HDFS uses libhdfs if available, otherwise the package hdfs-native.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyarrow import fs

from gridflow.errors import GridflowError, InvalidArgument, MissingDependency

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["Where", "absolute_path", "is_local", "scheme_of", "where"]

_URI: Final = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):(?://(?P<authority>[^/]*))?")
_LOCAL: Final = ("", "file", "local")
_S3: Final = ("s3", "s3a", "s3n")
_GCS: Final = ("gs", "gcs")
_AZURE: Final = ("abfs", "abfss")
_HADOOP: Final = ("hdfs", "viewfs")
#: The folder, inside a container, to which Spark unpacks the submitter's HADOOP_CONF_DIR.
_BROUGHT_CONF: Final = "__spark_conf__/__hadoop_conf__"
#: The port of HDFS if an address has none.
_HDFS_PORT: Final = 8020


class Where(NamedTuple):
    """A place in a file system.

    `path`: The path for the file system.
    `prefix`, `without`: The prefix of a path with its scheme, and what that leaves out of the file
        system's own path: a container of Azure has another position there.
    """

    system: Any
    path: str
    prefix: str = ""
    without: str = ""

    def complete(self, path: str) -> str:
        """Return a path of this file system with its scheme; a local path unchanged."""
        return self.prefix + path.removeprefix(self.without)

    def at(self, path: str) -> Where:
        """Return another place in the same file system."""
        return self._replace(path=path)


def scheme_of(path: str) -> str:
    """Return the scheme of a path in lower case; empty if it has none.

    Examples
    --------
    >>> scheme_of("hdfs://name:8020/x"), scheme_of("/x"), scheme_of("x:y")
    ('hdfs', '', '')
    """
    found = _URI.match(path)
    if found is None or (found["authority"] is None and found["scheme"].lower() not in _LOCAL):
        return ""
    return found["scheme"].lower()


def is_local(path: str) -> bool:
    """Return whether a path is in this machine's own file system."""
    return scheme_of(path) in _LOCAL


def absolute_path(path: str | os.PathLike[str], base: str) -> str:
    """Complete a path with a base folder of the default file system.

    `path` (str or path-like): A path with a scheme stays unchanged, except that one without an
        authority (``hdfs:///x``) gets that of ``base`` if the schemes are the same. A path that
        begins with ``/`` is in the file system of ``base``, any other in ``base`` itself.
    `base`: A folder, such as ``hdfs://name:8020/user/me`` or ``/home/me``.
    Returns: With a scheme, or a plain path for a local file.

    Examples
    --------
    >>> absolute_path("data/x", "hdfs://name:8020/user/me")
    'hdfs://name:8020/user/me/data/x'
    >>> absolute_path("/data/x", "hdfs://name:8020/user/me")
    'hdfs://name:8020/data/x'
    >>> absolute_path("s3://bucket/x", "hdfs://name:8020/user/me")
    's3://bucket/x'
    >>> absolute_path("file:///data/x", "hdfs://name:8020/user/me")
    '/data/x'
    """
    text = os.fspath(path)
    if not isinstance(text, str) or not text:
        raise InvalidArgument(f"a path must be a non-empty string; got {path!r}.")
    scheme, root = scheme_of(text), _root(base)
    if scheme in _LOCAL and scheme:
        return "/" + text[len(_matched(text)) :].lstrip("/")
    if scheme:
        lacks_authority = text.startswith(f"{_matched(text)}/") and _matched(text).endswith("://")
        if lacks_authority and scheme == scheme_of(base):
            return root + text[len(_matched(text)) :]
        return text
    if text.startswith("/"):
        return root + text
    folder = base if root else absolute_path(base, "/")
    return f"{folder.rstrip('/')}/{text}"


def _matched(text: str) -> str:
    found = _URI.match(text)
    return found[0] if found else ""


def _root(base: str) -> str:
    """Return the scheme and authority of a folder; empty for the local file system."""
    return "" if is_local(base) else _matched(base)


def where(path: str, filesystem: Any = None) -> Where:
    """Return the file system of an absolute path, and its path there.

    `path`: As `absolute_path` returns it.
    `filesystem`: A ``pyarrow.fs.FileSystem`` or an fsspec file system to use instead of the
        scheme's; or a mapping of options for it, such as ``{"endpoint_override": …}`` for S3. By
        default everything comes from the environment, as each file system documents
        (``AWS_ACCESS_KEY_ID``, ``GOOGLE_APPLICATION_CREDENTIALS``, ``HADOOP_CONF_DIR`` …).
    Raises `InvalidArgument`: The scheme or an option is unknown.
    Raises `MissingDependency`: A package is missing; the message names it.
    Raises `GridflowError`: The file system can't be reached, or refuses.
    """
    scheme = scheme_of(path)
    start = _matched(path) if scheme else ""
    authority, inside = start.partition("://")[2], path[len(start) :]
    if filesystem is None or isinstance(filesystem, dict):
        system = _system(scheme, authority, filesystem or {})
    else:
        system = _given(filesystem)
    if scheme in _LOCAL:
        return Where(system, inside or "/")
    if scheme in _HADOOP:
        return Where(system, inside or "/", start)
    if scheme in _AZURE:
        container = authority.partition("@")[0]
        return Where(system, f"{container}{inside}".rstrip("/"), start, container)
    return Where(system, f"{authority}{inside}".rstrip("/"), f"{scheme}://")


def _given(filesystem: Any) -> Any:
    if isinstance(filesystem, fs.FileSystem):
        return filesystem
    if hasattr(filesystem, "protocol") and hasattr(filesystem, "ls"):
        return fs.PyFileSystem(fs.FSSpecHandler(filesystem))
    raise InvalidArgument(
        "filesystem= must be a pyarrow.fs.FileSystem, an fsspec file system, or a dict of "
        f"options for the file system of the path's scheme; got {filesystem!r}."
    )


def _system(scheme: str, authority: str, options: Mapping[str, Any]) -> Any:
    given = tuple(sorted(options.items()))
    try:
        return _made(os.getpid(), scheme, authority, given)
    except TypeError:  # an unhashable option
        return _make(scheme, authority, given)


@functools.lru_cache(maxsize=64)
def _made(process: int, scheme: str, authority: str, options: tuple[tuple[str, Any], ...]) -> Any:
    """Return a file system, one for each process: connections don't survive a fork."""
    del process
    return _make(scheme, authority, options)


def _make(scheme: str, authority: str, options: tuple[tuple[str, Any], ...]) -> Any:
    given = dict(options)
    try:
        return _maker(scheme)(scheme, authority, given)
    except TypeError as error:
        raise InvalidArgument(
            f"filesystem={given!r} doesn't match {scheme or 'local'} paths: {error}"
        ) from error
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: hdfs-native
        if isinstance(error, GridflowError):
            raise
        lines = str(error).splitlines() or [repr(error)]
        raise GridflowError(
            f"can't open {scheme}://{authority}: {lines[0]}. Credentials and addresses come from "
            "the environment of the process, or from filesystem=."
        ) from error


def _maker(scheme: str) -> Callable[[str, str, dict[str, Any]], Any]:
    for schemes, make in (
        (_LOCAL, _local),
        (_S3, _s3),
        (_GCS, _gcs),
        (_AZURE, _azure),
        (_HADOOP, _hadoop),
    ):
        if scheme in schemes:
            return make
    return _by_fsspec


def _local(scheme: str, authority: str, options: Mapping[str, Any]) -> Any:
    del scheme, authority
    return fs.LocalFileSystem(**options)


def _s3(scheme: str, authority: str, options: dict[str, Any]) -> Any:
    del scheme, authority
    if not hasattr(fs, "S3FileSystem"):
        raise MissingDependency("this pyarrow was built without S3: pip install pyarrow.")
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if endpoint and "endpoint_override" not in options:
        protocol, separator, address = endpoint.rpartition("://")
        options["endpoint_override"] = address.rstrip("/")
        if separator:
            options.setdefault("scheme", protocol)
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if region and "region" not in options:
        options["region"] = region
    return fs.S3FileSystem(**options)


def _gcs(scheme: str, authority: str, options: dict[str, Any]) -> Any:
    del scheme, authority
    if not hasattr(fs, "GcsFileSystem"):
        raise MissingDependency(
            "this pyarrow was built without Google Cloud Storage: pip install pyarrow."
        )
    return fs.GcsFileSystem(**options)


def _azure(scheme: str, authority: str, options: dict[str, Any]) -> Any:
    if not hasattr(fs, "AzureFileSystem"):
        raise MissingDependency("this pyarrow was built without Azure: pip install pyarrow.")
    _, _, host = authority.rpartition("@")
    account = host.partition(".")[0] or os.environ.get("AZURE_STORAGE_ACCOUNT_NAME", "")
    if not account and "account_name" not in options:
        raise InvalidArgument(
            f"{scheme}://{authority} doesn't name a storage account. Use {scheme}://container@account"
            ".dfs.core.windows.net/path, or set AZURE_STORAGE_ACCOUNT_NAME."
        )
    key = os.environ.get("AZURE_STORAGE_ACCOUNT_KEY")
    known = {"account_name": account, **({"account_key": key} if key else {})}
    return fs.AzureFileSystem(**{**known, **options})


def _hadoop(scheme: str, authority: str, options: dict[str, Any]) -> Any:
    host, _, port = authority.partition(":")
    if importlib.util.find_spec("hdfs_native") is None:
        return _by_libhdfs(scheme, host, port, options)
    if os.environ.get("HADOOP_HOME") or os.environ.get("ARROW_LIBHDFS_DIR"):
        try:
            return _by_libhdfs(scheme, host, port, options)
        except MissingDependency:
            pass  # the other client needs nothing from Hadoop
    from hdfs_native import fsspec as native

    _learn_from_the_container()
    kind: Any = native.ViewfsFileSystem if scheme == "viewfs" else native.HdfsFileSystem
    if host:
        options["host"] = host
    if port:
        options["port"] = int(port)
    return fs.PyFileSystem(fs.FSSpecHandler(kind(**options)))


def _learn_from_the_container() -> None:
    """Configure HDFS for a process in a YARN container as for Spark's own processes there.

    Spark ships the submitter's Hadoop configuration to each container, but only Java uses it; and
    Spark acts as the submitter, while the process itself belongs to YARN's user.
    """
    if "CONTAINER_ID" not in os.environ or "SPARK_USER" not in os.environ:
        return
    os.environ.setdefault("HADOOP_USER_NAME", os.environ["SPARK_USER"])
    tokens = os.environ.get("HADOOP_TOKEN_FILE_LOCATION", "")
    brought = Path(tokens).parent / _BROUGHT_CONF  # YARN puts that file into the container's folder
    if tokens and brought.is_dir():
        os.environ.setdefault("HADOOP_CONF_DIR", str(brought))


def _by_libhdfs(scheme: str, host: str, port: str, options: dict[str, Any]) -> Any:
    try:
        address = f"viewfs://{host}" if scheme == "viewfs" else host or "default"
        return fs.HadoopFileSystem(address, int(port or (_HDFS_PORT if host else 0)), **options)
    except OSError as error:
        if "Unable to load" not in str(error):
            raise
        raise MissingDependency(
            f"{scheme}:// needs an HDFS client: pip install 'gridflow[hdfs]'; or Hadoop's own, "
            "with HADOOP_HOME, JAVA_HOME and CLASSPATH=$(hadoop classpath --glob) set where the "
            f"tasks run ({str(error).splitlines()[0]})."
        ) from error


def _by_fsspec(scheme: str, authority: str, options: dict[str, Any]) -> Any:
    del authority
    try:
        import fsspec
    except ImportError as error:
        raise MissingDependency(
            f"{scheme}:// isn't a pyarrow file system, and fsspec, which supports others, isn't "
            f"installed: pip install fsspec, and the package that it needs for that scheme."
        ) from error
    try:
        return fs.PyFileSystem(fs.FSSpecHandler(fsspec.filesystem(scheme, **options)))
    except ImportError as error:
        raise MissingDependency(f"{scheme}:// needs a package: {error}") from error
    except ValueError as error:
        raise InvalidArgument(
            f"unknown file system scheme {scheme!r}. Supported: file, hdfs, viewfs, s3, s3a, gs,"
            f" abfs, abfss, and those of fsspec ({error})."
        ) from error
