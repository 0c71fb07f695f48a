"""gridflow's own group of a job's ranks: what they agree on, and sums in the hosts' memory."""

from __future__ import annotations

import contextlib
import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from gridflow._collectives.errors import PeerGone
from gridflow._collectives.host import HostGroup
from gridflow._collectives.joining import Announcement, Joining
from gridflow._training.groups import base
from gridflow._wire.commands import Replace
from gridflow.errors import BarrierTimeout, BrokenBarrier, GridflowError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gridflow._training.process import TaskProcess

#: Beyond the heartbeat's deadline: time for the driver's word to arrive.
_NOTICE_SECONDS: Final = 5.0
#: Raised where ranks meet if one is lost.
_LOSSES: Final = (PeerGone, BrokenBarrier, BarrierTimeout)


@contextlib.contextmanager
def announced(
    process: TaskProcess,
    gpus: Sequence[str],
    view: int = 0,
    given_up: Callable[[], bool] = lambda: False,
) -> Iterator[Callable[[], tuple[HostGroup, list[list[str]]]]]:
    """Announce this rank to the others.

    `view`: The number of the group that forms, if it isn't the generation's first one.
    `given_up`: Whether to wait no longer, as another group forms.

    Yields a function that waits for all ranks, and returns their group and the GPUs of each.
    """
    host, _ = base.address(process.cluster_spec, process.rank)
    with Joining(host, base.bindable(host)) as joining:
        told = process.meetings.introduce([process.rank, list(gpus), asdict(joining.mine)], view)

        def meet() -> tuple[HostGroup, list[list[str]]]:
            everyone = told()  # some may be away
            given = process.training.distribution.communication
            ranks = [rank for rank, _, _ in everyone]
            group = joining.join(
                ranks.index(process.rank),
                [Announcement(**each) for _, _, each in everyone],
                process.spec.start_timeout,
                None if given is None else given.timeout_seconds,
                given_up,
                ranks,
            )
            return group, [each for _, each, _ in everyone]

        yield meet


def meet(process: TaskProcess, gpus: Sequence[str]) -> tuple[HostGroup, list[list[str]]] | None:
    """Return the group of all ranks, and the GPUs of each.

    None: This process is new, and joins with its first fit.
    """
    if process.regrouping is not None:
        return process.regrouping.meet(gpus)
    with announced(process, gpus) as everyone:
        return everyone()


class Groups:
    """The groups of a process, which form anew each time the driver says so."""

    def __init__(self, process: TaskProcess) -> None:
        self._process = process
        self._at, self._newest = 0, process.setup.view
        #: The newest one for which no loss need interrupt a step: who is away is in neither.
        self._at_a_step = 0
        self._limit = process.spec.deadlines.heartbeat + _NOTICE_SECONDS
        process.inbox.listen(Replace, self._hear)
        process.agreement.has_changed = lambda: self._at_a_step > self._at

    def _hear(self, told: Replace) -> None:
        self._newest = max(self._newest, told.view)
        if told.rank < 0 or told.members:
            self._at_a_step = self._newest
        self._process.inbox.look_again()
        self._process.agreement.look_again()

    def _has_changed(self) -> bool:
        return self._newest > self._at

    def first(self, gpus: Sequence[str]) -> tuple[HostGroup, list[list[str]]]:
        """Return the first group, and each rank's GPUs.

        If a rank is lost before all have met, it is as if it was lost right after that.
        """
        try:
            with announced(self._process, gpus, 0, self._has_changed) as everyone:
                return everyone()
        except _LOSSES:
            if not self._process.inbox.wait_for(self._has_changed, self._limit):
                raise
            size = self._process.num_workers
            return HostGroup.lost(self._process.rank, size), [[] for _ in range(size)]

    def next(self) -> HostGroup | None:
        """Return the next group; None: the driver doesn't say so in the time to notice a loss."""
        while self._process.inbox.wait_for(self._has_changed, self._limit):
            self._at = self._newest
            with (
                contextlib.suppress(*_LOSSES),
                announced(self._process, (), self._at, self._has_changed) as everyone,
            ):
                return everyone()[0]
        return None


def adds_up(process: TaskProcess, gpus: Sequence[Sequence[str]]) -> bool:
    """Return whether gradients are added up in the hosts' memory, alike on all ranks.

    `gpus`: Those of each rank.
    """
    given = process.training.distribution.communication
    implementation = "auto" if given is None else given.implementation
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
    is_left = implementation == "auto" and most <= 1 and (shared or not all(gpus))
    return implementation == "gridflow" or is_left


def share_cores(process: TaskProcess) -> None:
    """Give TensorFlow's operations this rank's share of the cores, unless the user chose."""
    import tensorflow as tf

    threading = tf.config.threading
    chosen = "TF_NUM_INTRAOP_THREADS" in os.environ or threading.get_intra_op_parallelism_threads()
    if not chosen:
        with contextlib.suppress(RuntimeError):  # TensorFlow has begun to compute
            threading.set_intra_op_parallelism_threads(base.cores(process))
