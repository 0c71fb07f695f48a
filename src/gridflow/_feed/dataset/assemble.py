"""From windows of a plan to arrays of batches, with one copy out of the mapped spool. Pure numpy.

Returned arrays are never written again: TensorFlow aliases an aligned numpy array instead of
copying it, and may keep it for any time.
"""

from __future__ import annotations

import itertools
import logging
import math
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa

from gridflow._feed.long_texts import LONG_BYTES, LongTexts, are_long
from gridflow._feed.memory import aligned_empty

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gridflow._feed.dataset.reading import ChunkReader
    from gridflow._feed.plan.epochs import BatchPlan, Window
    from gridflow._feed.plan.grants import FirstPlan
    from gridflow._feed.selection import Tensor

__all__ = ["assemble", "window_rows_for"]

_log = logging.getLogger(__name__)
_SHUFFLE_BYTES: Final = 64 << 20
_ORDERED_BYTES: Final = 4 << 20
#: Windows in order are this many times larger for long texts: a window costs a millisecond.
_MORE_TEXT: Final = 8
_WINDOW_ROWS: Final = 65_536
#: From this many columns on, they are copied together instead of one by one.
_MANY_COLUMNS: Final = 64
#: Beyond this, not every integer is a float32.
_EXACT: Final = 1 << 24
#: The columns of integers that were looked at for such values, by chunk; and those with some.
_looked_at: Final[WeakKeyDictionary[Any, set[tuple[int, str]]]] = WeakKeyDictionary()
_rounded: Final[set[tuple[str, str]]] = set()
#: Text types that convert to bytes without a copy; other offsets would need one.
_BYTES: Final = {
    pa.string(): pa.binary(),
    pa.binary(): pa.binary(),
    pa.binary_view(): pa.binary_view(),
}


