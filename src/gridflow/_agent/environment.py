"""An agent's host: versions, addresses, and a port to hold."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import socket
import sys
from typing import Final

from gridflow._spec.backends import BACKENDS

#: TensorFlow has several package names, which install the same module.
_TENSORFLOW_PACKAGES: Final = (
    "tensorflow",
    "tensorflow-cpu",
    "tensorflow-rocm",
    "tensorflow-intel",
    "tf-nightly",
    "tf-nightly-cpu",
)


def describe() -> dict[str, str]:
    """Return the versions that all tasks must agree on, without importing the packages."""
    return {
        "python": platform.python_version(),
        "executable": sys.executable,
        "gridflow": importlib.metadata.version("gridflow"),
        "tensorflow": _version("tensorflow", _TENSORFLOW_PACKAGES),
        "keras": _version("keras", ("keras", "keras-nightly")),
        **{name: _version(name, (name,)) for name in BACKENDS if name != "tensorflow"},
    }


def _version(module: str, packages: tuple[str, ...]) -> str:
    if importlib.util.find_spec(module) is None:
        return ""
    for package in packages:
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "unknown"


def hold_port() -> tuple[socket.socket, int]:
    """Return a socket that keeps a free port for TensorFlow, and the port.

    It is bound, but doesn't listen. With SO_REUSEPORT on both sides (``TF_GRPC_REUSE_PORT=1`` for
    TensorFlow), TensorFlow can bind the same port, and no one else can take it in between.
    """
    holder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    holder.bind(("", 0))
    return holder, int(holder.getsockname()[1])
