"""Losses of Keras 3 whose divisor differs between replicas (see `shares`)."""

from __future__ import annotations

from typing import Any, Final

from keras.src import ops
from keras.src.losses import loss as losses

from gridflow._keras.patches.bugs import shares
from gridflow._keras.patches.methods import Layer, wrap

_MEANS: Final = ("mean", "sum_over_batch_size")
_WEIGHTED: Final = "mean_with_sample_weight"


def install() -> None:
    """Make losses divide by the counts of the whole batch."""

    def masked(apply_mask: Any, sample_weight: Any, mask: Any, dtype: Any, reduction: Any) -> Any:
        weight = apply_mask(sample_weight, mask, dtype, reduction)
        if mask is None or reduction not in _MEANS:
            return weight
        part = shares.reachable("A masked loss")
        return weight if part is None else weight * _to_all(part, ops.cast(mask, dtype))

    def reduced(
        reduce_values: Any, values: Any, sample_weight: Any = None, reduction: Any = None
    ) -> Any:
        value = reduce_values(values, sample_weight, reduction)
        if tuple(values.shape) == ():
            return value
        if reduction == _WEIGHTED and sample_weight is not None:
            part = shares.reachable("A loss that divides by the sum of its weights")
            return value if part is None else value * _to_all(part, sample_weight)
        if reduction == "sum":
            part = shares.reachable("A loss that is a sum")
            return value if part is None else value * ops.cast(part.times_a_sum(), value.dtype)
        return value

    def weighted(reduce_weighted_values: Any, values: Any, *args: Any, **kwargs: Any) -> Any:
        if tuple(values.shape) != ():
            return reduce_weighted_values(values, *args, **kwargs)
        # A loss function that returns the mean itself: there is nothing left to divide.
        with shares.of(None):
            return reduce_weighted_values(values, *args, **kwargs)

    wrap(losses, "apply_mask", masked, Layer.BUG)
    wrap(losses, "reduce_values", reduced, Layer.BUG)
    wrap(losses, "reduce_weighted_values", weighted, Layer.BUG)


def _to_all(part: shares.ReplicaPart, counts: Any) -> Any:
    """Return how much more this part counts than the whole batch, per entry."""
    entries = ops.cast(ops.size(counts), counts.dtype)
    mine = ops.divide_no_nan(ops.sum(counts), entries)
    density = part.density(ops.sum(counts), entries)
    return ops.divide_no_nan(mine, ops.cast(density, mine.dtype))
