"""Launches a cluster's agents: in Spark tasks, detached from them, or on the driver.

Rows that Spark pushes come from other Spark tasks, which need slots. So the agents of such a
cluster release theirs (`gridflow._launch.spark.detached`).
"""

from __future__ import annotations

import os
import sys
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from gridflow._launch.base import PassesOn
from gridflow._launch.local import LocalLaunch
from gridflow._launch.spark.launch import SparkLaunch
from gridflow._launch.spark.launcher import SparkLauncher
from gridflow._spec import jvm
from gridflow._spec.cluster import PS
from gridflow._spec.gpus import group
from gridflow.compat.tfos import _setting
from gridflow.errors import GridflowError, StartTimeout

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import SparkSession

    from gridflow._handle import JobHandle
    from gridflow._launch.base import Launch, LaunchListener, Placement
    from gridflow._spec.gpus import GpuNeed
    from gridflow._wire.identity import Identity
    from gridflow._wire.payload import AgentPayload
    from gridflow.compat.tfos import reservation


class ClusterLauncher(SparkLauncher):
    """Runs agents in Spark tasks or detached from them, and parameter servers on the driver.

    `detached`: Whether agents release their task slots.
    `ps_here`: Number of parameter servers on the driver: none or all.
    `on_launch`: Called with the agents' identity, with which rows can be sent to them.
    """

    def __init__(
        self,
        spark: SparkSession,
        *,
        detached: bool,
        ps_here: int,
        on_launch: Callable[[Identity], None],
    ) -> None:
        super().__init__(spark)
        self._detached, self._ps_here, self._on_launch = detached, ps_here, on_launch

    def for_job(self) -> ClusterLauncher:
        """Return a new launcher with the same settings."""
        return ClusterLauncher(
            self._spark,
            detached=self._detached,
            ps_here=self._ps_here,
            on_launch=self._on_launch,
        )

    def place(
        self,
        num_tasks: int,
        data: Mapping[str, Any],
        start_timeout: float,
        *,
        fed: Sequence[int] | None = None,
        gpus: Sequence[GpuNeed] = (),
    ) -> Placement:
        """Place the tasks that run on Spark."""
        trained = list(range(num_tasks) if fed is None else fed)
        # Parameter servers come right after the training tasks.
        here = range(len(trained), len(trained) + self._ps_here)
        gpus = [need for place, need in enumerate(gpus) if place not in here]
        found = super().place(num_tasks - len(here), data, start_timeout, fed=trained, gpus=gpus)
        # Nodes that are fed release their slots, and other nodes are never fed.
        return replace(found, full="")

    def launch(
        self, payload: AgentPayload, data: Mapping[str, Any], listener: LaunchListener
    ) -> Launch:
        self._on_launch(payload.identity)
        tasks = payload.spec.tasks
        here = [p for p, task in enumerate(tasks) if self._ps_here and task.role == PS]
        there = [place for place in range(len(tasks)) if place not in here]
        joined = _Joined(listener, 2 if here else 1)
        parts: list[Launch] = [self._launch_on_spark(payload, there, joined)]
        if here:
            parts.append(LocalLaunch(payload, [], joined, here))
        joined.parts = parts
        return joined

    def _launch_on_spark(
        self, payload: AgentPayload, places: Sequence[int], listener: LaunchListener
    ) -> Launch:
        stages = group(places, payload.spec.gpus, together=False)
        if self._detached:
            return self._launch_detached(payload, stages, listener)
        return SparkLaunch(
            self._spark,
            payload,
            stages,
            lambda mine, need: self._agents_frame(payload, mine, None, need),
            listener,
            has_data=False,
            is_barrier=not self._is_dynamic(),
            is_dynamic=self._is_dynamic(),
        )


