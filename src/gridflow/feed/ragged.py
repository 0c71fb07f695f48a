"""Tensors of the arrays that `gridflow.feed.assemble.assemble` yields, ragged ones among them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gridflow.feed.selection import Tensor

__all__ = ["signature", "tensors"]


def signature(wanted: Sequence[Tensor], rows: int | None) -> tuple[Any, ...]:
    """Return the types and shapes of the arrays; ``rows`` of a batch, where all have as many."""
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
    """Return one tensor of batches for each that is wanted; in a graph."""
    import tensorflow as tf

    found, waiting = [], iter(arrays)
    for tensor in wanted:
        array = next(waiting)
        if tensor.is_ragged:
            lengths = tf.reshape(array, [-1])
            flat = tf.RaggedTensor.from_row_lengths(next(waiting), lengths, validate=False)
            size = array.shape[1] or tf.shape(array, tf.int64)[1]
            array = tf.RaggedTensor.from_uniform_row_length(flat, size, validate=False)
        found.append(array)
    return found
