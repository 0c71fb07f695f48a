"""Sparse vectors: rows that are mostly zeros, stored and fed as their nonzero values.

Each value is packed with its index into eight bytes, the index in the upper four. So a row is a
list, handled like those of ragged columns. Values are ``float32``, as in dense vectors.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from gridflow._feed.column import offsets_of, storage
from gridflow._feed.types import is_list
from gridflow.errors import DataError, SchemaError

__all__ = ["ITEM", "packed"]

#: The type of a value with its index; lists fed by users never have it.
ITEM = pa.uint64()
_PLACES, _VALUES = "indices", "values"


def packed(column: pa.Array, size: int, where: str) -> pa.Array:
    """Return vectors as lists of values with their indices.

    `column`: Structs with ``indices`` and ``values`` as in Spark's vectors (a row without indices
        is dense), arrays of ``size`` numbers, or a result of this function.
    `size`: Size of the vectors.
    `where`: What to call the column.
    Raises `SchemaError`: The type isn't supported.
    Raises `DataError`: A vector has another size, or its indices aren't ascending.
    """
    kind = column.type
    if is_list(kind) and kind.value_type == ITEM:
        return column
    if is_list(kind) and _is_number(kind.value_type):
        places, vectors = None, column
    elif pa.types.is_struct(kind) and kind.get_field_index(_VALUES) >= 0:
        vectors = storage(column.field(_VALUES))
        places = storage(column.field(_PLACES)) if kind.get_field_index(_PLACES) >= 0 else None
        if not (is_list(vectors.type) and _is_number(vectors.type.value_type)):
            raise _unfit(kind, where)
    else:
        raise _unfit(kind, where)
    null = _are_null(column) | _are_null(vectors)
    begins, lengths = _extents(vectors, null)
    rows = np.repeat(np.arange(len(column)), lengths)
    within = np.arange(len(rows)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    items = storage(vectors.values).cast(pa.float32(), safe=False)
    values = _plain(items, np.repeat(begins, lengths) + within, where)
    is_dense = np.ones(len(column), bool) if places is None else _are_null(places)
    if places is None or is_dense.all():
        index = within
    else:
        firsts, counts = _extents(places, is_dense | null)
        if ((counts != lengths) & ~is_dense & ~null).any():
            raise DataError(f"{where} has a vector with different numbers of indices and values.")
        at = np.where(is_dense[rows], 0, np.repeat(firsts, lengths) + within)
        known = np.asarray(storage(places.values).to_numpy(zero_copy_only=False), np.int64)
        index = np.where(is_dense[rows], within, known[at] if len(known) else within)
    _check(index, rows, is_dense, size, where)
    _check_sizes(column, lengths, is_dense & ~null, null, size, where)
    bits = values.view(np.uint32)
    # Zeros of dense rows are dropped; a negative zero, bit by bit, isn't one.
    kept = ~is_dense[rows] | (bits != 0)
    content = (index[kept].astype(np.uint64) << np.uint64(32)) | bits[kept].astype(np.uint64)
    ends = np.concatenate([[0], np.cumsum(np.bincount(rows[kept], minlength=len(column)))])
    return pa.LargeListArray.from_arrays(
        pa.array(ends.astype(np.int64)),
        pa.array(content, ITEM),
        mask=pa.array(null) if null.any() else None,
    )


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_floating(kind) or pa.types.is_integer(kind)) and kind != ITEM


def _unfit(kind: pa.DataType, where: str) -> SchemaError:
    return SchemaError(
        f"{where} has the type {kind}; Sparse(size) is for Spark's vectors, for structs with the "
        "arrays indices and values, and for arrays of numbers."
    )


def _are_null(column: pa.Array) -> np.ndarray:
    found: np.ndarray = column.is_null().to_numpy(zero_copy_only=False)
    return found


def _extents(lists: pa.Array, without: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the start of each list in the items, and its length; 0 for excluded ones."""
    offsets = offsets_of(lists).astype(np.int64, copy=False)
    return offsets[:-1], np.where(without, 0, np.diff(offsets))


def _plain(items: pa.Array, at: np.ndarray, where: str) -> np.ndarray:
    taken = items.take(pa.array(at))
    if taken.null_count:
        raise DataError(f"{where} has a vector that contains a null: fill it first.")
    values: np.ndarray = taken.to_numpy(zero_copy_only=False)
    return np.ascontiguousarray(values, np.float32)


def _check(
    index: np.ndarray, rows: np.ndarray, is_dense: np.ndarray, size: int, where: str
) -> None:
    outside = (index < 0) | (index >= size)
    if outside.any():
        raise DataError(
            f"{where} has a vector with a value at index {int(index[outside][0])}, but is fed as "
            f"Sparse({size}): pass the size of its vectors."
        )
    is_same = rows[1:] == rows[:-1]
    if (is_same & (np.diff(index) <= 0) & ~is_dense[rows[1:]]).any():
        raise DataError(f"{where} has a vector whose indices aren't ascending: sort them first.")


def _check_sizes(
    column: pa.Array,
    lengths: np.ndarray,
    is_dense: np.ndarray,
    null: np.ndarray,
    size: int,
    where: str,
) -> None:
    told = lengths[is_dense]
    if pa.types.is_struct(column.type) and column.type.get_field_index("size") >= 0:
        sizes = column.field("size")
        known = sizes.is_valid().to_numpy(zero_copy_only=False) & ~null & ~is_dense
        said = sizes.filter(pa.array(known)).to_numpy(zero_copy_only=False)
        told = np.concatenate([told, said.astype(np.int64)])
    if (wrong := told[told != size]).size:
        raise DataError(
            f"{where} has a vector of size {int(wrong[0])}, but is fed as Sparse({size}): all "
            "vectors need the same size."
        )
