"""One launch on Spark: its jobs, each in its own thread, until the last of them has ended."""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from gridflow._launch.spark import errors
from gridflow._launch.spark.session import (
    ask_for_executors,
    cancel,
    make_thread,
    name_this_thread,
    tag_this_thread,
)
from gridflow._launch.spark.slots import wait_for_room, what_runs
from gridflow._launch.spark.watch import ClusterWatch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from gridflow._launch.base import LaunchListener
    from gridflow._spec.gpus import GpuNeed
    from gridflow._wire.payload import AgentPayload
    from gridflow.errors import GridflowError

_CLOSE_SECONDS: Final = 20.0
#: A job submitted just after its siblings were cancelled is cancelled the next time.
_CANCEL_AGAIN_SECONDS: Final = 0.5


class SparkLaunch:
    """The Spark jobs of one launch. If one stage ends, the others end, too.

    `stages` (sequence of (places, GpuNeed)): The tasks of each stage.
    `make_frame`: Returns the DataFrame whose last stage runs these agents.
    `has_data`: Whether Spark computes the user's rows.
    `is_barrier`: Whether the stages are barrier stages, whose tasks all end with one of them.
        Otherwise Spark starts a task again that is lost.
    `is_dynamic`: Whether executors come and go.
    `check`: Called before the first stage, as part of the launch; its error ends the launch.
    """

    def __init__(
        self,
        spark: SparkSession,
        payload: AgentPayload,
        stages: Sequence[tuple[tuple[int, ...], GpuNeed]],
        make_frame: Callable[[tuple[int, ...], GpuNeed], DataFrame],
        listener: LaunchListener,
        *,
        has_data: bool,
        is_barrier: bool,
        is_dynamic: bool = False,
        check: Callable[[], None] | None = None,
    ) -> None:
        self._spark, self._payload, self._listener = spark, payload, listener
        self._make_frame, self._has_data, self._is_barrier = make_frame, has_data, is_barrier
        self._is_dynamic = is_dynamic
        self._check, self._first = check, stages[0][0]
        self._tag = f"gridflow-{payload.job}-{payload.launch}"
        self._lock = threading.Lock()
        self._began = time.monotonic()
        self._left = len(stages)
        self._error: GridflowError | None = None
        self._outlived = False
        self._is_cancelled = False
        self._all_ended = threading.Event()
        self._canceller: threading.Thread | None = None
        self._jobs = [
            make_thread(spark, partial(self._run, places, need), self._tag)
            for places, need in stages
        ]
        self._watch = ClusterWatch(
            spark,
            payload.launch,
            self._tag,
            listener,
            is_dynamic=is_dynamic,
            tells_lost=payload.spec.max_replacements > 0 and not is_barrier,
        )
        for job in self._jobs:
            job.start()

    def obstacle(self) -> str:
        """Return what Spark runs instead of the launch's tasks."""
        return what_runs(
            self._spark,
            self._tag,
            len(self._payload.spec.tasks),
            time.monotonic() - self._began,
        )

    def replace(self, rank: int) -> bool:  # noqa: ARG002 (as of other launches)
        """Let Spark start the task again, which it does by itself while its stage runs."""
        return not (self._is_barrier or self._is_cancelled or self._all_ended.is_set())

    def cancel(self) -> None:
        """Cancel the Spark jobs; return at once."""
        self._watch.stop()
        with self._lock:
            self._is_cancelled = True
            if self._canceller is not None or self._all_ended.is_set():
                return
            name = f"{self._tag}-cancel"
            self._canceller = make_thread(self._spark, self._cancel_until_all_have_ended, name)
            self._canceller.start()

    def close(self) -> None:
        """Cancel what still runs, and wait for it."""
        self.cancel()
        for thread in (*self._jobs, self._canceller):
            if thread is not None:
                thread.join(_CLOSE_SECONDS)
        self._watch.close()

    def _cancel_until_all_have_ended(self) -> None:
        cancel(self._spark, self._tag)
        while not self._all_ended.wait(_CANCEL_AGAIN_SECONDS):
            cancel(self._spark, self._tag)

    def _run(self, places: tuple[int, ...], need: GpuNeed) -> None:
        error, outlived = self._run_job(places, need)
        with self._lock:
            self._left -= 1
            self._error = self._error or error
            self._outlived |= outlived
            is_last = not self._left
        if is_last:
            self._watch.stop()
            self._all_ended.set()
            self._listener.launch_ended(self._payload.launch, self._error, outlived=self._outlived)
        elif error is not None:
            self.cancel()

    def _run_job(self, places: tuple[int, ...], need: GpuNeed) -> tuple[GridflowError | None, bool]:
        """Return the error of a Spark job, and whether its tasks may have outlived it."""
        launch = self._payload.launch
        try:
            tag_this_thread(self._spark, self._tag)
            name_this_thread(self._spark, f"gridflow job {self._payload.job}")
            if self._check is not None and places == self._first:
                self._check()
            if self._is_dynamic:
                ask_for_executors(self._spark, is_dynamic=True)
            elif launch > 1:
                wait_for_room(self._spark, len(places), lambda: self._is_cancelled)
            if self._is_cancelled:
                return None, False
            # Spark jobs that the rows need before their last stage also run here.
            frame = self._make_frame(places, need)
            frame.write.format("noop").mode("overwrite").save()
        except Exception as caught:  # noqa: BLE001 (Py4J's, Connect's and Spark's own differ)
            partition, detail, error = errors.explain(
                caught,
                len(places),
                has_data=self._has_data and places[0] in self._payload.spec.fed,
                was_cancelled=self._is_cancelled,
                is_barrier=self._is_barrier,
                agents_ran=self._listener.has_agents(launch),
            )
            if partition is not None and partition < len(places):
                self._listener.agent_lost(launch, places[partition], detail)
            if error is not None:
                error.__cause__ = caught
            return error, True
        return None, False
