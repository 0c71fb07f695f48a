"""Lets programs that import ``tensorflowonspark`` find `gridflow.compat.tfos` under that name.

In this process by a finder for imports; in Spark's Python workers and in training processes by a
module of the old name, sent along, which does the same there.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from importlib.abc import Loader, MetaPathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

_OLD: Final = "tensorflowonspark"
_NEW: Final = "gridflow.compat.tfos"
_MODULE: Final = f'''"""{_NEW}, under its old name."""

from {_NEW} import _alias

_alias.install()
'''
#: The applications that have got the module.
_reached: set[str] = set()


def install() -> None:
    """Let this process import the old name."""
    if not is_installed():
        sys.meta_path.insert(0, _Finder())
    sys.modules[_OLD] = importlib.import_module(_NEW)


def is_installed() -> bool:
    """Return whether this process imports the old name."""
    return any(isinstance(finder, _Finder) for finder in sys.meta_path)


def send_along(sc: Any) -> None:
    """Let the application's tasks import the old name, if this process does."""
    if not is_installed() or sc.applicationId in _reached:
        return
    from pyspark import SparkFiles

    # Executors fetch it when they have their first task: it stays as long as the application.
    folder = Path(SparkFiles.getRootDirectory(), "gridflow")
    folder.mkdir(exist_ok=True)
    module = folder / f"{_OLD}.py"
    module.write_text(_MODULE, encoding="utf-8")
    sc.addPyFile(str(module))
    _reached.add(sc.applicationId)


class _Finder(MetaPathFinder):
    """Finds modules of the old package."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """Return a spec that leads to the module of the new name."""
        if fullname != _OLD and not fullname.startswith(f"{_OLD}."):
            return None
        name = _NEW + fullname.removeprefix(_OLD)
        if importlib.util.find_spec(name) is None:
            return None
        return importlib.util.spec_from_loader(fullname, _Loader(name))


class _Loader(Loader):
    """Gives a module that there is already.

    Parameters
    ----------
    name : str
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module, which keeps its own name and spec."""
        module = importlib.import_module(self._name)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Give it back the spec that importing it by another name has taken."""
        module.__spec__ = self._spec
