"""Iterators on devices whose tuning thread now and then doesn't hear that they are dropped."""

from __future__ import annotations

import functools
from typing import Any

from gridflow._keras.patches.methods import Layer, wrap
from gridflow._keras.patches.private_parts import module


@functools.cache
def install() -> None:
    """Let TensorFlow's iterators on devices tune nothing: there is nothing to tune.

    The thread that would do it sleeps for twice as long each time, up to a minute. Seen in
    TensorFlow 2.21: ``OptimizeLoop`` misses the cancellation, and who drops the iterator waits
    until it has slept. The next epoch begins only then.
    """
    import tensorflow as tf

    home = module("tensorflow.python.data.ops.multi_device_iterator_ops")

    def created(create: Any, *args: Any, **kwargs: Any) -> Any:
        options = tf.data.Options()
        options.autotune.enabled = False
        return create(*args, **kwargs).with_options(options)

    wrap(home, "_create_device_dataset", created, Layer.BUG)
