"""Patches for bugs in Keras under a distribution strategy.

Each patch has a *probe*: a few calls into the installed Keras that show the bug. A patch is applied
only if its probe finds the bug, so healthy versions of Keras aren't changed. Then the probe runs
again, because a patch of a function that Keras no longer calls would have no effect. Tests fail
when a probe no longer finds its bug: then the patch can be removed.

If a probe or a patch fails, the bug may still exist, and it may silently lead to wrong gradients.
So this is an error, unless the user takes the risk (`UNSAFE_VARIABLE`).

What gridflow adds to Keras independently of bugs is a `Hook`.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.abc
import importlib.machinery
import logging
import os
import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gridflow._spec import backends
from gridflow.errors import EnvironmentMismatch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType

_log = logging.getLogger(__name__)

#: If set to ``1``, training continues with a Keras that can't be probed or patched.
UNSAFE_VARIABLE: Final = "GRIDFLOW_UNSAFE_KERAS"
#: The releases that the patches of a Keras flavour (its package name) are made for.
MADE_FOR: Final = {"keras": "3.15", "tf_keras": "2.21"}
#: The modules with a flavour's patches and hooks; Keras 3 has one for each backend.
FLAVOURS: Final = {
    "keras": {name: backends.of(name).patches for name in backends.BACKENDS},
    "tf_keras": {"tensorflow": "tf_keras"},
}

#: Programs that make its strategy for several workers get gridflow's.
_TENSORFLOW: Final = "tensorflow"


def _always() -> bool:
    return True


@dataclass(frozen=True)
class Patch:
    """One bug of Keras, how to detect it and how to fix it.

    `name`: Short name, unique within a flavour.
    `flavour`: ``"keras"`` (Keras 3) or ``"tf_keras"``.
    `summary`: What goes wrong without the patch.
    `seen`: The probe: True if the installed package has the bug. It must not know about the patch.
    `apply`: Applies the patch.
    `concerns`: Whether the bug matters in this process: some need a group of processes.
    """

    name: str
    flavour: str
    summary: str
    seen: Callable[[], bool]
    apply: Callable[[], None]
    concerns: Callable[[], bool] = _always


@dataclass(frozen=True)
class Hook:
    """What gridflow adds to Keras, whatever its version.

    `name`: Its purpose.
    `install`: Puts it in.
    `concerns`: Whether this process needs it.
    """

    name: str
    install: Callable[[], None]
    concerns: Callable[[], bool] = _always


_applied: dict[str, list[Patch]] = {}
#: Imported flavours that can't be patched, with the reason.
_refused: dict[str, EnvironmentMismatch] = {}
#: Names of the bugs that were found and patched on trial before this process was forked.
_seen_ahead: set[str] = set()
_lock = threading.RLock()


def hooks_of(flavour: str) -> Any:
    """Return the module of hooks of a flavour, with Keras's backend. Imports both.

    Raises `EnvironmentMismatch`: The installed version lacks a part that the module needs.
    """
    return _module_of("hooks", flavour)


def known(flavour: str) -> tuple[Patch, ...]:
    """Return all patches of a flavour, needed or not. Imports the flavour.

    Raises `EnvironmentMismatch`: The installed version lacks a part that they need.
    """
    return tuple(_module_of("bugs", flavour).PATCHES)


def _module_of(kind: str, flavour: str) -> Any:
    name = FLAVOURS[flavour][_backend_of(flavour)]
    try:
        return importlib.import_module(f"gridflow._keras.patches.{kind}.{name}")
    except Exception as error:
        raise _misfit(flavour, f"gridflow's {kind} can't be loaded", "", error) from error


def patch_on_trial() -> list[str]:
    """Patch Keras 3, if it is imported; return the names of the bugs found.

    For a process that ends afterwards: this leaves patches, threads and a TensorFlow context
    behind. A patch that fails is left out: it will fail again in the process that needs it.
    """
    found = []
    for fix in known("keras") if "keras" in sys.modules else ():
        with contextlib.suppress(Exception):
            if fix.concerns is _always and put_in(fix):
                found.append(fix.name)
    return found


def remember(bugs: Sequence[str]) -> None:
    """Skip the probes of these Keras 3 bugs in this process and those forked from it.

    `bugs`: Names returned by `patch_on_trial`.
    """
    _seen_ahead.update(bugs)


def apply(*, with_hooks: bool = True) -> list[Patch]:
    """Patch the imported flavours of Keras now, and the others when they are imported.

    May be called any number of times. Imports neither ``keras`` nor ``tf_keras``.

    `with_hooks`: Whether to install the hooks for training functions; the first call decides.
    Returns: The applied patches of all imported flavours.
    Raises `EnvironmentMismatch`: A flavour can't be probed or patched. A later import of it raises
        the same error.
    """
    with _lock:
        if not any(isinstance(finder, _AfterImport) for finder in sys.meta_path):
            sys.meta_path.insert(0, _AfterImport(with_hooks=with_hooks))
        for package in (_TENSORFLOW, *FLAVOURS):
            # A partly imported package is patched by the finder once it is complete.
            module = sys.modules.get(package)
            if module is not None and not getattr(module.__spec__, "_initializing", False):
                _imported(package, with_hooks=with_hooks)
        return [fix for fixes in _applied.values() for fix in fixes]


def patch_keras() -> None:
    """Fix the bugs of Keras and tf_keras in this process, and train as gridflow does.

    A ``MultiWorkerMirroredStrategy`` that is created afterwards is gridflow's, in which each
    process is one replica; it exchanges gradients through TensorFlow's collective operations.

    Training functions need not call it. It is for programs that gridflow does not start, or that
    import Keras before they do anything else. Call it before or after Keras is imported, any number
    of times; it imports neither flavour itself.

    Raises
    ------
    EnvironmentMismatch
        The installed version of Keras can't be probed or patched. If Keras is imported later, that
        import raises the same error.
    """
    apply(with_hooks=False)


def _imported(package: str, *, with_hooks: bool) -> None:
    if package == _TENSORFLOW:
        from gridflow._keras.group import programs

        programs.redirect()
    else:
        _patch(package, with_hooks=with_hooks)


def _patch(flavour: str, *, with_hooks: bool) -> None:
    with _lock:
        if flavour in _refused:
            # Some patches may be applied: importing the flavour again must fail, too.
            raise EnvironmentMismatch(str(_refused[flavour])) from _refused[flavour]
        if flavour in _applied or _backend_of(flavour) not in FLAVOURS[flavour]:
            return
        _applied[flavour] = []
        _warn_of_other_versions(flavour)
        try:
            _patch_all(flavour)
            _hook_in(flavour, with_hooks=with_hooks)
        except EnvironmentMismatch as error:
            del _applied[flavour]
            _refused[flavour] = error
            raise


def _patch_all(flavour: str) -> None:
    for fix in _unless_unsafe(lambda: known(flavour)) or ():
        if _unless_unsafe(functools.partial(put_in, fix)):
            _applied[flavour].append(fix)
            _log.debug("patched in %s: %s", flavour, fix.summary)


def _hook_in(flavour: str, *, with_hooks: bool) -> None:
    module = _unless_unsafe(lambda: hooks_of(flavour))
    for hook in getattr(module, "HOOKS" if with_hooks else "OF_GROUP", ()):
        _unless_unsafe(functools.partial(_install, flavour, hook))


def _install(flavour: str, hook: Hook) -> None:
    try:
        if hook.concerns():
            hook.install()
    except Exception as error:
        raise _misfit(flavour, f"the hook {hook.name!r} can't be installed", "", error) from error


def _unless_unsafe(work: Callable[[], Any]) -> Any:
    """Do work; if the user takes the risk, only log an incompatibility."""
    try:
        return work()
    except EnvironmentMismatch as error:
        if os.environ.get(UNSAFE_VARIABLE) != "1":
            raise
        _log.error(
            "%s=1: training continues, with results that may be wrong: %s", UNSAFE_VARIABLE, error
        )
        return None


def put_in(fix: Patch) -> bool:
    """Apply a patch if its probe finds the bug; return whether it does.

    Raises `EnvironmentMismatch`: The probe or the patch fails, or the probe still finds the bug
        afterwards.
    """
    was_tried = fix.flavour == "keras" and fix.name in _seen_ahead
    try:
        is_seen = was_tried or (fix.concerns() and fix.seen())
    except Exception as error:
        what = f"the probe for {fix.name!r} failed"
        raise _misfit(fix.flavour, what, fix.summary, error) from error
    if not is_seen:
        return False
    try:
        fix.apply()
        is_left = not was_tried and fix.seen()
    except Exception as error:
        what = f"the patch for {fix.name!r} can't be applied"
        raise _misfit(fix.flavour, what, fix.summary, error) from error
    if is_left:
        raise _misfit(fix.flavour, f"the patch for {fix.name!r} has no effect", fix.summary)
    return True


def _misfit(
    flavour: str, what: str, summary: str, error: Exception | None = None
) -> EnvironmentMismatch:
    """Return the error for an incompatible version."""
    backend = _backend_of(flavour)
    extra = "tf-keras" if flavour == "tf_keras" else backend
    cause = f" ({type(error).__name__}: {_first_line(error)})" if error is not None else ""
    bug = f" Unpatched: {summary}." if summary else ""
    return EnvironmentMismatch(
        f"{flavour} {_version_of(flavour)} on {backend}: {what}{cause}.{bug} gridflow's patches "
        f"are made for {flavour} {MADE_FOR[flavour]}: pip install 'gridflow[{extra}]'. To train "
        f"anyway, with results that may be wrong, set {UNSAFE_VARIABLE}=1 (env= of the "
        "distributor). A program that needs no patches can run with patches=False."
    )


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), "")


def _warn_of_other_versions(flavour: str) -> None:
    """Warn about a release that no patch was made for; the probes decide what applies."""
    version = _version_of(flavour)
    if not f"{version}.".startswith(f"{MADE_FOR[flavour]}."):
        _log.warning(
            "this gridflow doesn't support %s %s (supported: %s): it checks for each known bug "
            "and patches those that are still there, but new bugs are unknown.",
            flavour,
            version,
            MADE_FOR[flavour],
        )


def _version_of(flavour: str) -> str:
    return str(getattr(sys.modules.get(flavour), "__version__", "(unknown version)"))


def _backend_of(flavour: str) -> str:
    if flavour != "keras":
        return "tensorflow"
    import keras

    return str(keras.backend.backend())


class _AfterImport(importlib.abc.MetaPathFinder):
    """Patches a package right after its import, so that none is imported unnecessarily."""

    def __init__(self, *, with_hooks: bool) -> None:
        self._with_hooks = with_hooks

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        """Wrap the loaders of these packages; leave everything else to other finders."""
        if fullname not in (_TENSORFLOW, *FLAVOURS):
            return None
        specs = (
            finder.find_spec(fullname, path, target)
            for finder in sys.meta_path
            if not isinstance(finder, _AfterImport) and hasattr(finder, "find_spec")
        )
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _CuringLoader(spec.loader, fullname, with_hooks=self._with_hooks)
        return spec


class _CuringLoader(importlib.abc.Loader):
    """Loads with the wrapped loader, then patches."""

    def __init__(
        self, loader: importlib.abc.Loader, package: str, *, with_hooks: bool = True
    ) -> None:
        self._loader = loader
        self._package, self._with_hooks = package, with_hooks

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        """Delegate to the wrapped loader."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Execute the package, then apply its patches."""
        # pickle, inspect and pkgutil must find the loader they know.
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        _imported(self._package, with_hooks=self._with_hooks)
