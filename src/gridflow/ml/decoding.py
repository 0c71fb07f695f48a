"""What columns go through before a model predicts: the function of ``map=``, as in training."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from gridflow._spec import backends
from gridflow.ml import columns as arrow

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np

    from gridflow.ml.columns import Slot

    #: Takes the columns of a batch, returns the inputs.
    Decode = Callable[[Sequence[np.ndarray]], list[np.ndarray]]


def decoder_of(pickled: bytes, slots: Mapping[str, Slot], backend: str | None) -> Decode:
    """Return what makes inputs of the columns of a batch; it is loaded once, like a model.

    Parameters
    ----------
    pickled : bytes
        The function; empty: none.
    slots : mapping of str to Slot
        The inputs, in the order of the columns.
    backend : str or None
        Of Keras 3. The function gets tensors, and under JAX and PyTorch arrays, as in training.
    """
    if not pickled:
        return list
    takes_tensors = backend is None or backends.of(backend).mode is None
    function = _loaded(pickled, takes_tensors=takes_tensors)
    names = list(slots)

    def decode(given: Sequence[np.ndarray]) -> list[np.ndarray]:
        found = function(given[0] if len(names) == 1 else dict(zip(names, given, strict=True)))
        parts = [found[name] for name in names] if len(names) > 1 else [found]
        return [
            arrow.decoded(part, slot, name)
            for part, (name, slot) in zip(parts, slots.items(), strict=True)
        ]

    return decode


@functools.lru_cache(maxsize=3)
def _loaded(pickled: bytes, *, takes_tensors: bool) -> Callable[[Any], Any]:
    import cloudpickle

    function: Callable[[Any], Any] = cloudpickle.loads(pickled)
    if not takes_tensors:
        return function
    import tensorflow as tf

    traced = tf.function(function, reduce_retracing=True)

    def decoded(x: Any) -> Any:
        with tf.device("CPU:0"):
            return traced(tf.nest.map_structure(tf.constant, x))

    return decoded
