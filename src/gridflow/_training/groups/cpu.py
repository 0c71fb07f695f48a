"""gridflow's own group of a job's ranks: what they agree on, and sums in the hosts' memory."""

from __future__ import annotations

import contextlib
import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from gridflow._collectives.errors import PeerGone
from gridflow._collectives.joining import Announcement, Joining
from gridflow._training.groups import base
from gridflow._wire.commands import Replace
from gridflow.errors import BarrierTimeout, BrokenBarrier, GridflowError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gridflow._collectives.host import HostGroup
    from gridflow._training.process import TaskProcess

#: Beyond the heartbeat's deadline: time for the driver's word to arrive.
_NOTICE_SECONDS: Final = 5.0


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


def former(process: TaskProcess) -> Callable[[], HostGroup | None]:
    """Return a function that forms the group again, each time after the driver has changed it.

    It returns None if the driver doesn't say so within the time in which it notices a loss.
    """
    inbox, at, newest = process.inbox, 0, process.setup.view
    #: The newest one for which no loss need interrupt a step: who is away is in neither of them.
    at_a_step = 0
    limit = process.spec.deadlines.heartbeat + _NOTICE_SECONDS

    def hear(told: Replace) -> None:
        nonlocal newest, at_a_step
        newest = max(newest, told.view)
        if told.rank < 0 or told.members:
            at_a_step = newest
        inbox.look_again()
        process.agreement.look_again()

    def has_changed() -> bool:
        return newest > at

    inbox.listen(Replace, hear)
    process.agreement.has_changed = lambda: at_a_step > at

    def form() -> HostGroup | None:
        nonlocal at
        while inbox.wait_for(has_changed, limit):
            at = newest
            # Another rank may be lost meanwhile.
            with (
                contextlib.suppress(PeerGone, BrokenBarrier, BarrierTimeout),
                announced(process, (), at, has_changed) as meet,
            ):
                return meet()[0]
        return None

    return form


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
