"""gridflow's own all-reduce on CPUs, for ``multi_worker_mirrored``."""

from __future__ import annotations

import contextlib
import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from gridflow._collectives.joining import Announcement, Joining
from gridflow._training.groups import base
from gridflow.errors import GridflowError

if TYPE_CHECKING:
    from collections.abc import Generator

    from gridflow._training.process import TaskProcess


def join(process: TaskProcess) -> Generator[Any, None, None]:
    """Create the group of all ranks: yield once this rank is announced, then yield the group.

    The group is None if TensorFlow's own collective operations are used.
    """
    given = process.training.distribution.communication
    host, _ = base.address(process.cluster_spec, process.rank)
    if not _is_wanted(process):
        told = process.meetings.introduce(None)
        yield None
        told()
        yield None
        return
    with Joining(process.rank, host, base.bindable(host)) as joining:
        told = process.meetings.introduce(asdict(joining.mine))
        yield None
        everyone = told()
        if any(each is None for each in everyone):
            yield None
            return
        seconds = process.spec.start_timeout
        limit = None if given is None else given.timeout_seconds
        yield joining.join([Announcement(**each) for each in everyone], seconds, limit)


def _is_wanted(process: TaskProcess) -> bool:
    import tensorflow as tf

    given = process.training.distribution.communication
    implementation = "auto" if given is None else given.implementation
    if implementation not in {"auto", "gridflow"}:
        return False
    has_gpus = bool(tf.config.list_physical_devices("GPU"))
    if has_gpus and implementation == "gridflow":
        raise GridflowError(
            "CommunicationOptions(implementation='gridflow') is for CPUs, and this task has GPUs: "
            "use 'nccl', or let gridflow choose ('auto')."
        )
    return not has_gpus


def share_cores(process: TaskProcess) -> None:
    """Give TensorFlow's operations this rank's share of the cores, unless the user chose."""
    import tensorflow as tf

    threading = tf.config.threading
    chosen = "TF_NUM_INTRAOP_THREADS" in os.environ or threading.get_intra_op_parallelism_threads()
    if not chosen:
        with contextlib.suppress(RuntimeError):  # TensorFlow has begun to compute
            threading.set_intra_op_parallelism_threads(base.cores(process))
