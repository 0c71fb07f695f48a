"""Builds the exchange in C, beside its sources: ``python build.py``, with a C compiler.

It needs no packages. What is built runs with every version of Python, and with every TensorFlow
that has the C API for operations. The wheel that holds it is still one for all systems: elsewhere
it isn't used.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

#: The names of the libraries end with what they are built for.
SUFFIX = f".{sys.platform}-{platform.machine()}.so"
#: By library, the sources.
LIBRARIES = {
    "exchange": ("exchange.c",),
    "exchange_tensorflow": ("exchange.c", "tensorflow.c"),
}
_HERE = Path(__file__).parent
_FLAGS = "-std=c11 -D_GNU_SOURCE -O3 -ffp-contract=off -fPIC -shared -pthread -Wall -Wextra -s"
#: A process that loads the operation has loaded this one, with all that it refers to.
_TENSORFLOW = "libtensorflow_framework.so.2"


def build() -> list[Path]:
    """Build the libraries; return their paths: none without a compiler, or not on Linux."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None or sys.platform != "linux":
        return []
    found = []
    with tempfile.TemporaryDirectory() as folder:
        stub = [f"-Wl,-soname,{_TENSORFLOW}", "-shared", "-x", "c", "/dev/null"]
        subprocess.run([compiler, *stub, "-o", Path(folder, _TENSORFLOW)], check=True)
        for name, sources in LIBRARIES.items():
            target = _HERE / (name + SUFFIX)
            needs = f"-Wl,--no-as-needed -L{folder} -l:{_TENSORFLOW}".split()
            command = [compiler, *_FLAGS.split(), *sources, "-o", str(Path(folder, name))]
            command += needs if "tensorflow.c" in sources else []
            subprocess.run(command, cwd=_HERE, check=True)
            shutil.copy(Path(folder, name), target.with_suffix(".new"))
            target.with_suffix(".new").replace(
                target
            )  # processes keep the one that they have loaded
            found.append(target)
    return found


if __name__ == "__main__":
    if not build():
        sys.stderr.write("No C compiler (CC, cc): ranks exchange gradients through Python.\n")
