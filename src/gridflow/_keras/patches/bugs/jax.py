"""Patches for Keras 3 on JAX when several processes train one model."""

from __future__ import annotations

from typing import Any, Final

import jax
import numpy as np
from keras.src.backend.jax import distribution_lib
from keras.src.utils import jax_utils

from gridflow._keras.patches.bugs import building, dict_inputs, weights
from gridflow._keras.patches.methods import Layer, wrap
from gridflow._keras.patches.registry import Patch


class _AskedPeersError(Exception):
    """Raised if a value would be compared with those of other processes."""


def _placing_asks_the_peers() -> bool:
    """Return whether placing a value involves all processes."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()), "all")
    everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    original = jax.device_put

    def device_put(value: Any, device: Any = None, **kwargs: Any) -> Any:
        if not getattr(device, "is_fully_addressable", True):
            raise _AskedPeersError
        return original(value, device, **kwargs)

    jax.device_put = device_put
    try:
        distribution_lib.distribute_tensor(np.zeros(1, "float32"), everywhere)
    except _AskedPeersError:
        return True
    finally:
        jax.device_put = original
    return False


def _patch_distribute_tensor() -> None:
    def distribute_tensor(original: Any, tensor: Any, layout: Any) -> Any:
        sharding = getattr(layout, "backend_layout", layout)
        if (
            not isinstance(sharding, jax.sharding.Sharding)
            or sharding.is_fully_addressable
            or not sharding.is_fully_replicated
            or jax_utils.is_in_jax_tracing_scope(tensor)
            or not getattr(tensor, "is_fully_addressable", True)
        ):
            return original(tensor, layout)
        value = np.asarray(tensor)
        return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])

    wrap(distribution_lib, "distribute_tensor", distribute_tensor, Layer.BUG)


PATCHES: Final = (
    building.fix(),
    dict_inputs.fix(),
    weights.fix(),
    Patch(
        "variables are made alone",
        "keras",
        "creating a variable in one process, as when it saves or loads a model, waits for the "
        "other processes forever",
        _placing_asks_the_peers,
        _patch_distribute_tensor,
        jax.distributed.is_initialized,
    ),
)
