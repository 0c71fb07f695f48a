"""Makes `gridflow.compat.tfos` importable as ``tensorflowonspark``.

Uses an import finder in this process. Spark's Python workers and training processes receive a
module with the old name, which installs the finder there.
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
#: Ids of the applications that have received the module.
_reached: set[str] = set()


def install() -> None:
    """Make the old name importable in this process."""
    if not is_installed():
        sys.meta_path.insert(0, _Finder())
    sys.modules[_OLD] = importlib.import_module(_NEW)


def is_installed() -> bool:
    """Return whether the old name is importable in this process."""
    return any(isinstance(finder, _Finder) for finder in sys.meta_path)


def send_along(sc: Any) -> None:
    """Make the old name importable in the application's tasks, if it is in this process."""
    if not is_installed() or sc.applicationId in _reached:
        return
    from pyspark import SparkFiles

    # Executors fetch the file with their first task, so it must last as long as the application.
    folder = Path(SparkFiles.getRootDirectory(), "gridflow")
    folder.mkdir(exist_ok=True)
    module = folder / f"{_OLD}.py"
    module.write_text(_MODULE, encoding="utf-8")
    sc.addPyFile(str(module))
    _reached.add(sc.applicationId)


class _Finder(MetaPathFinder):
    """Finds modules by their old names."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """Return a spec that loads the module of the new name."""
        if fullname != _OLD and not fullname.startswith(f"{_OLD}."):
            return None
        name = _NEW + fullname.removeprefix(_OLD)
        if importlib.util.find_spec(name) is None:
            return None
        return importlib.util.spec_from_loader(fullname, _Loader(name))


class _Loader(Loader):
    """Loads an existing module."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module, which keeps its own name and spec."""
        module = importlib.import_module(self._name)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Restore the module's own spec, which the import machinery has replaced."""
        module.__spec__ = self._spec
