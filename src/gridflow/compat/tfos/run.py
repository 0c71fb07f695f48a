"""Run an unchanged TensorFlowOnSpark program.

::

    python -m gridflow.compat.tfos.run program.py --its --own arguments
    spark-submit --master spark://… $(python -m gridflow.compat.tfos.run --path) program.py …

Imports from ``tensorflowonspark`` resolve to `gridflow.compat.tfos` on the driver, in Spark tasks
and on the nodes. Such programs were written for Keras 2, so ``tf.keras`` is ``tf_keras`` if that is
installed and ``TF_USE_LEGACY_KERAS`` isn't set.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Final

_KERAS: Final = "TF_USE_LEGACY_KERAS"
_USAGE: Final = "usage: python -m gridflow.compat.tfos.run PROGRAM [ARGUMENT ...]"


def main(words: list[str]) -> None:
    """Run a program: the first word is its path, and the others are its arguments."""
    if words == ["--path"]:
        sys.stdout.write(f"{Path(__file__).resolve()}\n")
        return
    if not words or words[0] in {"-h", "--help"}:
        sys.stdout.write(f"{_USAGE}\n")
        sys.exit(0 if words else 2)
    program = Path(words[0])
    if not program.is_file():
        sys.exit(f"gridflow: no such program: {words[0]!r} (in {Path.cwd()}).\n{_USAGE}")
    if importlib.util.find_spec("tf_keras") is not None:
        os.environ.setdefault(_KERAS, "1")
    from gridflow.compat.tfos import _alias

    _alias.install()
    path = program.resolve()
    sys.argv = [str(program), *words[1:]]
    # Put the program's folder first on the path, as if Python had been started with the program.
    if sys.path and Path(sys.path[0] or ".").resolve() in {Path.cwd(), Path(__file__).parent}:
        del sys.path[0]
    sys.path.insert(0, str(path.parent))
    namespace = sys.modules["__main__"].__dict__
    namespace.update(__file__=str(path), __name__="__main__", __spec__=None)
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), namespace)  # noqa: S102 (the user's own)


if __name__ == "__main__":
    main(sys.argv[1:])
