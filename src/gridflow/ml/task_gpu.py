"""The GPU that Spark has assigned to a task, for a model in a Spark Python worker."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any, Final

from gridflow._gpu import devices
from gridflow._spec.gpus import VISIBLE
from gridflow.errors import GridflowError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

#: The GPUs made visible to this process; CUDA checks only once.
_shown: Final[list[str]] = []


@contextlib.contextmanager
def device(kind: str) -> Iterator[int | None]:
    """Yield the index of the task's GPU among those of this process; None: no GPU.

    A Spark Python worker serves tasks with different GPUs, but CUDA reads its variables only once.
    So the process sees all GPUs of its host, with memory allocated on demand, and each task's model
    is loaded onto the task's GPU. A function can't be told which one to use, so it sees only that
    GPU.

    Raises `GridflowError`: The GPU doesn't exist, or this process already uses another one.
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    granted = context.resources().get("gpu") if context is not None else None
    addresses = granted.addresses if granted is not None else []
    first = devices.first_environment()
    if not addresses:
        if VISIBLE not in first:  # otherwise chosen when the executors were started
            os.environ[VISIBLE] = "-1"
        yield None
        return
    os.environ |= {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    }
    every = [] if kind == "function" else _every_gpu()
    if not every:
        _show(addresses[0])
        yield 0
        return
    seen = devices.visible(every, first.get(VISIBLE))
    own = devices.visible(every, addresses[0])
    if len(own) != 1 or own[0] not in seen:
        raise GridflowError(
            f"Spark assigned the GPU {addresses[0]} to this task, but its host doesn't have or "
            f"hides it: there are {', '.join(str(device.index) for device in seen) or 'none'}."
        )
    _show(",".join(str(device.index) for device in seen))
    yield seen.index(own[0])


def _every_gpu() -> list[devices.Device]:
    try:
        return devices.find()
    except devices.NoAnswer:
        return []


def _show(gpus: str) -> None:
    if _shown and _shown[0] != gpus:
        raise GridflowError(
            f"this Spark Python worker already uses the GPU {_shown[0]} for another task and can't "
            f"change to {gpus}. Start the application with spark.python.worker.reuse=false, or "
            "with one GPU for each executor."
        )
    _shown[:] = [gpus]
    os.environ[VISIBLE] = gpus


def scope(kind: str, index: int | None) -> Callable[[], AbstractContextManager[Any]]:
    """Return a context that places a model and its computations on a GPU."""
    if index is None:
        return contextlib.nullcontext
    if kind == "keras":
        import keras

        return lambda: keras.device(f"gpu:{index}")
    import tensorflow as tf

    return lambda: tf.device(f"/GPU:{index}")
