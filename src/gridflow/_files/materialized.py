"""Rows that were written to files: which rows, and whether the files still have them."""

from __future__ import annotations

import json
import uuid
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pyarrow import fs

from gridflow._files.systems import where
from gridflow._files.transfer import OBJECT_STORES, delete
from gridflow.errors import DataError, GridflowError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from gridflow._files.systems import Where

__all__ = ["NAME", "Materialized", "read_note", "write_note"]

#: The note beside the files. Spark and gridflow ignore files with such names.
NAME: Final = "_gridflow.json"
_READER: Final = {"parquet": "parquet", "tfrecord": "tfrecord"}


@dataclass(frozen=True)
class Materialized:
    """Rows that `gridflow.materialize` has written to files, or has reused.

    It can be used as a path: pass it to ``ctx.parquet_dataset(rows, …)``,
    ``ctx.tfrecord_dataset(rows, …)``, or on Spark to ``run(data=rows)``.

    Attributes
    ----------
    root : str
        The requested folder.
    folder : str
        The folder of the files, below `root`.
    format : {'parquet', 'tfrecord'}
    rows : int
    schema : str
        Spark's schema, as JSON.
    key : str
        Identifies the plan and the versions of its sources. Other files have another key.
    source : str
        What the plan reads, in words.
    made : str
        When they were written, in UTC.
    files : tuple of dict
        ``name`` and ``bytes`` of each file; for Parquet also ``rows``.
    is_new : bool
        Whether this call wrote them.
    """

    root: str
    folder: str
    format: str
    rows: int
    schema: str
    key: str
    source: str
    made: str
    files: tuple[dict[str, Any], ...] = ()
    is_new: bool = field(default=False, compare=False)

    def __fspath__(self) -> str:
        """Return the folder, so that this object can be used as a path."""
        return f"{self.root.rstrip('/')}/{self.folder}"

    @property
    def version(self) -> str:
        """A description that distinguishes these files from others written there."""
        return f"{self.key[:12]} of {self.made}, {self.rows:,} rows of {self.source}"

    def read(self, spark: SparkSession) -> DataFrame:
        """Return the rows as a DataFrame with their original schema."""
        from pyspark.sql.types import StructType

        schema = StructType.fromJson(json.loads(self.schema))
        reader = spark.read.format(_READER[self.format])
        return (reader if self.format == "parquet" else reader.schema(schema)).load(str(self))

    def check(self, filesystem: Any = None) -> None:
        """Refuse files that were replaced by others.

        Raises
        ------
        DataError
            With both versions.
        """
        now = read_note(where(self.root, filesystem))
        if now is None or now.key != self.key or now.folder != self.folder:
            found = "found none" if now is None else f"found {now.version}"
            raise DataError(
                f"the rows materialized at {self.root} have changed: expected "
                f"{self.version}; {found}. Call gridflow.materialize() again, and restart any "
                f"training that used the old rows."
            )

    def __str__(self) -> str:
        return self.__fspath__()


def read_note(root: Where) -> Materialized | None:
    """Return the note of what was last written to a folder, or None.

    Raises `GridflowError`: The note can't be read.
    """
    path = f"{root.path.rstrip('/')}/{NAME}"
    try:
        if root.system.get_file_info(path).type != fs.FileType.File:
            return None
        with root.system.open_input_stream(path) as file:
            fields = json.loads(file.read())
        return Materialized(**{**fields, "files": tuple(fields["files"])})
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise GridflowError(
            f"can't read {root.complete(path)}: {error}. If gridflow.materialize() didn't write "
            f"it, use another path; otherwise delete it, and the rows are written again."
        ) from error


def write_note(root: Where, made: Materialized) -> None:
    """Write the note of a folder atomically.

    Raises `GridflowError`: The file system refuses.
    """
    fields = asdict(made)
    fields.pop("is_new")
    content = json.dumps(fields, indent=1).encode()
    folder = root.path.rstrip("/")
    is_store = root.system.type_name in OBJECT_STORES
    # A store shows only complete objects; elsewhere, renaming is atomic.
    path = f"{folder}/{NAME}" if is_store else f"{folder}/_incoming-{uuid.uuid4().hex[:8]}"
    try:
        with root.system.open_output_stream(path) as file:
            file.write(content)
        if not is_store:
            if root.system.type_name != "local":  # HDFS can't rename over an existing file
                delete(root.at(f"{folder}/{NAME}"))
            root.system.move(path, f"{folder}/{NAME}")
    except OSError as error:
        raise GridflowError(f"can't write {root.complete(path)}: {error}") from error
