"""gridflow's own all-reduce in the hosts' memory, for TensorFlow and torch."""

from __future__ import annotations

import contextlib
import os
from dataclasses import asdict
from typing import TYPE_CHECKING

from gridflow._collectives.joining import Announcement, Joining
from gridflow._training.groups import base
from gridflow.errors import GridflowError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gridflow._collectives.host import HostGroup
    from gridflow._training.process import TaskProcess


@contextlib.contextmanager
def announced(
    process: TaskProcess, gpus: Sequence[str]
) -> Iterator[Callable[[], tuple[HostGroup | None, list[list[str]]]]]:
    """Announce this rank to the others.

    Yields
    ------
    callable
        Waits for all ranks. Returns their group, or None if the backend's own collective operations
        are used, and the GPUs of each rank.
    """
    given = process.training.distribution.communication
    implementation = "auto" if given is None else given.implementation
    host, _ = base.address(process.cluster_spec, process.rank)
    with contextlib.ExitStack() as stack:
        joining, mine = None, None
        if implementation in {"auto", "gridflow"}:
            joining = stack.enter_context(Joining(process.rank, host, base.bindable(host)))
            mine = asdict(joining.mine)
        told = process.meetings.introduce([list(gpus), mine])

        def meet() -> tuple[HostGroup | None, list[list[str]]]:
            everyone = told()
            theirs = [each for each, _ in everyone]
            if not _is_wanted(implementation, theirs) or joining is None:
                return None, theirs
            seconds = process.spec.start_timeout
            limit = None if given is None else given.timeout_seconds
            announcements = [Announcement(**each) for _, each in everyone]
            return joining.join(announcements, seconds, limit), theirs

        yield meet


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
