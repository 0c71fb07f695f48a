"""Parts of batches on TensorFlow (see `shares`), for Keras 3 and tf_keras."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

import tensorflow as tf

from gridflow._keras.patches.bugs import own_steps, shares
from gridflow._keras.runtime import present

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Pairs = Sequence[tuple[Any, Any]]

#: Total elements up to which the number of gradients costs more than their size.
_SMALL: Final = 2**20


def part_of(batch: Any) -> shares.ReplicaPart | None:
    """Return a replica's part of a batch, or None if it is the only replica.

    Parameters
    ----------
    batch : nested tensors
        The rows of the first one are counted, as Keras does.
    """
    replica = tf.distribute.get_replica_context()
    if replica is None or replica.num_replicas_in_sync == 1:
        return None
    add_up = functools.partial(replica.all_reduce, tf.distribute.ReduceOp.SUM)
    return counted(
        batch, add_up, 1.0 if own_steps.is_active() else float(replica.num_replicas_in_sync)
    )


def counted(
    batch: Any, add_up: Callable[[Any], Any], scaled: float = 1.0
) -> shares.ReplicaPart | None:
    """Return a part of a batch, or None if its rows can't be counted.

    Parameters
    ----------
    batch : nested tensors
        The rows of the first one are counted, as Keras does.
    add_up : callable
        Returns the sum of a tensor over all parts.
    scaled : float, default 1
        See `ReplicaPart`.
    """
    rows = _rows(next((each for each in tf.nest.flatten(batch) if each is not None), None))
    if rows is None:
        return None
    rows = tf.cast(rows, tf.float32)
    graph = _graph()

    def of_all(numbers: Sequence[Any]) -> Any:
        mine = tf.stack([tf.cast(tf.stop_gradient(each), tf.float32) for each in numbers])
        return tf.unstack(add_up(tf.math.multiply_no_nan(mine, tf.sign(rows))))

    return shares.ReplicaPart(rows, of_all, scaled, lambda: _graph() is graph)


@tf.custom_gradient  # type: ignore[untyped-decorator]
def with_gradient_times(value: Any, factor: Any) -> Any:
    """Return a value, whose gradient is multiplied by a factor."""

    def gradient(upstream: Any) -> Any:
        # What a row that only stands for rows makes of them may be no number.
        return tf.math.multiply_no_nan(upstream, tf.cast(factor, upstream.dtype)), None

    return tf.identity(value), gradient


def _graph() -> Any:
    return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


def _rows(tensor: Any) -> Any:
    if isinstance(tensor, tf.RaggedTensor):
        return tensor.nrows()
    if isinstance(tensor, tf.SparseTensor):
        return tensor.dense_shape[0]
    rank = getattr(getattr(tensor, "shape", None), "rank", None)
    return tf.shape(tensor)[0] if rank else None


def sum_gradients(add_up: Callable[[Pairs], Pairs], pairs: Pairs) -> list[tuple[Any, Any]]:
    """Return the sums of gradients over all replicas, for the whole batch.

    Keras has already scaled its losses by 1/N for N replicas, except in custom steps.

    Parameters
    ----------
    add_up : callable
        Keras's own, for pairs of a gradient and a variable.
    pairs : sequence of tuple
    """
    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    pairs = list(pairs)
    add_up = functools.partial(_by_type, add_up)
    part = shares.current()
    if part is None or replicas == 1:
        return list(add_up(_times(pairs, 1.0 / replicas) if own_steps.is_active() else pairs))
    wire = _wire_dtype()
    if wire is not None:
        # Rows are counted exactly, so they aren't packed with gradients.
        return _Loose(pairs).summed(functools.partial(_in_type, wire, add_up), part)
    packed = _Packed.of(pairs)
    return (packed or _Loose(pairs)).summed(add_up, part)


class _Loose:
    """Gradients of any kind and size, separately."""

    def __init__(self, pairs: Pairs) -> None:
        self._pairs = pairs

    def summed(
        self, add_up: Callable[[Pairs], Pairs], part: shares.ReplicaPart
    ) -> list[tuple[Any, Any]]:
        """Return the sums, weighted by rows."""
        # float16 could overflow before the division by all rows.
        wide = [(_cast(grad, tf.float32, tf.float16), variable) for grad, variable in self._pairs]
        wide = [(_weighted(grad, part.rows), variable) for grad, variable in wide]
        (rows, _), *sums = add_up([(part.rows, self._pairs[0][1]), *wide])
        sums = _times(sums, part.scaled / rows)
        return [
            (grad if old is None else _cast(grad, old.dtype), variable)
            for (old, _), (grad, variable) in zip(self._pairs, sums, strict=True)
        ]


class _Packed:
    """Small gradients in one tensor, because one operation each would take longer."""

    def __init__(self, pairs: Pairs, sizes: list[int]) -> None:
        self._pairs, self._sizes = pairs, sizes

    @classmethod
    def of(cls, pairs: Pairs) -> _Packed | None:
        """Return the packed gradients, or None if they are sparse, large or of other types."""
        there = [grad for grad, _ in pairs if grad is not None]
        if not all(_is_plain(grad) for grad in there):
            return None
        sizes = [int(grad.shape.num_elements()) for grad in there]
        return cls(pairs, sizes) if 0 < sum(sizes) <= _SMALL else None

    def summed(
        self, add_up: Callable[[Pairs], Pairs], part: shares.ReplicaPart
    ) -> list[tuple[Any, Any]]:
        """Return the sums, weighted by rows."""
        there = [(grad, variable) for grad, variable in self._pairs if grad is not None]
        flat = tf.concat([tf.reshape(grad, [-1]) for grad, _ in there], 0)
        flat = tf.concat([_weighted(flat, part.rows), [part.rows]], 0)
        # Keras warns about missing gradients.
        missing = [(grad, variable) for grad, variable in self._pairs if grad is None]
        ((flat, _), *_) = add_up([(flat, there[0][1]), *missing])
        sums = iter(tf.split(flat[:-1] * (part.scaled / flat[-1]), self._sizes))
        return [
            (None if grad is None else tf.reshape(next(sums), grad.shape), variable)
            for grad, variable in self._pairs
        ]


def _wire_dtype() -> Any:
    """Return the type in which float32 gradients are sent, if it is another one."""
    runtime = present()
    given = None if runtime is None else runtime.training.distribution.communication
    return None if given is None or given.wire_dtype == "float32" else tf.as_dtype(given.wire_dtype)


def _in_type(wire: Any, add_up: Callable[[Pairs], Pairs], pairs: Pairs) -> Pairs:
    """Return the sums of pairs whose gradients are sent in another type, in one tensor."""
    sums = list(pairs)
    narrow = [place for place, (grad, _) in enumerate(pairs) if _is_plain(grad) and grad.shape.rank]
    others = [place for place in range(len(sums)) if place not in narrow]
    for place, found in zip(others, add_up([sums[place] for place in others]), strict=True):
        sums[place] = found
    if narrow:
        grads = [sums[place][0] for place in narrow]
        flat = tf.cast(tf.concat([tf.reshape(grad, [-1]) for grad in grads], 0), wire)
        ((flat, _), *_) = add_up([(flat, sums[narrow[0]][1])])
        sizes = [int(grad.shape.num_elements()) for grad in grads]
        parts = tf.split(tf.cast(flat, tf.float32), sizes)
        for place, grad, each in zip(narrow, grads, parts, strict=True):
            sums[place] = tf.reshape(each, grad.shape), sums[place][1]
    return sums


def _by_type(add_up: Callable[[Pairs], Pairs], pairs: Pairs) -> Pairs:
    """Return the sums of pairs, one type at a time: TensorFlow packs what it gets at once."""
    sums = list(pairs)
    types = list(dict.fromkeys(grad.dtype for grad, _ in pairs if grad is not None))
    if len(types) <= 1:
        return add_up(sums)
    for dtype in types:
        # Missing gradients go with the first type, because Keras warns about them.
        kinds = (dtype, None) if dtype == types[0] else (dtype,)
        places = [p for p, (grad, _) in enumerate(pairs) if getattr(grad, "dtype", None) in kinds]
        for place, found in zip(places, add_up([pairs[p] for p in places]), strict=True):
            sums[place] = found
    return sums


def _is_plain(grad: Any) -> bool:
    is_dense = tf.is_tensor(grad) and not isinstance(grad, tf.IndexedSlices)
    return is_dense and grad.dtype == tf.float32 and grad.shape.is_fully_defined()


def _weighted(grad: Any, rows: Any) -> Any:
    if grad is None:
        return None
    if isinstance(grad, tf.IndexedSlices):
        return tf.IndexedSlices(_weighted(grad.values, rows), grad.indices, grad.dense_shape)
    # The mean over no rows may be 0 / 0.
    return tf.math.multiply_no_nan(grad, tf.cast(rows, grad.dtype))


def _times(pairs: Pairs, factor: Any) -> list[tuple[Any, Any]]:
    return [
        (None if grad is None else tf.math.scalar_mul(tf.cast(factor, grad.dtype), grad), variable)
        for grad, variable in pairs
    ]


def _cast(grad: Any, dtype: Any, only: Any = None) -> Any:
    if grad is None or grad.dtype == dtype or only not in {None, grad.dtype}:
        return grad
    return tf.cast(grad, dtype)
