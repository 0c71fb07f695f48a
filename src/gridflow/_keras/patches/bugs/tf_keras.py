"""The patches for tf_keras (seen in 2.21.0). Imported after tf_keras."""

from __future__ import annotations

from typing import Final

from gridflow._keras.patches.bugs import aliasing, tables

PATCHES: Final = (aliasing.fix("tf_keras"), tables.fix("tf_keras"))
