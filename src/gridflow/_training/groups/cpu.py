"""gridflow's own all-reduce in the hosts' memory, for ``multi_worker_mirrored``."""

from __future__ import annotations

import contextlib
import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from gridflow._collectives.joining import Announcement, Joining
from gridflow._training.groups import base
from gridflow.errors import GridflowError

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from gridflow._training.process import TaskProcess


def join(process: TaskProcess) -> Generator[Any, None, None]:
    """Create the group of all ranks: yield once this rank is announced, then yield the group.

    The group is None if TensorFlow's own collective operations are used.
    """
    import tensorflow as tf

    given = process.training.distribution.communication
    implementation = "auto" if given is None else given.implementation
    host, _ = base.address(process.cluster_spec, process.rank)
    gpus = base.own_gpus(len(tf.config.list_physical_devices("GPU")))
    with contextlib.ExitStack() as stack:
        joining, mine = None, None
        if implementation in {"auto", "gridflow"}:
            joining = stack.enter_context(Joining(process.rank, host, base.bindable(host)))
            mine = asdict(joining.mine)
        told = process.meetings.introduce([gpus, mine])
        yield None
        everyone = told()
        wanted = _is_wanted(implementation, [each for each, _ in everyone])
        if joining is None or not wanted:
            yield None
            return
        seconds = process.spec.start_timeout
        limit = None if given is None else given.timeout_seconds
        yield joining.join([Announcement(**each) for _, each in everyone], seconds, limit)


def _is_wanted(implementation: str, gpus: Sequence[Sequence[str]]) -> bool:
    """Decide, from the GPUs of each rank, alike on all ranks."""
    shared = base.share_gpus(gpus)
    if implementation == "nccl" and shared:
        raise GridflowError(
            "CommunicationOptions(implementation='nccl') needs a GPU for each worker, but some "
            "share one: use gpus=1, or let gridflow choose ('auto')."
        )
    most = max(len(each) for each in gpus)
    if implementation == "gridflow" and most > 1:
        raise GridflowError(
            "CommunicationOptions(implementation='gridflow') is for workers with one GPU or none, "
            f"and one has {most}: use gpus=1, or let gridflow choose ('auto')."
        )
    # NCCL, which TensorFlow chooses, needs a GPU for each rank.
    return implementation == "gridflow" or (most <= 1 and (shared or not all(gpus)))


def share_cores(process: TaskProcess) -> None:
    """Give TensorFlow's operations this rank's share of the cores, unless the user chose."""
    import tensorflow as tf

    threading = tf.config.threading
    chosen = "TF_NUM_INTRAOP_THREADS" in os.environ or threading.get_intra_op_parallelism_threads()
    if not chosen:
        with contextlib.suppress(RuntimeError):  # TensorFlow has begun to compute
            threading.set_intra_op_parallelism_threads(base.cores(process))
