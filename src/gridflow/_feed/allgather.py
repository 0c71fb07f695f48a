"""The same rows on every rank, for what all ranks must learn identically before training.

A preprocessing layer that each rank adapts to its own rows would differ between ranks. So the ranks
exchange rows, in rounds of some megabytes, and write them to a separate spool.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.ipc

from gridflow._feed.store import SpoolReader, SpoolWriter
from gridflow.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

_ROUND_BYTES: Final = 8 << 20


def write(
    reader: SpoolReader,
    columns: Sequence[str],
    most: int | None,
    folder: Path,
    gather: Callable[[bytes], list[bytes]],
) -> SpoolReader:
    """Write the rows of all ranks, the same on each, and return a reader.

    `reader`: This rank's rows.
    `columns`: The columns to write.
    `most`: Number of rows that this rank contributes, its first ones; None for all.
    `folder`: Where to write.
    `gather`: Takes this rank's bytes and returns those of all ranks; every rank must call it
        equally often.
    Raises `DataError`: No rank has a row.
    """
    parts = _parts(reader, columns, most)
    with SpoolWriter(folder) as writer:
        while any(round_ := gather(next(parts, b""))):
            for content in filter(None, round_):
                for batch in pa.ipc.open_stream(content):
                    writer.write(reader.dataset, batch)
        counts = writer.close()
    if not counts:
        raise DataError(f"no rank has rows of dataset {reader.dataset!r} to adapt to.")
    return SpoolReader(folder, reader.dataset)


def _parts(reader: SpoolReader, columns: Sequence[str], most: int | None) -> Iterator[bytes]:
    left = reader.rows if most is None else most
    size = max(1, _ROUND_BYTES // reader.row_bytes(list(columns)))
    for batch in reader.batches():
        for start in range(0, min(batch.num_rows, left), size):
            part = batch.slice(start, min(size, left)).select(list(columns))
            left -= part.num_rows
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, part.schema) as stream:
                stream.write_batch(part)
            yield sink.getvalue().to_pybytes()


def with_tensorflow(strategy: Any, content: bytes) -> list[bytes]:
    """Return the bytes of all ranks, using a MultiWorkerMirroredStrategy's collectives."""
    import tensorflow as tf

    replicas = len(strategy.extended.worker_devices)
    # Collectives support numbers of four bytes; the first one is the length in bytes.
    padded = content + b"\0" * (-len(content) % 4)
    words = np.frombuffer(np.int32(len(content)).tobytes() + padded, np.int32)

    def of_replica(context: Any) -> Any:
        is_first = context.replica_id_in_sync_group % replicas == 0
        return tf.constant(words if is_first else words[:0])

    value = strategy.experimental_distribute_values_from_function(of_replica)
    return _parted(strategy.gather(value, axis=0).numpy())


def _parted(words: np.ndarray) -> list[bytes]:
    found, at = [], 0
    while at < len(words):
        length = int(words[at])
        last = at + 1 - (-length // 4)
        found.append(words[at + 1 : last].tobytes()[:length])
        at = last
    return found


def with_arrays(content: bytes, gather: Callable[[np.ndarray[Any, Any]], Any]) -> list[bytes]:
    """Return the bytes of all ranks.

    `content`: Of this rank.
    `gather`: Returns the arrays of all ranks, which have the same shape. Sent as arrays, nothing
        from a peer is unpickled.
    """
    lengths = np.asarray(gather(np.array([len(content)], np.int32))).reshape(-1)
    mine = np.frombuffer(content.ljust(int(lengths.max()), b"\0"), np.uint8)
    if not len(mine):
        return [b"" for _ in lengths]
    pairs = zip(gather(mine), lengths, strict=True)
    return [np.asarray(each)[: int(length)].tobytes() for each, length in pairs]
