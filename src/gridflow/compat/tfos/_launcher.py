"""How the agents of a cluster come to life: in Spark tasks, detached from them, or in the driver.

Rows that Spark pushes come by other Spark tasks, which need the slots: the agents of such a cluster
give theirs back (`gridflow.compat.tfos._detached`).
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from typing import TYPE_CHECKING, Any

import msgspec

from gridflow.compat.tfos import _door
from gridflow.compat.tfos._detached import BYE, END, END_SECONDS, Line
from gridflow.launch.local import LocalLaunch
from gridflow.launch.spark.launch import SparkLaunch
from gridflow.launch.spark.launcher import SparkLauncher
from gridflow.spec.cluster import PS
from gridflow.spec.gpus import group

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from gridflow.compat.tfos._door import Connection
    from gridflow.errors import GridflowError
    from gridflow.launch.base import Launch, LaunchListener, Placement
    from gridflow.spec.gpus import GpuNeed
    from gridflow.spec.options import Deadlines
    from gridflow.wire.payload import AgentPayload


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
        deadlines: Deadlines,
        *,
        fed: Sequence[int] | None = None,
        gpus: Sequence[GpuNeed] = (),
        wait: bool = True,
    ) -> Placement:
        """Count the slots of those tasks that Spark runs."""
        trained = list(range(num_tasks) if fed is None else fed)
        # Parameter servers come right behind the tasks that train.
        here = range(len(trained), len(trained) + self._ps_here)
        gpus = [need for place, need in enumerate(gpus) if place not in here]
        return super().place(
            num_tasks - len(here), data, deadlines, fed=trained, gpus=gpus, wait=wait
        )

    def launch(  # type: ignore[override]
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
            host, _ = self._driver_addresses()
            return _DetachedLaunch(self._spark, payload, stages, self._frame_of, listener, host)
        return SparkLaunch(
            self._spark,
            payload,
            stages,
            lambda mine, need: self._agents_frame(payload, mine, None, need),
            listener,
            has_data=False,
            is_barrier=not self._is_dynamic(),
        )

    def _frame_of(
        self, body: Callable[..., Any], places: tuple[int, ...], need: GpuNeed
    ) -> DataFrame:
        """Return the DataFrame whose tasks start the agents."""
        frame = self._spark.range(0, len(places), 1, len(places))
        return self._stage(frame, body, need)


class _Joined:
    """Several launches as one; and the listener of each.

    Parameters
    ----------
    listener : LaunchListener
    count : int
    """

    def __init__(self, listener: LaunchListener, count: int) -> None:
        self.parts: list[Launch] = []
        self._listener, self._left = listener, count
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

    def agent_lost(self, launch: int, rank: int, detail: str) -> None:
        """Pass it on."""
        self._listener.agent_lost(launch, rank, detail)

    def has_agents(self, launch: int) -> bool:
        """Ask the listener."""
        return self._listener.has_agents(launch)

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


class _DetachedLaunch:
    """Agents without Spark tasks; the listener of the Spark job that starts them."""

    def __init__(
        self,
        spark: SparkSession,
        payload: AgentPayload,
        stages: Sequence[tuple[tuple[int, ...], GpuNeed]],
        frame_of: Callable[[Callable[..., Any], tuple[int, ...], GpuNeed], DataFrame],
        listener: LaunchListener,
        host: str,
    ) -> None:
        self._payload, self._listener = payload, listener
        self._changed = threading.Condition()
        self._lines: dict[int, Connection] = {}
        self._is_started = self._is_cancelled = self._is_over = False
        self._missing = {place for places, _ in stages for place in places}
        key, socket = secrets.token_bytes(32), _door.listen(host)
        port = int(socket.getsockname()[1])
        advertised = payload.coordinator.rpartition(":")[0].strip("[]")
        line = Line((advertised, port), key)
        self._door = _door.Door(socket, key, self._hold)

        def make_frame(places: tuple[int, ...], need: GpuNeed) -> DataFrame:
            return frame_of(_starter(payload, places, line), places, need)

        self._starting = SparkLaunch(
            spark, payload, stages, make_frame, self, has_data=False, is_barrier=True
        )

    def obstacle(self) -> str:
        """Return what Spark runs instead of the tasks that start the agents."""
        return "" if self._is_started else self._starting.obstacle()

    def cancel(self) -> None:
        """Tell the agents to end; returns at once."""
        with self._changed:
            self._is_cancelled = True
            lines = list(self._lines.values())
        for line in lines:
            with contextlib.suppress(OSError):
                line.send_bytes(END)
        if not self._is_started:
            self._starting.cancel()

    def close(self) -> None:
        """End what still runs, and wait for it."""
        self.cancel()
        with self._changed:
            self._changed.wait_for(lambda: not self._lines, END_SECONDS)
        self._starting.close()
        self._door.close()

    # The listener of the job that starts the agents ----------------------------------------------

    def agent_lost(self, launch: int, rank: int, detail: str) -> None:
        """Pass it on."""
        self._listener.agent_lost(launch, rank, detail)

    def has_agents(self, launch: int) -> bool:
        """Ask the listener."""
        return self._listener.has_agents(launch)

    def launch_ended(
        self, launch: int, error: GridflowError | None, *, outlived: bool = False
    ) -> None:
        """All agents have been started, and have their lines; or some could not be."""
        with self._changed:
            self._is_started = True
        if error is not None:
            self.cancel()
            self._finish(error, outlived=True)
        self._look()

    # The lines -----------------------------------------------------------------------------------

    def _hold(self, line: Connection) -> None:
        """Hold a line until its agent ends."""
        place = int(msgspec.msgpack.decode(line.recv_bytes()))
        with self._changed:
            self._lines[place] = line
            self._missing.discard(place)
            cancelled = self._is_cancelled
        if cancelled:
            line.send_bytes(END)
        words = b""
        try:
            words = line.recv_bytes()
        except (EOFError, OSError):
            pass  # it died
        finally:
            with self._changed:
                self._lines.pop(place, None)
                self._changed.notify_all()
        if words != BYE and not self._is_cancelled:
            detail = "its agent, or its executor, has ended"
            self._listener.agent_lost(self._payload.launch, place, detail)
        self._look()

    def _look(self) -> None:
        with self._changed:
            over = self._is_started and not self._lines and not self._missing
        if over:
            self._finish(None, outlived=False)

    def _finish(self, error: GridflowError | None, *, outlived: bool) -> None:
        with self._changed:
            if self._is_over:
                return
            self._is_over = True
        self._listener.launch_ended(self._payload.launch, error, outlived=outlived)


def _starter(payload: AgentPayload, places: tuple[int, ...], line: Line) -> Callable[..., Any]:
    """Return the function of the tasks that start the agents."""

    def start_agent(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        from pyspark import TaskContext

        from gridflow.compat.tfos import _detached
        from gridflow.gpu.grant import SparkGpus
        from gridflow.spec.gpus import GPU

        for _ in batches:
            pass
        context = TaskContext.get()
        assert context is not None
        place = places[context.partitionId()]
        given = context.resources().get(GPU)
        gpus = SparkGpus(tuple(given.addresses) if given is not None else ())
        _detached.start(payload, place, gpus, line)
        yield pa.RecordBatch.from_pydict({"rank": pa.array([place], pa.int32())})

    return start_agent
