"""The same rows on every rank: for what all ranks have to learn alike before they train.

A preprocessing layer that each rank adapted to its own rows would be another layer on each. So the
ranks exchange the rows, in rounds of some megabytes, and write them to a spool of their own.
"""

from __future__ import annotations

import itertools
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
    """Write rows of all ranks, the same on each, and return what reads them.

    Parameters
    ----------
    reader : SpoolReader
        This rank's rows.
    columns : sequence of str
        Those that are wanted.
    most : int or None
        Rows that this rank gives, its first ones; None for all.
    folder : Path
        Where to write.
    gather : callable
        Given this rank's bytes, returns those of all ranks; every rank calls it as often.

    Raises
    ------
    DataError
        When no rank has a row.
    """
    parts = _parts(reader, columns, most)
    with SpoolWriter(folder) as writer:
        while any(round_ := gather(next(parts, b""))):
            for content in filter(None, round_):
                for batch in pa.ipc.open_stream(content):
                    writer.write(reader.dataset, batch)
        counts = writer.close()
    if not counts:
        raise DataError(f"no rank has a row of dataset {reader.dataset!r} to adapt to.")
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
    """Return the bytes of all ranks, by the collectives of a MultiWorkerMirroredStrategy."""
    import tensorflow as tf

    replicas = len(strategy.extended.worker_devices)
    # Collectives know numbers of four bytes; the first one is the length in bytes.
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


def with_jax(content: bytes) -> list[bytes]:
    """Return the bytes of all ranks of a group of JAX processes."""
    from jax.experimental import multihost_utils

    lengths = multihost_utils.process_allgather(np.array([len(content)], np.int32)).reshape(-1)
    mine = np.frombuffer(content.ljust(int(lengths.max()), b"\0"), np.uint8)
    if not len(mine):
        return [b"" for _ in lengths]
    everywhere = multihost_utils.process_allgather(mine)
    pairs = zip(everywhere, lengths, strict=True)
    return [np.asarray(each)[: int(length)].tobytes() for each, length in pairs]


def with_torch(content: bytes) -> list[bytes]:
    """Return the bytes of all ranks of a group of torch processes."""
    from torch import distributed

    found: list[Any] = list(itertools.repeat(None, distributed.get_world_size()))
    distributed.all_gather_object(found, content)
    return found
