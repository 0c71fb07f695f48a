"""Avoids a hang of iterators on devices, whose tuning thread may miss that they are dropped."""

from __future__ import annotations

import functools
from typing import Any

from gridflow._keras.patches.methods import Layer, wrap
from gridflow._keras.patches.private_parts import module


@functools.cache
def install() -> None:
    """Turn off tuning in TensorFlow's iterators on devices, where there is nothing to tune.

    The tuning thread sleeps twice as long each time, up to a minute. In TensorFlow 2.21,
    ``OptimizeLoop`` may miss the cancellation, and dropping the iterator waits until the sleep is
    over. The next epoch starts only then.
    """
    import tensorflow as tf

    home = module("tensorflow.python.data.ops.multi_device_iterator_ops")

    def created(create: Any, *args: Any, **kwargs: Any) -> Any:
        options = tf.data.Options()
        options.autotune.enabled = False
        return create(*args, **kwargs).with_options(options)

    wrap(home, "_create_device_dataset", created, Layer.BUG)
