"""Models on DataFrames: Spark ML's shelves.

Importing it imports neither TensorFlow nor Spark; each name is loaded when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from gridflow.ml.adapting import adapt

_HOMES: Final = {
    "adapt": "adapting",
}

__all__ = ["adapt"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'gridflow.ml' has no attribute {name!r}")
    return getattr(importlib.import_module(f"gridflow.ml.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
