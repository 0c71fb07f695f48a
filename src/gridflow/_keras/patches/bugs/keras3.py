"""The patches for Keras 3 on TensorFlow (seen in 3.15.1). Imported after Keras.

Probes create no tensors: that would start TensorFlow's eager context, after which devices can't be
configured.
"""

from __future__ import annotations

from typing import Final

from gridflow._keras.patches.bugs import (
    aliasing,
    dict_inputs,
    keras3_steps,
    parameter_servers,
    tables,
    weights,
)

PATCHES: Final = (
    aliasing.fix("keras"),
    dict_inputs.fix(),
    *keras3_steps.PATCHES,
    *parameter_servers.PATCHES,
    tables.fix("keras"),
    weights.fix(),
)
