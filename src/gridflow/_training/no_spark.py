"""Prevent Spark inside the training function: it would silently start in each task."""

from __future__ import annotations

import functools
import importlib.util
import sys
from importlib.abc import MetaPathFinder
from typing import TYPE_CHECKING, Any, Final

from gridflow.errors import GridflowError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

_MODULE: Final = "pyspark.core.context"
#: Spark's own setting to allow a SparkContext inside a task.
_ALLOW: Final = "spark.executor.allowSparkContext"


def refuse() -> None:
    """Make creating a SparkContext an error in this process, without importing Spark."""
    if _MODULE in sys.modules:
        _guard(sys.modules[_MODULE])
    else:
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    """Waits for the import of the module to change."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002 (importlib's signature)
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """Return the module's own spec, with the change applied after loading."""
        if fullname != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader.exec_module = functools.partial(  # type: ignore[method-assign]
                _execute, spec.loader.exec_module
            )
        return spec


def _execute(really: Any, module: ModuleType) -> None:
    really(module)
    _guard(module)


def _guard(module: ModuleType) -> None:
    context: Any = module.SparkContext
    begin = context.__init__

    @functools.wraps(begin)
    def refusing(self: Any, *args: Any, **kwargs: Any) -> None:
        conf = kwargs.get("conf")
        if conf is None or str(conf.get(_ALLOW, "false")).lower() != "true":
            raise GridflowError(
                "Spark can't be used inside the training function, which runs in a process beside "
                "an executor: a SparkSession created here would start another Spark in every task. "
                "Read data before run(): pass DataFrames with data=, and values as arguments. Or "
                f"let TensorFlow or pyarrow read files here. ({_ALLOW}=true lifts this.)"
            )
        begin(self, *args, **kwargs)

    context.__init__ = refusing
