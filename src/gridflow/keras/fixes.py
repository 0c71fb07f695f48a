"""Cures for what is broken in Keras when it trains under a distribution strategy.

Each cure is a small patch with a *probe*: a few calls into the installed Keras that show the bug.
Only where a probe sees its bug is the patch put in, so a version of Keras that is healthy is left
alone. The tests of this module fail when a probe no longer sees its bug: then the cure can go.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import logging
import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType

_log = logging.getLogger(__name__)

#: Flavour of Keras (the name of its package) to the module that holds its cures.
FLAVOURS: Final = {
    "keras": "gridflow.keras.cures.keras3",
    "tf_keras": "gridflow.keras.cures.tf_keras",
}
#: The same for the other backends of Keras 3.
_BACKENDS: Final = {
    "jax": "gridflow.keras.cures.jax",
    "torch": "gridflow.keras.cures.torch",
}


@dataclass(frozen=True)
class Fix:
    """One bug of Keras, how to see it and how to cure it.

    Attributes
    ----------
    name : str
        Short name, unique in a flavour.
    flavour : str
        ``"keras"`` (Keras 3) or ``"tf_keras"``.
    summary : str
        What goes wrong without the cure.
    seen : callable
        The probe: True where the installed package has the bug.
    cure : callable
        Puts the patch in.
    """

    name: str
    flavour: str
    summary: str
    seen: Callable[[], bool]
    cure: Callable[[], None]


_applied: dict[str, list[Fix]] = {}
_lock = threading.RLock()


def cures_of(flavour: str) -> Any:
    """Return the module of cures of a flavour, with Keras's backend. Imports the flavour."""
    module = FLAVOURS[flavour]
    if flavour == "keras":
        import keras

        module = _BACKENDS.get(keras.backend.backend(), module)
    return importlib.import_module(module)


def known(flavour: str) -> tuple[Fix, ...]:
    """Return all cures of a flavour, whether they are needed or not. Imports the flavour."""
    return tuple(cures_of(flavour).FIXES)


def apply() -> list[Fix]:
    """Cure the flavours of Keras that are imported, and the others as soon as they are.

    May be called any number of times. Imports neither ``keras`` nor ``tf_keras``.

    Returns
    -------
    list of Fix
        The cures in force so far, of all flavours that are imported.
    """
    with _lock:
        for flavour in FLAVOURS:
            # A package that is half imported is cured by the finder, once it is complete.
            module = sys.modules.get(flavour)
            if module is not None and not getattr(module.__spec__, "_initializing", False):
                _cure(flavour)
        if not any(isinstance(finder, _AfterImport) for finder in sys.meta_path):
            sys.meta_path.insert(0, _AfterImport())
        return [fix for fixes in _applied.values() for fix in fixes]


def _cure(flavour: str) -> None:
    with _lock:
        if flavour in _applied:
            return
        _applied[flavour] = []
        for fix in known(flavour):
            if _is_seen(fix):
                fix.cure()
                _applied[flavour].append(fix)
                _log.debug("cured in %s: %s", flavour, fix.summary)


def _is_seen(fix: Fix) -> bool:
    try:
        return fix.seen()
    except Exception:  # noqa: BLE001
        # A Keras so different that the probe fails must stay usable, uncured.
        _log.exception("the probe for %s in %s failed; it isn't cured", fix.name, fix.flavour)
        return False


class _AfterImport(importlib.abc.MetaPathFinder):
    """Cures a flavour right after its import, so that none is imported for nothing."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        """Wrap the loader of ``keras`` and ``tf_keras``; leave all else to the other finders."""
        if fullname not in FLAVOURS:
            return None
        specs = (
            finder.find_spec(fullname, path, target)
            for finder in sys.meta_path
            if not isinstance(finder, _AfterImport) and hasattr(finder, "find_spec")
        )
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _CuringLoader(spec.loader, fullname)
        return spec


class _CuringLoader(importlib.abc.Loader):
    """Loads as the loader that it wraps does, then cures."""

    def __init__(self, loader: importlib.abc.Loader, flavour: str) -> None:
        self._loader = loader
        self._flavour = flavour

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        """Leave it to the wrapped loader."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Execute the package, then put its cures in."""
        # Others (pickle, inspect, pkgutil) must find the loader that they know.
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        _cure(self._flavour)
