"""Replaces TensorFlow's collective operations with `gridflow._collectives`.

`MultiWorkerMirroredStrategy` exchanges all values through the launchers of its cross-device
operations, over gRPC: more than a millisecond for a single number. gridflow's launcher calls its
own group, as a Python function in the graph.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

from gridflow._keras.patches.private_parts import module, part

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np

    from gridflow._collectives.host import HostGroup

_LAUNCHER: Final = "tensorflow.python.distribute.cross_device_utils"
#: Whether what is computed or traced now exchanges nothing. Replicas trace in their own threads.
_is_alone: bool = False


def is_alone() -> bool:
    """Return whether what is computed or traced now exchanges nothing."""
    return _is_alone


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Exchange nothing in a block: compute as if all ranks had this rank's values."""
    global _is_alone  # noqa: PLW0603 (one for all threads)
    before, _is_alone = _is_alone, True
    try:
        yield
    finally:
        _is_alone = before


def install(strategy: Any, group: HostGroup | None) -> None:
    """Make a strategy exchange values through gridflow's group.

    Parameters
    ----------
    strategy : tf.distribute.MultiWorkerMirroredStrategy
    group : HostGroup or None
        None: values are exchanged by TensorFlow, except those of `alone`.
    """
    kind = _launcher(group, strategy.num_replicas_in_sync)
    for name in ("_cross_device_ops", "_host_cross_device_ops"):
        for launcher in part(part(strategy.extended, name), "_launchers"):
            # It keeps the state of TensorFlow's launcher, for values that TensorFlow still
            # exchanges.
            launcher.__class__ = kind


def keep_server(strategy: Any) -> None:
    """Make the strategies that the user's function creates share the server of this one.

    TensorFlow would set up its collective operations again for each. A peer may have announced
    itself to this process by then: that would be lost, and both would wait forever.

    Parameters
    ----------
    strategy : tf.distribute.MultiWorkerMirroredStrategy
    """
    kind: Any = type(strategy.extended)
    for name in ("_std_server_started", "_enable_check_health"):
        setattr(kind, name, part(strategy.extended, name))


def _launcher(group: HostGroup | None, replicas: int) -> type:
    import tensorflow as tf

    base: Any = part(module(_LAUNCHER), "CollectiveReplicaLauncher")
    host = tf.DeviceSpec(device_type="CPU", device_index=0)  # also where the values are on a GPU

    class Launcher(base):  # type: ignore[misc]
        """Sums numbers through the group; everything else goes through TensorFlow."""

        def all_reduce(
            self, input_tensor: Any, control_input: Any = None, options: Any = None
        ) -> Any:
            """Return the sum over all ranks."""
            values = tf.convert_to_tensor(input_tensor)
            if _is_alone:
                return values * tf.cast(replicas, values.dtype)
            if group is None or not _is_summed(values.dtype):
                return super().all_reduce(values, control_input, options)
            with self._control_input(control_input):
                return self._call(group.all_reduce, values, values.shape)

        def _all_gather(self, input_tensor: Any, options: Any) -> Any:
            """Return the concatenated values of all ranks, which have the same shape."""
            values = tf.convert_to_tensor(input_tensor)
            if _is_alone:
                return tf.concat([values] * replicas, axis=0)
            if group is None or not _is_summed(values.dtype):
                return super()._all_gather(values, options)
            members = group

            def gather(mine: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
                return members.all_gather(mine).reshape(-1, *mine.shape[1:])

            return self._call(gather, values, tf.TensorShape([None, *values.shape[1:]]))

        def _call(self, function: Callable[..., Any], values: Any, shape: Any) -> Any:
            """Call a function in the graph, after all earlier calls on this rank."""
            token = self._ordering_token.handle
            # TensorFlow orders only operations that read or write variables.
            with tf.device(self._device):
                before = tf.raw_ops.ReadVariableOp(resource=token, dtype=tf.float32)
            with tf.device(host):
                result, after = tf.numpy_function(
                    lambda mine, token: (function(mine), token),
                    (values, before),
                    (values.dtype, tf.float32),
                )
            with tf.device(self._device):
                tf.raw_ops.AssignVariableOp(resource=token, value=after)
            result.set_shape(shape)
            return result

    return Launcher


def _is_summed(dtype: Any) -> bool:
    return bool(dtype.is_floating or dtype.is_integer) and not dtype.is_quantized
