"""Files on any file system that Spark supports, through Hadoop's API in the JVM.

Spark Connect has no access to that; what its client offers instead is limited, see each function.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from gridflow._launch.spark.session import classic_context
from gridflow._spec import jvm
from gridflow.errors import GridflowError, InvalidArgument

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


def exists(spark: SparkSession, path: str) -> bool:
    """Return whether a file or folder exists; over Spark Connect, whether it has files."""
    if classic_context(spark) is not None:
        system, place = _system(spark, path)
        return bool(system.exists(place))
    from pyspark.errors import AnalysisException

    try:
        frame = spark.read.format("binaryFile").option("recursiveFileLookup", "true").load(path)
        return not frame.select("path").isEmpty()
    except AnalysisException:
        return False


def check_writable(spark: SparkSession, path: str) -> None:
    """Refuse a path that files can't be copied to.

    Raises `InvalidArgument`: Over Spark Connect, whose client refuses paths with a scheme.
    """
    if classic_context(spark) is None and urlsplit(path).scheme:
        raise InvalidArgument(
            f"Spark Connect can write files only to the server's own file system, at a path "
            f"without a scheme; got {path!r}. Remove the scheme (file:, s3a: …), or save it from "
            "a classic session."
        )


def delete(spark: SparkSession, path: str) -> None:
    """Delete a file, or a folder with everything in it.

    Raises `InvalidArgument`: Over Spark Connect, which can't delete files.
    """
    if classic_context(spark) is None:
        raise InvalidArgument(
            f"Spark Connect can't delete {path}. Save to another path, or delete it by other means."
        )
    system, place = _system(spark, path)
    system.delete(place, True)


def replace(spark: SparkSession, source: str, path: str) -> None:
    """Rename a file or folder over an existing one, which is restored on an error.

    Raises `GridflowError`: The file system refuses to rename it.
    """
    system, place = _system(spark, path)
    java = _jvm(spark).org.apache.hadoop.fs
    new, old = java.Path(source), java.Path(f"{source}.old")
    is_there = system.exists(place)
    if is_there and not system.rename(place, old):
        raise GridflowError(f"can't replace {path}: its file system failed to rename it.")
    is_done = False
    try:
        is_done = system.rename(new, place)
    finally:
        if is_there and not is_done:
            system.rename(old, place)
    if not is_done:
        raise GridflowError(f"can't write {path}: its file system failed to rename {source}.")
    if is_there:
        with contextlib.suppress(Exception):  # the replacement is done
            system.delete(old, True)


def can_rename(spark: SparkSession) -> bool:
    """Return whether `replace` and `delete` work: not over Spark Connect."""
    return classic_context(spark) is not None


def upload(spark: SparkSession, local: Path, path: str) -> None:
    """Copy a file from this machine to a path that `check_writable` has accepted.

    Raises `GridflowError`: Over Spark Connect: the server refuses it.
    """
    if classic_context(spark) is not None:
        system, place = _system(spark, path)
        java = _jvm(spark).org.apache.hadoop.fs
        system.copyFromLocalFile(False, True, java.Path(local.as_uri()), place)
        return
    from pyspark.errors import PySparkException

    try:
        spark.copyFromLocalToFs(str(local), path)
    except PySparkException as error:
        raise GridflowError(
            f"Spark Connect can't write {path}: {error} If the server's file system is local, "
            "start it with spark.sql.artifact.copyFromLocalToFs.allowDestLocal=true."
        ) from error


def download(spark: SparkSession, path: str, local: Path) -> None:
    """Copy a file to this machine; over Spark Connect, at most 2 GiB."""
    if classic_context(spark) is not None:
        system, place = _system(spark, path)
        java = _jvm(spark).org.apache.hadoop.fs
        # The last one: without the file of checksums that Hadoop would put beside it.
        system.copyToLocalFile(False, place, java.Path(local.as_uri()), True)
        return
    rows = spark.read.format("binaryFile").load(path).select("content").take(1)
    if not rows:
        raise GridflowError(f"no such file: {path}.")
    local.write_bytes(rows[0][0])


def _system(spark: SparkSession, path: str) -> tuple[Any, Any]:
    """Return Hadoop's file system of a path, and its Hadoop path."""
    place = _jvm(spark).org.apache.hadoop.fs.Path(path)
    state = jvm.java_session(spark).sessionState()
    return place.getFileSystem(state.newHadoopConf()), place


def _jvm(spark: SparkSession) -> Any:
    return jvm.classes(classic_context(spark))
