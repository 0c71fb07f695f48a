"""Tensors of the arrays that `assemble` yields, ragged ones among them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gridflow._feed.selection import Tensor

__all__ = ["signature", "tensors"]


def signature(wanted: Sequence[Tensor], rows: int | None) -> tuple[Any, ...]:
    """Return the types and shapes of the arrays; ``rows`` is a common batch size, if any."""
    import tensorflow as tf

    found = []
    for tensor in wanted:
        kind = tf.string if tensor.is_text else tf.as_dtype(tensor.numpy_dtype)
        if tensor.is_ragged:
            found += [tf.TensorSpec((None, rows), tf.int64), tf.TensorSpec((None,), kind)]
        else:
            found.append(tf.TensorSpec((None, rows, *tensor.row_shape), kind))
    return tuple(found)


def tensors(wanted: Sequence[Tensor], arrays: Sequence[Any]) -> list[Any]:
    """Return the tensors of batches; called in a graph."""
    import tensorflow as tf

    found, waiting = [], iter(arrays)
    for tensor in wanted:
        array = next(waiting)
        if tensor.is_ragged:
            lengths = tf.reshape(array, [-1])
            if tensor.is_sparse:
                found.append(_sparse(next(waiting), array, tensor.row_shape[1]))
                continue
            flat = tf.RaggedTensor.from_row_lengths(next(waiting), lengths, validate=False)
            size = array.shape[1] or tf.shape(array, tf.int64)[1]
            array = tf.RaggedTensor.from_uniform_row_length(flat, size, validate=False)
        found.append(array)
    return found


def _sparse(items: Any, lengths: Any, size: int) -> Any:
    """Return batches of vectors, whose values and indices are packed into eight bytes."""
    import tensorflow as tf

    counts = tf.shape(lengths, tf.int64)
    rows = tf.repeat(tf.range(counts[0] * counts[1]), tf.reshape(lengths, [-1]))
    halves = tf.bitcast(items, tf.uint32)  # lower half first
    places = tf.stack([rows // counts[1], rows % counts[1], tf.cast(halves[:, 1], tf.int64)], 1)
    values = tf.bitcast(halves[:, 0], tf.float32)
    batch_rows = counts[1] if lengths.shape[1] is None else lengths.shape[1]
    return tf.SparseTensor(places, values, (counts[0], batch_rows, size))
