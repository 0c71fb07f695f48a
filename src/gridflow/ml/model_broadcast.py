"""Sends a model to Spark's Python workers, once to each host."""

from __future__ import annotations

import hashlib
import io
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gridflow._agent.folder import temporary_folder
from gridflow._launch.spark.session import classic_context

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Up to this size it is sent with the function itself: both ways below cost more.
_INLINE_BYTES: Final = 256 << 10


@dataclass(frozen=True)
class Parcel:
    """Bytes sent along with a Spark function.

    `key`: Identifies the content: equal for equal bytes.
    """

    key: str
    _inline: bytes | None = None
    _broadcast: Any = None
    _file: str | None = None

    def open(self) -> bytes:
        """Return the bytes, in a Spark Python worker or where the parcel was created."""
        if self._inline is not None:
            return self._inline
        if self._broadcast is not None:
            return bytes(self._broadcast.value)
        from pyspark import SparkFiles

        return Path(SparkFiles.get(self._file or "")).read_bytes()


def key_of(content: bytes) -> str:
    """Return what identifies a model's content."""
    return hashlib.sha256(content).hexdigest()


def send(content: bytes, spark: SparkSession) -> Parcel:
    """Return a parcel that the session's workers can open.

    A broadcast if there is a SparkContext, because its bytes are read only on demand and removed
    with the function. Over Spark Connect, an artifact of the session.
    """
    key = key_of(content)
    if len(content) <= _INLINE_BYTES:
        return Parcel(key, _inline=content)
    context = classic_context(spark)
    if context is not None:
        return Parcel(key, _broadcast=context.broadcast(content))
    name = f"gridflow-model-{key}"
    with temporary_folder("gridflow-artifact-") as folder:
        (folder / name).write_bytes(content)
        spark.addArtifact(str(folder / name), file=True)
    return Parcel(key, _file=name)


def zipped(folder: Path) -> bytes:
    """Return a folder as one file."""
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as archive:  # weights hardly compress
        for path in sorted(folder.rglob("*")):
            archive.write(path, path.relative_to(folder))
    return written.getvalue()


def unzip(content: bytes, folder: Path) -> None:
    """Extract the result of `zipped` to a folder."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        archive.extractall(folder)
