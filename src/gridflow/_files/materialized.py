"""Rows that were written to files once: which ones, what of, and whether they still are those."""

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

#: Beside the files: what they are. Spark and gridflow read no files with such names.
NAME: Final = "_gridflow.json"
_READER: Final = {"parquet": "parquet", "tfrecord": "tfrecord"}


@dataclass(frozen=True)
class Materialized:
    """Rows that `gridflow.materialize` has written to files, or has found written.

    A path, too: ``ctx.parquet_dataset(rows, …)`` and ``ctx.tfrecord_dataset(rows, …)`` take it, as
    does ``run(data=rows)`` on Spark.

    Attributes
    ----------
    root : str
        Where it was asked for.
    folder : str
        That of the files, below it.
    format : {'parquet', 'tfrecord'}
    rows : int
    schema : str
        Spark's, as JSON.
    key : str
        Of the plan and the version of what it reads: other files where it differs.
    source : str
        What the plan reads, in words.
    made : str
        When, in UTC.
    files : tuple of dict
        ``name``, ``bytes`` and, of Parquet, ``rows`` of each.
    is_new : bool
        Whether this call has written them.
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
        """Return the folder: whoever takes paths takes this."""
        return f"{self.root.rstrip('/')}/{self.folder}"

    @property
    def version(self) -> str:
        """What tells these files from others that were written there, for people."""
        return f"{self.key[:12]} of {self.made}, {self.rows:,} rows of {self.source}"

    def read(self, spark: SparkSession) -> DataFrame:
        """Return the rows as a DataFrame, with the schema that they were written with."""
        from pyspark.sql.types import StructType

        schema = StructType.fromJson(json.loads(self.schema))
        reader = spark.read.format(_READER[self.format])
        return (reader if self.format == "parquet" else reader.schema(schema)).load(str(self))

    def check(self, filesystem: Any = None) -> None:
        """Refuse files that others have taken the place of.

        Raises
        ------
        DataError
            With both versions.
        """
        now = read_note(where(self.root, filesystem))
        if now is None or now.key != self.key or now.folder != self.folder:
            found = "nothing is noted there" if now is None else f"now there are {now.version}"
            raise DataError(
                f"the rows that were materialized at {self.root} have changed: asked for are "
                f"{self.version}; {found}. Call gridflow.materialize() again, and restart any "
                f"training that used the old ones."
            )

    def __str__(self) -> str:
        return self.__fspath__()


def read_note(root: Where) -> Materialized | None:
    """Return what was written to a folder last; None if nothing was.

    Raises
    ------
    GridflowError
        The note can't be read.
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
            f"{root.complete(path)} can't be read: {error}. If gridflow.materialize() didn't "
            f"write it, choose another path; otherwise delete it, and the rows are written again."
        ) from error


def write_note(root: Where, made: Materialized) -> None:
    """Note what a folder holds, at once for all who read it.

    Raises
    ------
    GridflowError
        The file system refuses.
    """
    fields = asdict(made)
    fields.pop("is_new")
    content = json.dumps(fields, indent=1).encode()
    folder = root.path.rstrip("/")
    is_store = root.system.type_name in OBJECT_STORES
    # A store shows an object once it is whole; elsewhere a new name does that.
    path = f"{folder}/{NAME}" if is_store else f"{folder}/_incoming-{uuid.uuid4().hex[:8]}"
    try:
        with root.system.open_output_stream(path) as file:
            file.write(content)
        if not is_store:
            if root.system.type_name != "local":  # HDFS renames to no name that is taken
                delete(root.at(f"{folder}/{NAME}"))
            root.system.move(path, f"{folder}/{NAME}")
    except OSError as error:
        raise GridflowError(f"{root.complete(path)} can't be written: {error}") from error
