"""Watches Spark's executors during a launch: new ones, those being decommissioned, and lost ones.

Where the launch could have more tasks, it asks for executors, and says when there are slots.

There is no public notification: a listener would need Java to call Python. So this polls the driver
once a second, which Spark Connect can't do.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any, Final

from gridflow._launch.spark.session import classic_context, make_thread, task_slots
from gridflow._launch.spark.slots import ask_for_slots, tasks_of_others
from gridflow._spec import jvm

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

    from gridflow._launch.base import LaunchListener

_LOOK_SECONDS: Final = 1.0
_CLOSE_SECONDS: Final = 10.0


class ClusterWatch:
    """Tells a listener about new executors, and about agents whose executors will go.

    `tag`: Of the launch's own jobs.
    `is_dynamic`: Whether executors can be added while tasks wait for them.
    `tells_lost`: Whether to tell of lost executors: their tasks start again.
    """

    def __init__(
        self,
        spark: SparkSession,
        launch: int,
        tag: str,
        listener: LaunchListener,
        *,
        is_dynamic: bool,
        tells_lost: bool,
    ) -> None:
        self._spark, self._launch, self._listener = spark, launch, listener
        self._is_dynamic, self._tells_lost = is_dynamic, tells_lost
        self._tag = tag
        self._slots: int | None = None
        self._is_exact = False
        self._has_asked = False
        self._told: set[int] = set()
        self._lost: set[str] = set()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        if classic_context(spark) is not None:
            self._thread = make_thread(spark, self._watch, f"gridflow-executors-{launch}")
            self._thread.start()

    def stop(self) -> None:
        """Stop watching; return at once."""
        self._stopped.set()

    def close(self) -> None:
        """Stop watching, and wait for the thread."""
        self.stop()
        if self._thread is not None:
            self._thread.join(_CLOSE_SECONDS)

    def _watch(self) -> None:
        from py4j.protocol import Py4JError, Py4JNetworkError

        # Errors of a stopped session don't matter here: the end of the launch reports them.
        with contextlib.suppress(Py4JError, Py4JNetworkError, OSError, AttributeError):
            while not self._stopped.wait(_LOOK_SECONDS):
                more = self._listener.could_use(self._launch)
                if self._is_dynamic and more and not self._has_asked:
                    self._has_asked = True
                    ask_for_slots(self._spark, more)
                if self._is_dynamic or more:
                    self._look_for_slots(is_exact=more > 0)
                executors = self._listener.executors(self._launch)
                self._look_for_leaving(executors)
                if self._tells_lost and executors:
                    self._look_for_lost(executors)

    def _look_for_slots(self, *, is_exact: bool) -> None:
        """Tell how many there are; also for tasks of other jobs, unless it must be exact."""
        slots = task_slots(self._spark) or 0
        if is_exact != self._is_exact:
            self._is_exact, self._slots = is_exact, None
        if is_exact:
            slots -= tasks_of_others(self._spark, self._tag)
        if self._is_dynamic:  # Spark releases what nobody uses yet, and will ask for it again
            slots = max(slots, self._slots or 0)
        if slots != self._slots and (is_exact or self._slots is not None):
            self._listener.slots_came(self._launch, slots)
        self._slots = slots

    def _look_for_leaving(self, executors: Mapping[int, str]) -> None:
        ranks: dict[str, list[int]] = {}
        for rank, executor in executors.items():
            if rank not in self._told:
                ranks.setdefault(executor, []).append(rank)
        for executor, mine in ranks.items():
            why = leaves(self._spark, executor)
            if why is None:
                continue
            for rank in mine:
                self._told.add(rank)
                self._listener.agent_leaving(self._launch, rank, why)

    def _look_for_lost(self, executors: Mapping[int, str]) -> None:
        there = jvm.scala_context(classic_context(self._spark)).getExecutorIds()
        for executor in set(executors.values()) - self._lost:
            if not there.contains(executor):
                self._lost.add(executor)
                self._listener.executor_lost(self._launch, executor)


def leaves(spark: SparkSession, executor: str) -> str | None:
    """Return a description if Spark decommissions an executor, otherwise None."""
    scheduler: Any = jvm.scala_context(classic_context(spark)).taskScheduler()
    state = scheduler.getExecutorDecommissionState(executor)
    return f"its executor {executor} is being decommissioned" if state.isDefined() else None
