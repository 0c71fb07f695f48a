"""How the agents of a cluster come to life: in Spark tasks, detached from them, or in the driver.

Rows that Spark pushes come by other Spark tasks, which need the slots: the agents of such a cluster
give theirs back (`gridflow._launch.spark.detached`).
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gridflow._launch.base import PassesOn
from gridflow._launch.local import LocalLaunch
from gridflow._launch.spark.launch import SparkLaunch
from gridflow._launch.spark.launcher import SparkLauncher
from gridflow._spec.gpus import group
from gridflow._spec.roles import PS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import SparkSession

    from gridflow._launch.base import Launch, LaunchListener, Placement
    from gridflow._spec.gpus import GpuNeed
    from gridflow._wire.payload import AgentPayload
    from gridflow.errors import GridflowError


class ClusterLauncher(SparkLauncher):
    """Runs agents detached from Spark's tasks, and parameter servers in the driver, if asked to.

    Parameters
    ----------
    spark : SparkSession
    detached : bool
    ps_here : int
        How many parameter servers run in the driver: none, or all.
    """

    def __init__(self, spark: SparkSession, *, detached: bool, ps_here: int) -> None:
        super().__init__(spark)
        self._detached, self._ps_here = detached, ps_here

    def for_job(self) -> ClusterLauncher:
        """Return one for the same session, which has launched nothing."""
        return ClusterLauncher(self._spark, detached=self._detached, ps_here=self._ps_here)

    def place(
        self,
        num_tasks: int,
        data: Mapping[str, Any],
        start_timeout: float,
        *,
        fed: Sequence[int] | None = None,
        gpus: Sequence[GpuNeed] = (),
    ) -> Placement:
        """Count the slots of those tasks that Spark runs."""
        trained = list(range(num_tasks) if fed is None else fed)
        # Parameter servers come right behind the tasks that train.
        here = range(len(trained), len(trained) + self._ps_here)
        gpus = [need for place, need in enumerate(gpus) if place not in here]
        found = super().place(num_tasks - len(here), data, start_timeout, fed=trained, gpus=gpus)
        # Nodes that are fed give their slots back, and others are never fed.
        return replace(found, full="")

    def launch(
        self, payload: AgentPayload, data: Mapping[str, Any], listener: LaunchListener
    ) -> Launch:
        """Start the agents."""
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
        )


class _Joined(PassesOn):
    """Several launches as one; and the listener of each.

    Parameters
    ----------
    listener : LaunchListener
    count : int
    """

    def __init__(self, listener: LaunchListener, count: int) -> None:
        super().__init__(listener)
        self.parts: list[Launch] = []
        self._left = count
        self._lock = threading.Lock()
        self._error: GridflowError | None = None
        self._outlived = False

    def obstacle(self) -> str:
        """Return what keeps agents from coming up."""
        return " ".join(filter(None, (part.obstacle() for part in self.parts)))

    def cancel(self) -> None:
        """End all agents; returns at once."""
        for part in self.parts:
            part.cancel()

    def close(self) -> None:
        """End what still runs, and wait for it."""
        for part in self.parts:
            part.close()

    def launch_ended(
        self, launch: int, error: GridflowError | None, *, outlived: bool = False
    ) -> None:
        """Pass it on for the last; one that failed ends the others."""
        with self._lock:
            self._left -= 1
            self._error = self._error or error
            self._outlived |= outlived
            is_last = not self._left
        if is_last:
            self._listener.launch_ended(launch, self._error, outlived=self._outlived)
        elif error is not None:
            self.cancel()
