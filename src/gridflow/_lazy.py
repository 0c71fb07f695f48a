"""Names of a package that are loaded when they are first used."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def lazily(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the ``__getattr__`` and the ``__dir__`` of a package.

    `homes`: By public name the module below the package that has it: ``module``, or ``module:Name``
        where it is known there by another name.
    """

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, _, known_there_as = homes[name].partition(":")
        return getattr(importlib.import_module(f"{package}.{module}"), known_there_as or name)

    return load, lambda: sorted({*vars(sys.modules[package]), *homes})
