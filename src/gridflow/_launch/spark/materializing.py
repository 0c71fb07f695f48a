"""Rows of a DataFrame, written to files once and reused while they would be the same."""

from __future__ import annotations

import contextlib
import uuid
import warnings
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gridflow._files.listing import find
from gridflow._files.materialized import Materialized, read_note, write_note
from gridflow._files.systems import absolute_path, where
from gridflow._files.transfer import delete
from gridflow._launch.spark import errors
from gridflow._launch.spark.plans import identify
from gridflow._launch.spark.session import classic_context, default_folder
from gridflow._spec.option_checks import choose, whole_number
from gridflow.errors import DataError, GridflowError, InvalidArgument

if TYPE_CHECKING:
    import os

    from pyspark.sql import DataFrame

__all__ = ["materialize"]

_FORMATS: Final = ("parquet", "tfrecord")
_DEFAULT_FILES: Final = 8


def materialize(
    df: DataFrame,
    path: str | os.PathLike[str],
    *,
    format: str = "parquet",  # noqa: A002 (as in Spark)
    files: int | None = None,
    rows_per_file: int | None = None,
    version: str | None = None,
    filesystem: Any = None,
) -> Materialized:
    """Write the rows of a DataFrame to files, or reuse existing ones.

    For training from files: pass the result to `TrainingContext.parquet_dataset` or
    `tfrecord_dataset`, which read it without Spark as often as needed. Files of an earlier call
    are reused if the query and everything that it reads are the same: the plan in its canonical
    form, the files by path, size and modification time, a table's version if it has one.
    Otherwise the rows are written again, and the old files are deleted when the new ones are
    complete.

    Parameters
    ----------
    df : DataFrame
    path : str or path-like
        A separate folder on any file system that the executors and the workers can access; a path
        without a scheme is in Spark's default file system.
    format : {'parquet', 'tfrecord'}, default 'parquet'
        TFRecord needs gridflow's jar in the session.
    files : int, optional
        The number of files, with nearly equal numbers of rows. Default: Spark's number of cores.
    rows_per_file : int, optional
        Instead of `files`: the approximate maximum of rows per file. The rows are counted first.
    version : str, optional
        Identifies the rows if the plan isn't sufficient: needed for in-memory data, databases,
        random functions, functions in Python or Scala, streams of other programs. Rows are
        written again when it changes.
    filesystem : optional
        How the driver reaches `path`, see `TrainingContext.files`. Spark has its own settings.

    Returns
    -------
    Materialized
        With the number of rows, the schema, the files.

    Raises
    ------
    InvalidArgument
        What the rows depend on is unknown and there is no `version`, or an argument is wrong.
    DataError
        Spark could not write them.

    Examples
    --------
    >>> rows = gridflow.materialize(spark.table("flights"), "hdfs:///flights")  # doctest: +SKIP
    >>> distributor.run(train, rows)  # ctx.parquet_dataset(rows, …)  # doctest: +SKIP
    """
    if not hasattr(df, "sparkSession") or getattr(df, "isStreaming", False):
        what = "a streaming DataFrame" if hasattr(df, "sparkSession") else type(df).__name__
        raise InvalidArgument(f"materialize() needs a DataFrame that isn't streaming; got {what}.")
    choose("format", format, _FORMATS)
    if files is not None and rows_per_file is not None:
        raise InvalidArgument("give either files= or rows_per_file=, not both.")
    for name, number in (("files", files), ("rows_per_file", rows_per_file)):
        if number is not None:
            whole_number(name, number, 1)
    if version is not None and not (isinstance(version, str) and version):
        raise InvalidArgument(f"version= must be a non-empty string; got {version!r}.")
    root = absolute_path(path, default_folder(df.sparkSession) or str(Path.cwd()))
    identity = identify(df, version)
    place = where(root, filesystem)
    known = read_note(place)
    if known is not None and (known.key, known.format) == (identity.key, format):
        known = replace(known, root=root)
        if known.files == _files_of(known, filesystem):
            return known
    number = _number_of(df, files, rows_per_file)
    return _write(df, root, identity, known, format, number, filesystem)


def _number_of(df: DataFrame, files: int | None, rows_per_file: int | None) -> int:
    if rows_per_file is not None:
        return max(1, -(-df.count() // rows_per_file))
    if files is not None:
        return files
    context = classic_context(df.sparkSession)
    return _DEFAULT_FILES if context is None else max(1, int(context.defaultParallelism))


def _write(
    df: DataFrame,
    root: str,
    identity: Any,
    known: Materialized | None,
    form: str,
    files: int,
    filesystem: Any,
) -> Materialized:
    """Write the rows into a new folder, and then the note that refers to it."""
    from pyspark.sql import Observation, functions

    place = where(root, filesystem)
    place.system.create_dir(place.path, recursive=True)
    folder = f"rows-{identity.key[:12]}-{uuid.uuid4().hex[:8]}"
    inside = place.at(f"{place.path.rstrip('/')}/{folder}")
    seen = Observation()
    target = f"file://{root}" if not place.prefix else root
    try:
        counted = functions.count(functions.lit(1)).alias("rows")
        rows = df.observe(seen, counted).repartition(files)
        rows.write.format(form).save(f"{target.rstrip('/')}/{folder}")
        count = int(seen.get["rows"])
    except Exception as error:
        with contextlib.suppress(GridflowError):
            delete(inside)
        raise _refusal(str(error), root) from error
    made = Materialized(
        root,
        folder,
        form,
        count,
        df.schema.json(),
        identity.key,
        identity.source,
        datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S"),
        is_new=True,
    )
    listed = _files_of(made, filesystem)
    if form == "parquet":  # a stage that Spark retries counts twice
        count = sum(each["rows"] for each in listed)
    made = replace(made, rows=count, files=listed)
    write_note(place, made)
    if known is not None:
        try:
            delete(place.at(f"{place.path.rstrip('/')}/{known.folder}"))
        except GridflowError as error:
            with contextlib.suppress(Warning):  # if the user turns warnings into errors
                warnings.warn(f"can't delete old files: {error}", RuntimeWarning, stacklevel=3)
    return made


def _refusal(text: str, root: str) -> DataError | InvalidArgument:
    """Translate Spark's error about writing to a folder."""
    if "[DATA_SOURCE_NOT_FOUND]" in text:
        return InvalidArgument(
            "format='tfrecord' needs gridflow's jar in the session: spark = "
            "gridflow.tfrecord.configure(SparkSession.builder).getOrCreate()."
        )
    return DataError(f"can't write rows to {root}: {errors.words_of(text)}")


def _files_of(made: Materialized, filesystem: Any) -> tuple[dict[str, Any], ...]:
    """Return the files by name, with their rows if the format has them."""
    import pyarrow.parquet as pq

    listed = []
    try:
        found = find(str(made), "/", filesystem)
    except InvalidArgument:  # no files
        return ()
    for file in found:
        entry: dict[str, Any] = {"name": file.path.rpartition("/")[2], "bytes": file.size}
        if made.format == "parquet":
            with file.at.system.open_input_file(file.at.path) as opened:
                entry["rows"] = pq.read_metadata(opened).num_rows
        listed.append(entry)
    return tuple(listed)