class _Joined(PassesOn):
    """Combines several launches into one, and listens to each of them."""

    def __init__(self, listener: LaunchListener, count: int) -> None:
        super().__init__(listener)
        self.parts: list[Launch] = []
        self._left = count
        self._lock = threading.Lock()
        self._error: GridflowError | None = None
        self._outlived = False

    def obstacle(self) -> str:
        """Return the reasons why agents aren't up yet."""
        return " ".join(filter(None, (part.obstacle() for part in self.parts)))

    def replace(self, rank: int) -> bool:
        """Refuse: a cluster of nodes ends with the first that is lost."""
        return False

    def cancel(self) -> None:
        """Stop all agents, without waiting."""
        for part in self.parts:
            part.cancel()

    def close(self) -> None:
        """Stop whatever still runs, and wait for it."""
        for part in self.parts:
            part.close()

    def launch_ended(
        self, launch: int, error: GridflowError | None, *, outlived: bool = False
    ) -> None:
        """Report the end once all launches have ended; a failed launch cancels the others."""
        with self._lock:
            self._left -= 1
            self._error = self._error or error
            self._outlived |= outlived
            is_last = not self._left
        if is_last:
            self._listener.launch_ended(launch, self._error, outlived=self._outlived)
        elif error is not None:
            self.cancel()


_LOOK_SECONDS: Final = 0.05


def keras_environment() -> dict[str, str]:
    """Return the variable that selects ``tf.keras``'s version, if it is set on the driver."""
    name = _setting.KERAS
    return {name: os.environ[name]} if name in os.environ else {}


def default_fs(sc: Any) -> str:
    """Return the default file system of Spark's Hadoop configuration, without trailing slash."""
    found = str(jvm.java_context(sc).hadoopConfiguration().get("fs.defaultFS"))
    bare = len("file://")
    return found[:-1] if found.startswith("file://") and len(found) > bare else found


def is_dynamic(sc: Any) -> bool:
    """Return whether Spark allocates executors dynamically."""
    return str(sc.getConf().get("spark.dynamicAllocation.enabled", "false")).lower() == "true"


def await_nodes(
    server: reservation.Server, handle: JobHandle, seconds: float
) -> list[dict[str, Any]]:
    """Return the nodes sorted by number, once all have registered.

    Raises `GridflowError`: If the job failed. The job has a deadline for each stage of its start,
        and its errors are more specific than a timeout here.
    """
    give_up = time.monotonic() + seconds
    while not server.reservations.done():
        if handle.done():
            handle.result()
            raise GridflowError("the cluster ended before all of its nodes had registered.")
        if time.monotonic() > give_up:
            missing = server.reservations.remaining()
            raise StartTimeout(f"{missing} nodes did not register in time (reservation_timeout).")
        time.sleep(_LOOK_SECONDS)
    return sorted(server.reservations.get(), key=lambda node: int(node["executor_id"]))


def wait_for_end(handle: JobHandle) -> None:
    """Wait until a cluster has ended, successfully or not."""
    while not handle.done():
        time.sleep(_LOOK_SECONDS)


def run_beside(handle: JobHandle, tag: str, work: Callable[[], None]) -> BaseException | None:
    """Run a Spark job while a cluster runs; return its error, or None.

    The job is cancelled if the cluster fails.

    `handle`: The cluster's handle.
    `tag`: Spark job tag, used to cancel the job.
    `work`: Runs the job.
    """
    from pyspark.sql import SparkSession

    from gridflow._launch.spark import session

    spark = SparkSession.builder.getOrCreate()
    errors: list[BaseException] = []

    def run() -> None:
        try:
            session.tag_this_thread(spark, tag)
            work()
        except BaseException as error:  # noqa: BLE001 (the caller's thread raises it)
            errors.append(error)

    thread = session.make_thread(spark, run, "gridflow-tfos-feed")
    thread.start()
    try:
        while thread.is_alive():
            thread.join(_LOOK_SECONDS)
            if handle.state == "failed":
                session.cancel(spark, tag)
    except BaseException:
        session.cancel(spark, tag)
        raise
    return errors[0] if errors else None


def is_stream(rows: Any) -> bool:
    """Return whether `rows` is a DStream, which a future pyspark may no longer have."""
    module = sys.modules.get("pyspark.streaming.dstream")
    return module is not None and isinstance(rows, module.DStream)