def window_rows_for(row_bytes: int, text_bytes: int = 0, *, shuffle: bool) -> int:
    """Return how many rows to hold at a time: 65,536, or fewer if they are wide.

    `row_bytes`, `text_bytes`: Bytes of a row, and those of them that are text.
    """
    if shuffle:
        return max(1, min(_WINDOW_ROWS, _SHUFFLE_BYTES // max(1, row_bytes)))
    if text_bytes >= LONG_BYTES:  # not copied before its batch is requested
        row_bytes -= text_bytes - text_bytes // _MORE_TEXT
    return max(1, min(_WINDOW_ROWS, _ORDERED_BYTES // max(1, row_bytes)))


def assemble(
    reader: ChunkReader,
    tensors: Sequence[Tensor],
    plan: BatchPlan | FirstPlan,
    start_batch: int = 0,
    stop_batch: int | None = None,
) -> Iterator[tuple[np.ndarray, ...]]:
    """Yield the batches of an epoch, several at a time, optionally up to a last one.

    Each item is a tuple with an array for each tensor, of shape (batches, batch size, ...): those
    batches of a window of the plan that have the same size. A ragged tensor has two: the lengths of
    its rows, of shape (batches, batch size), and all their items.
    """
    left = plan.steps if stop_batch is None else stop_batch
    left -= start_batch
    for window in reader.follow(plan.windows(start_batch)):
        arrays = [_array(reader, tensor, window) for tensor in tensors]
        begin = 0
        for size, alike in _alike(window.batch_rows, _rows_at_once(arrays)):
            batches = min(alike, left)
            if not batches:
                return
            left -= batches
            yield tuple(
                part
                for array, tensor in zip(arrays, tensors, strict=True)
                for part in _cut(array, tensor, begin, batches, size)
            )
            begin += batches * size


def _rows_at_once(arrays: Sequence[Any]) -> int | None:
    """Return how many rows of a window to hand out together, None for all."""
    lazy = (each.at_once for each in arrays if isinstance(each, LongTexts | ShuffledNumbers))
    return min(lazy, default=None)


def _alike(batch_rows: Sequence[int], most: int | None) -> Iterator[tuple[int, int]]:
    """Yield batch sizes and how many batches of that size follow, in groups up to `most` rows."""
    for size, alike in itertools.groupby(batch_rows):
        left = sum(1 for _ in alike)
        step = left if most is None else max(1, most // max(1, size))
        while left:
            yield size, min(step, left)
            left -= min(step, left)


def _array(reader: ChunkReader, tensor: Tensor, window: Window) -> Any:
    if tensor.is_ragged:
        return _lists(reader, tensor, window)
    if tensor.is_text:
        return _text(reader, tensor, window)
    if tensor.stacked:
        _say_what_is_rounded(reader, tensor, window)
    if window.positions is not None:
        shuffled = ShuffledNumbers(reader, tensor, window)
        if shuffled.at_once < window.rows and not _is_wide(reader, tensor):
            return shuffled
    return _numbers(reader, tensor, window)


def _say_what_is_rounded(reader: ChunkReader, tensor: Tensor, window: Window) -> None:
    """Log, once for each column, that integers are too large for a matrix of float32."""
    looked_at = _looked_at.setdefault(reader, set())
    chunks = {piece.chunk for piece in window.pieces}
    for column in tensor.columns:
        kind: Any = reader.specs[column][0]
        if kind.kind not in "iu" or kind.itemsize < np.dtype(np.int32).itemsize:
            continue
        for chunk in chunks:
            if (chunk, column) in looked_at or (reader.dataset, column) in _rounded:
                continue
            looked_at.add((chunk, column))
            values: Any = reader.column(chunk, column)
            if values.size and max(int(values.max()), -int(values.min())) > _EXACT:
                _rounded.add((reader.dataset, column))
                _log.warning(
                    "column %r of dataset %r has integers beyond 2**24, which a matrix of float32 "
                    "rounds. For exact ones make it a tensor of its own, such as "
                    "features={'name': %r}.",
                    column,
                    reader.dataset,
                    column,
                )


def _cut(array: Any, tensor: Tensor, begin: int, batches: int, size: int) -> Iterator[np.ndarray]:
    rows = batches * size
    if not tensor.is_ragged:
        yield array[begin : begin + rows].reshape(batches, size, *tensor.row_shape)
        return
    lists = array.slice(begin, rows)
    yield lists.value_lengths().to_numpy().reshape(batches, size)
    items: np.ndarray = lists.flatten().to_numpy(zero_copy_only=False)
    yield items if tensor.is_text else items.view(tensor.numpy_dtype)


def _lists(reader: ChunkReader, tensor: Tensor, window: Window) -> pa.Array:
    """Return the rows of a window as lists of any length."""
    column = tensor.columns[0]
    found = []
    for piece in window.pieces:
        lists: Any = reader.column(piece.chunk, column)
        found.append(lists.slice(piece.start, piece.stop - piece.start))
    lists = pa.concat_arrays(found)
    if tensor.is_text:
        lists = lists.cast(pa.large_list(pa.large_binary()))
    return lists if window.sources is None else lists.take(pa.array(window.sources))


def _numbers(reader: ChunkReader, tensor: Tensor, window: Window) -> np.ndarray:
    """Return the numbers of a window, copied from its pieces one after another."""
    out = aligned_empty((window.rows, *tensor.row_shape), tensor.numpy_dtype)
    is_wide = _is_wide(reader, tensor)
    for piece in window.pieces:
        to: slice | np.ndarray = slice(piece.at, piece.at + piece.stop - piece.start)
        rows: slice | np.ndarray = slice(piece.start, piece.stop)
        if window.positions is not None:
            to = window.positions[to]
            if (wanted := to >= 0).sum() < len(to):
                to, rows = to[wanted], np.flatnonzero(wanted) + piece.start
        if is_wide:
            matrix = reader.matrix(piece.chunk, tensor.columns, piece.start, piece.stop)
            chosen = matrix if isinstance(rows, slice) else matrix[rows - piece.start]
            out.reshape(window.rows, -1)[to] = chosen
        else:
            _copy(reader, tensor, piece.chunk, rows, out, to)
    return out


def _copy(
    reader: ChunkReader,
    tensor: Tensor,
    chunk: int,
    rows: slice | np.ndarray,
    out: np.ndarray,
    to: slice | np.ndarray,
) -> None:
    if not tensor.stacked:
        out[to] = reader.column(chunk, tensor.columns[0])[rows]
        return
    flat, at = out.reshape(len(out), -1), 0
    for column, width in zip(tensor.columns, tensor.widths, strict=True):
        source = reader.column(chunk, column)[rows]
        if width == 1:
            flat[to, at] = source.reshape(-1)
        else:
            flat[to, at : at + width] = source.reshape(-1, width)
        at += width


class ShuffledNumbers:
    """Numbers of a shuffled window, of which slices are arrays, copied when they are asked for.

    Such a window has tens of megabytes, and the training would wait for all of them at once.

    `at_once`: How many rows are to be asked for together.
    """

    def __init__(self, reader: ChunkReader, tensor: Tensor, window: Window) -> None:
        self._reader, self._tensor, self._window = reader, tensor, window
        row_bytes = math.prod(tensor.row_shape) * tensor.numpy_dtype.itemsize
        self.at_once = max(1, _ORDERED_BYTES // max(1, row_bytes))

    def __getitem__(self, rows: slice) -> np.ndarray:
        assert self._window.sources is not None
        sources = self._window.sources[rows]
        order = np.argsort(sources)  # they are read in the order in which they lie
        ordered = sources[order]
        pieces = self._window.pieces
        bounds = [*np.searchsorted(ordered, [piece.at for piece in pieces]), len(ordered)]
        out = aligned_empty((len(sources), *self._tensor.row_shape), self._tensor.numpy_dtype)
        for number in np.flatnonzero(np.diff(bounds)):
            piece, some = pieces[number], slice(bounds[number], bounds[number + 1])
            from_rows = ordered[some] - piece.at + piece.start
            _copy(self._reader, self._tensor, piece.chunk, from_rows, out, order[some])
        return out


def _is_wide(reader: ChunkReader, tensor: Tensor) -> bool:
    """Return whether many columns with one number each have the same type."""
    if len(tensor.columns) < _MANY_COLUMNS or any(width != 1 for width in tensor.widths):
        return False
    kinds = {reader.schema.field(number).type for number in reader.numbers(tensor.columns)}
    return len(kinds) == 1 and not pa.types.is_fixed_size_list(kinds.pop())


def _text(reader: ChunkReader, tensor: Tensor, window: Window) -> np.ndarray | LongTexts:
    column = tensor.columns[0]
    flat = []
    for piece in window.pieces:
        array: Any = reader.column(piece.chunk, column)
        values = array.slice(piece.start, piece.stop - piece.start)
        for _ in tensor.row_shape:
            values = values.flatten()
        flat.append(values.cast(_BYTES.get(values.type, pa.large_binary())))
    if are_long(flat):
        return LongTexts(flat, tensor.row_shape, window.rows, window.sources)
    # A window may hold more than the 2 GiB of 32-bit offsets.
    wide = [values.cast(pa.large_binary()) for values in flat]
    items: np.ndarray = pa.concat_arrays(wide).to_numpy(zero_copy_only=False)
    items = items.reshape(-1, *tensor.row_shape)
    if window.positions is None:
        return items
    out = np.empty((window.rows, *tensor.row_shape), object)
    wanted = window.positions >= 0
    out[window.positions[wanted]] = items[wanted]
    return out
