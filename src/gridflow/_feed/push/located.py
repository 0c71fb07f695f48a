"""Rows sent by their position in a file, if sender and agent see the same file.

A feeder's task gets its rows in files (`gridflow._feed.ingest.jvm_files`). An agent on the same
host maps them: nothing is encrypted or copied through a socket. An agent elsewhere doesn't find the
file, says so, and gets the rows themselves.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from gridflow._feed.store.segment import Located, Segment
from gridflow._files.local import open_file
from gridflow._wire.headers import RowsInFile
from gridflow._wire.messages import parse
from gridflow._wire.receiver import A_FEEDER, place_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["in_file", "taken"]

#: Only such paths are opened: they end with a token that can't be guessed.
_NAME: Final = re.compile(r"/gridflow-rows-[0-9a-f]{32}-\d+/\d{8}-\d+\.arrow\Z")


def in_file(segment: Segment, facts: Mapping[bytes, str] | None) -> Iterator[Located]:
    """Yield the rows of a file, batch by batch, with the sender's facts in their schemas."""
    found = segment.path.stat()
    for number, batch in enumerate(segment.batches):
        told = batch if facts is None else batch.replace_schema_metadata(facts)
        yield Located(told, str(segment.path), (found.st_ino, found.st_size), number)


def taken(told: Any, batch: pa.RecordBatch) -> tuple[int, pa.RecordBatch | Located | None]:
    """Return the position of the first row in its partition, and the rows if they are here.

    `told`: The position, or the result of `Located.told`.
    `batch`: The rows; or none of them, with their schema.
    """
    if not isinstance(told, dict):
        return place_of(told), batch
    place = parse(A_FEEDER, "the place of rows", told, RowsInFile)
    path = Path(place.path)
    if not _NAME.search(place.path) or ".." in path.parts or "\0" in place.path:
        return place.first, None
    try:
        with open_file(path) as file:
            found = os.fstat(file.fileno())
            if found.st_uid != os.getuid() or (found.st_ino, found.st_size) != place.node:
                return place.first, None
            # The file that was checked, whatever lies at the path by now.
            checked = Segment(Path(f"/proc/self/fd/{file.fileno()}"))
        rows = checked.batches[place.number].slice(place.start, place.rows)
    except (OSError, IndexError, pa.ArrowInvalid):
        return place.first, None
    if rows.num_rows != place.rows:
        return place.first, None
    rows = rows.replace_schema_metadata(batch.schema.metadata)
    node = found.st_ino, found.st_size
    return place.first, Located(rows, place.path, node, place.number, place.start)
