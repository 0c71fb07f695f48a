"""Makes fits of one driver take turns: as many run at once as Spark has task slots for.

Tuning with ``parallelism=2`` calls ``fit`` from several threads. Jobs that don't fit at the same
time would wait for each other in Spark, until one ends with a `StartTimeout`.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, Final

from gridflow._launch.spark.gpus import SparkGpuSettings
from gridflow._launch.spark.session import (
    classic_context,
    registered_executors,
    setting_of,
    task_slots,
)
from gridflow._launch.spark.slots import is_dynamic, most_slots

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    from gridflow._distributor import TensorflowDistributor

_LOOK_SECONDS: Final = 0.2
#: Prefix of the names of gridflow's stages, see `gridflow._launch.spark.session`.
_OWN_STAGES: Final = "gridflow job "
_ALL: Final = Fraction(1)
#: Slots where dynamic allocation has no limit.
_UNLIMITED: Final = (1 << 31) - 1


class Turns:
    """The running fits with their shares; others wait in order of arrival."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[object] = deque()
        self._taken = Fraction(0)

    @contextlib.contextmanager
    def take(
        self, share: Callable[[], Fraction], others: Callable[[], Fraction], patience: float
    ) -> Iterator[None]:
        """Wait until a share is free, and hold it during the block.

        `share`: Returns the needed share; more than everything counts as everything.
        `others`: Returns the share of jobs that don't take turns.
        `patience`: Seconds to wait for these, once all known fits have left room.
        """
        me = object()
        with self._changed:
            self._waiting.append(me)
            try:
                mine = self._wait(me, share, others, patience)
            finally:
                self._waiting.remove(me)
                self._changed.notify_all()
            self._taken += mine
        try:
            yield
        finally:
            with self._changed:
                self._taken -= mine
                self._changed.notify_all()

    def _wait(
        self,
        me: object,
        share: Callable[[], Fraction],
        others: Callable[[], Fraction],
        patience: float,
    ) -> Fraction:
        give_up: float | None = None
        while True:
            mine = min(share(), _ALL)
            if self._waiting[0] is me and self._taken + mine <= _ALL:
                give_up = give_up or time.monotonic() + patience
                busy = others()
                if self._taken + mine + busy <= _ALL or time.monotonic() > give_up:
                    return mine
            self._changed.wait(_LOOK_SECONDS)


_turns: Final[dict[str, Turns]] = {}
_turns_lock: Final = threading.Lock()


@contextlib.contextmanager
def turn(spark: SparkSession, distributor: TensorflowDistributor) -> Iterator[None]:
    """Wait until there are slots for the job's tasks, and hold them during the block."""
    context = classic_context(spark)
    with _turns_lock:
        turns = _turns.setdefault(context.applicationId if context else "connect", Turns())
    patience = distributor.spec.start_timeout
    with turns.take(lambda: share_of(spark, distributor), lambda: _others(spark), patience):
        yield


def share_of(spark: SparkSession, distributor: TensorflowDistributor) -> Fraction:
    """Return the fraction of the application that a job needs; all of it if unknown."""
    slots = _slots(spark)
    if slots is None:
        return _ALL
    tasks, needs = len(distributor.tasks), distributor.spec.gpus
    share = Fraction(tasks, max(slots, 1))
    look_up = partial(setting_of, spark)
    settings = SparkGpuSettings.read(look_up, is_dynamic=is_dynamic(look_up))
    amounts = [settings.taken_by(need) for need in needs]
    if settings.per_executor and any(amounts):
        each = int(settings.per_executor / max(amounts))
        fit = (registered_executors(spark) or 1) * each
        return max(share, Fraction(len([amount for amount in amounts if amount]), max(fit, 1)))
    if any(need.count for need in needs):
        return _ALL  # GPUs unknown to Spark: only the tasks find out how many are free
    return share


def _slots(spark: SparkSession) -> int | None:
    """Return how many tasks can run at once, now or later; None over Spark Connect."""
    slots, look_up = task_slots(spark), partial(setting_of, spark)
    if slots is None or not is_dynamic(look_up):
        return slots
    most = most_slots(look_up)
    return _UNLIMITED if most is None else most


def _others(spark: SparkSession) -> Fraction:
    """Return the fraction of the application that other Spark jobs currently use."""
    context, slots = classic_context(spark), _slots(spark)
    if context is None or not slots:
        return Fraction(0)
    tracker = context.statusTracker()
    stages = (tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds())
    running = sum(
        info.numActiveTasks for info in stages if info and not info.name.startswith(_OWN_STAGES)
    )
    return Fraction(running, slots)
