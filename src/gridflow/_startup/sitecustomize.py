# ruff: noqa: INP001 (no package: a folder on PYTHONPATH)
"""What Python runs first in the programs that gridflow starts: it patches Keras, once imported.

Its folder is in front of ``PYTHONPATH`` there. Python runs one ``sitecustomize`` only, the first
that it finds, so this one takes its folder away and lets the next one have its turn.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

_FOLDER = str(Path(__file__).parent)


def _patch() -> None:
    try:
        from gridflow._keras.patches import registry
    except ImportError:  # a Python without gridflow
        return
    registry.patch_keras()


def _begin_again() -> None:
    sys.path[:] = [each for each in sys.path if each != _FOLDER]
    sys.modules.pop("sitecustomize", None)
    try:
        importlib.import_module("sitecustomize")  # another one, if there is any
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        # Python looks for the module that it has loaded.
        sys.modules["sitecustomize"] = _this


_this = sys.modules[__name__]
_patch()
_begin_again()
