"""Copies files and folders between this machine and other file systems atomically."""

from __future__ import annotations

import contextlib
import json
import posixpath
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyarrow import fs

from gridflow._files.systems import absolute_path, is_local, scheme_of, where
from gridflow.errors import GridflowError, InvalidArgument

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping

    from gridflow._files.systems import Where

__all__ = [
    "OBJECT_STORES",
    "check_folder",
    "delete",
    "destination",
    "fetch",
    "names_in",
    "put",
    "read",
    "refuse_what_is_there",
    "size_of",
    "write",
]

#: They store whole objects, and have no folders that could be renamed.
OBJECT_STORES: Final = frozenset({"s3", "gcs", "abfs"})


def destination(path: str | os.PathLike[str]) -> Path | Where:
    """Return a local path, or a place in another file system.

    Raises `InvalidArgument`, `MissingDependency`, `GridflowError`: As
        `gridflow._files.systems.where`.
    """
    text = str(path)
    if not is_local(text):
        return where(text)
    return Path(absolute_path(text, "/") if scheme_of(text) else text)


def put(source: Path, target: Where) -> None:
    """Copy a file or a folder to another file system, replacing what is there.

    It gets its name there once it is complete. Object stores have no folders: there, the files of a
    folder arrive one by one.

    Raises `GridflowError`: The file system refuses, or can't be reached.
    """
    folder, name = posixpath.split(target.path.rstrip("/"))
    with _named(target, "can't be written"):
        if target.system.type_name in OBJECT_STORES:
            _copy(source, target.system, target.path)
            return
        target.system.create_dir(folder, recursive=True)
        incoming = f"{folder}/.incoming-{uuid.uuid4().hex[:8]}-{name}"
        try:
            _copy(source, target.system, incoming)
            _check_whole(incoming, target.system, _size(source))
            _replace(target, incoming)
        except BaseException:
            with contextlib.suppress(Exception):
                delete(target.at(incoming))
            raise


def _replace(target: Where, incoming: str) -> None:
    """Rename the copy over the target, which is restored on an error."""
    system = target.system
    if system.get_file_info(target.path).type == fs.FileType.NotFound:
        system.move(incoming, target.path)
        return
    old = f"{incoming}.old"
    system.move(target.path, old)
    try:
        system.move(incoming, target.path)
    except BaseException:
        system.move(old, target.path)
        raise
    with contextlib.suppress(GridflowError):  # the replacement is done
        delete(target.at(old))


def fetch(source: Where, target: Path) -> None:
    """Copy a file to this machine; it gets its name once it is complete.

    Raises `GridflowError`: It doesn't exist, or can't be read completely.
    """
    here = fs.LocalFileSystem()
    partial = target.with_name(target.name + ".partial")
    try:
        with _named(source, "can't be read"):
            size = source.system.get_file_info(source.path).size
            fs.copy_files(
                source.path,
                str(partial),
                source_filesystem=source.system,
                destination_filesystem=here,
            )
            _check_whole(str(partial), here, size)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def read(source: Where) -> bytes:
    """Return the content of a small file.

    Raises `GridflowError`: It doesn't exist, or can't be read.
    """
    with _named(source, "can't be read"), source.system.open_input_stream(source.path) as file:
        return bytes(file.read())


def write(target: Where, content: Mapping[str, Any], *, in_place: bool = False) -> None:
    """Write a small JSON file.

    `in_place`: Whether to overwrite in place: the name then always exists, but a reader may find
        incomplete content. Otherwise the name must be new, and appears once the file is complete.
    Raises `GridflowError`: The file system refuses, or can't be reached.
    """
    folder, name = posixpath.split(target.path)
    path = target.path
    with _named(target, "can't be written"):
        if target.system.type_name not in OBJECT_STORES:
            target.system.create_dir(folder, recursive=True)
            if not in_place:
                path = f"{folder}/.incoming-{uuid.uuid4().hex[:8]}-{name}"
        with target.system.open_output_stream(path) as file:
            file.write(json.dumps(content).encode())
        if path != target.path:
            target.system.move(path, target.path)


def size_of(target: Where) -> int:
    """Return the size of a file in bytes.

    Raises `GridflowError`: It doesn't exist, or can't be looked at.
    """
    with _named(target, "can't be read"):
        found = target.system.get_file_info(target.path)
        if found.type != fs.FileType.File:
            raise FileNotFoundError("no such file")
        return int(found.size)


def names_in(folder: Where) -> list[str]:
    """Return the names of the files in a folder; empty if the folder doesn't exist.

    Raises `GridflowError`: It can't be listed.
    """
    with _named(folder, "can't be listed"):
        if folder.system.type_name.startswith("py::fsspec"):
            folder.system.handler.fs.invalidate_cache()  # some keep a listing for minutes
        chosen = fs.FileSelector(folder.path, allow_not_found=True)
        found = folder.system.get_file_info(chosen)
        return sorted(each.base_name for each in found if each.type == fs.FileType.File)


def check_folder(folder: Where) -> None:
    """Refuse a missing folder; object stores have no folders.

    Raises `GridflowError`: With the folder.
    """
    if folder.system.type_name in OBJECT_STORES:
        return
    with _named(folder, "can't be listed"):
        if folder.system.get_file_info(folder.path).type != fs.FileType.Directory:
            raise FileNotFoundError("no such folder")


def delete(target: Where) -> None:
    """Delete a file, or a folder with everything in it, if it exists.

    Raises `GridflowError`: The file system refuses, or can't be reached.
    """
    with _named(target, "can't be deleted"):
        match target.system.get_file_info(target.path).type:
            case fs.FileType.File:
                target.system.delete_file(target.path)
            case fs.FileType.Directory:
                target.system.delete_dir(target.path)


def refuse_what_is_there(target: Where) -> None:
    """Refuse a place that already exists.

    Raises `InvalidArgument`: With the place.
    """
    with _named(target, "can't be reached"):
        found = target.system.get_file_info(target.path)
    if found.type != fs.FileType.NotFound:
        place = target.complete(target.path)
        raise InvalidArgument(f"{place} already exists. Delete it, or choose another path.")


def _size(source: Path) -> int:
    files = source.rglob("*") if source.is_dir() else [source]
    return sum(path.stat().st_size for path in files if path.is_file())


def _check_whole(path: str, system: Any, size: int | None) -> None:
    """Refuse a copy that is shorter than its source: streams may end early without an error."""
    found = system.get_file_info(path)
    if found.type == fs.FileType.Directory:
        files = system.get_file_info(fs.FileSelector(path, recursive=True))
    else:
        files = [found]
    sizes = [each.size for each in files if each.type == fs.FileType.File]
    copied = None if None in sizes else sum(sizes)
    if None not in {copied, size} and copied != size:
        raise OSError(f"only {copied:,} of {size:,} bytes were copied")


def _copy(source: Path, system: Any, path: str) -> None:
    if source.is_dir():
        system.create_dir(path, recursive=True)
    fs.copy_files(
        str(source),
        path,
        source_filesystem=fs.LocalFileSystem(),
        destination_filesystem=system,
    )


@contextlib.contextmanager
def _named(place: Where, what: str) -> Iterator[None]:
    """Add the place to errors of a file system."""
    try:
        yield
    except GridflowError:
        raise
    except Exception as error:  # fsspec's file systems raise all kinds of errors
        lines = str(error).splitlines() or [repr(error)]
        raise GridflowError(f"{place.complete(place.path)} {what}: {lines[0]}") from error
