"""A launch whose agents release their Spark slots; lines connect them to the driver.

See `gridflow._launch.spark.detached` for the executors' side.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from typing import TYPE_CHECKING, Any

import msgspec

from gridflow._launch.base import PassesOn
from gridflow._launch.spark.detached import BYE, END, END_SECONDS, Line
from gridflow._launch.spark.launch import SparkLaunch
from gridflow._wire import mutual_tls
from gridflow.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from gridflow._launch.base import LaunchListener
    from gridflow._spec.gpus import GpuNeed
    from gridflow._wire.mutual_tls import Connection
    from gridflow._wire.payload import AgentPayload
    from gridflow.errors import GridflowError


def refuse(data: Mapping[str, Any], gpus: Sequence[GpuNeed], *, is_dynamic: bool) -> None:
    """Refuse what agents that release their slots can't have.

    Raises `InvalidArgument`: Rows of ``data=``, GPUs, or executors that Spark removes when they are
        idle.
    """
    if data:
        raise InvalidArgument(
            "LaunchOptions(detached=True) can't be used with data=, whose rows come through the "
            "tasks that release their slots. Push the rows: start(train_fn), then feed(df); or "
            "leave detached=True out."
        )
    if any(need.count for need in gpus):
        raise InvalidArgument(
            "LaunchOptions(detached=True) can't be used with GPUs: Spark would give the released "
            "GPU to another task while the detached one still uses it. Leave gpus= out or use "
            "gpus=0; or leave detached=True out, and provide more slots than the job has tasks."
        )
    if is_dynamic:
        raise InvalidArgument(
            "LaunchOptions(detached=True) can't be used with "
            "spark.dynamicAllocation.enabled=true: Spark would remove the agents' executors, as "
            "they run no task. Turn dynamic allocation off, or leave detached=True out: under "
            "dynamic allocation feeders get their own executors."
        )


class DetachedLaunch(PassesOn):
    """Agents without Spark tasks; the listener of the Spark job that starts them.

    `stages` (sequence of (places, GpuNeed)): The tasks that start agents, by stage.
    `frame_of`: From the function of a stage, its tasks and GPUs to the DataFrame that runs it.
    `host`: The driver's address for the agents' lines.
    """

    def __init__(
        self,
        spark: SparkSession,
        payload: AgentPayload,
        stages: Sequence[tuple[tuple[int, ...], GpuNeed]],
        frame_of: Callable[[Callable[..., Any], tuple[int, ...], GpuNeed], DataFrame],
        listener: LaunchListener,
        host: str,
    ) -> None:
        super().__init__(listener)
        self._payload = payload
        self._changed = threading.Condition()
        self._lines: dict[int, Connection] = {}
        self._is_started = self._is_cancelled = self._is_over = False
        self._missing = {place for places, _ in stages for place in places}
        key, socket = secrets.token_bytes(32), mutual_tls.listen(host)
        port = int(socket.getsockname()[1])
        advertised = payload.coordinator.rpartition(":")[0].strip("[]")
        line = Line((advertised, port), key)
        self._door = mutual_tls.Door(socket, key, self._hold)

        def make_frame(places: tuple[int, ...], need: GpuNeed) -> DataFrame:
            return frame_of(_starter(payload, places, line), places, need)

        self._starting = SparkLaunch(
            spark, payload, stages, make_frame, self, has_data=False, is_barrier=True
        )

    def obstacle(self) -> str:
        """Return what Spark runs instead of the tasks that start the agents."""
        return "" if self._is_started else self._starting.obstacle()

    def replace(self, rank: int) -> bool:  # noqa: ARG002 (as of other launches)
        """Refuse: the tasks that have started the agents have ended."""
        return False

    def cancel(self) -> None:
        """Tell the agents to end; return at once."""
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

    def launch_ended(
        self, launch: int, error: GridflowError | None, *, outlived: bool = False
    ) -> None:
        """All agents have started and have their lines, or some failed to start."""
        del launch, outlived
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
            detail = "its agent or its executor has ended"
            self._listener.agent_lost(self._payload.launch, place, detail)
        self._look()

    def _look(self) -> None:
        with self._changed:
            # If a job is cancelled while its tasks start, some agents never connect.
            are_all_known = self._is_cancelled or not self._missing
            over = self._is_started and not self._lines and are_all_known
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

        from gridflow._gpu.grant import SparkGpus
        from gridflow._launch.spark import detached
        from gridflow._spec.gpus import GPU

        for _ in batches:
            pass
        context = TaskContext.get()
        assert context is not None
        place = places[context.partitionId()]
        given = context.resources().get(GPU)
        gpus = SparkGpus(tuple(given.addresses) if given is not None else ())
        detached.start(payload, place, gpus, line)
        yield pa.RecordBatch.from_pydict({"rank": pa.array([place], pa.int32())})

    return start_agent
