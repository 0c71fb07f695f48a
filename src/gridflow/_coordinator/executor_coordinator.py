"""A job whose coordinator runs beside rank 0's agent, because executors can't reach the driver.

The job is one barrier stage of Spark. Its first task starts the coordinator, and sends its address
to the others with the barrier's ``allGather``. When all agents have ended, it returns the job's
folder as rows. The driver waits for them, and reads the folder like that of a run that succeeded
earlier.
"""

from __future__ import annotations

import base64
import contextlib
import os
import queue
import sys
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, cast

import cloudpickle
import pyarrow as pa

from gridflow._agent.agent import Agent
from gridflow._agent.executor import executor_above
from gridflow._agent.folder import temporary_folder
from gridflow._coordinator import record
from gridflow._coordinator.console import Console
from gridflow._coordinator.job_files import value_folder
from gridflow._coordinator.loop import JobRun
from gridflow._coordinator.observing import JobEnd, Observed
from gridflow._coordinator.recorded import NoStreams, RecordedRun
from gridflow._feed.ledger import Ledger
from gridflow._feed.push import STREAM
from gridflow._files.local import refusal
from gridflow._launch.spark.task import (
    gpus_of_this_task,
    place_of_this_task,
    rows_of_this_task,
)
from gridflow._spec.network import Network, local_address
from gridflow._wire.server import inside
from gridflow.errors import ClientUnreachable, GridflowError, InvalidArgument, TaskLost

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from gridflow._coordinator.job import PreparedJob
    from gridflow._coordinator.record import Outcome
    from gridflow._feed.ingest.base import RankRows
    from gridflow._feed.push.sender import Destination
    from gridflow._launch.base import Launcher, LaunchListener
    from gridflow._launch.spark.launcher import SparkLauncher
    from gridflow._spec.cluster import Task
    from gridflow._wire.payload import AgentPayload

SCHEMA: Final = "kind string, name string, chunk binary"
_FILE, _ERROR = "file", "error"
_WHY: Final = (
    "executors can't connect to this client, so the coordinator runs beside them. Set "
    "Network(advertise=…) to an address of this machine that executors can reach."
)
_CHUNK_BYTES: Final = 1 << 20
_LOOK_SECONDS: Final = 0.2
#: Bytes of a log that are shown at a time.
_LOG_CHARACTERS: Final = 1 << 18


def inside_of(job: PreparedJob, launcher: Launcher, error: ClientUnreachable) -> InsideRun:
    """Return the run of a job whose coordinator can't be reached in this process.

    Raises `ClientUnreachable`: It can't run beside the executors either; the message says why.
    """
    launcher = cast("SparkLauncher", launcher)
    if job.size is not None:  # it stays as it is
        job = replace(job, spec=job.spec.with_workers(job.size), size=None)
    why = launcher.why_not_inside(job.spec, job.data)
    if job.checkpoint_mirror is None and not job.checkpoint_dir.is_relative_to(job.job_dir):
        why = why or "checkpoint_dir= is a folder of this machine (hdfs://… or s3://… would do)"
    if why:
        raise ClientUnreachable(
            f"{error} The coordinator can't run beside the executors instead: {why}."
        ) from error
    return InsideRun(job, launcher)


class InsideRun(RecordedRun):
    """What a `JobHandle` needs of a run, for a run in another process."""

    is_recorded = False
    state = "training"

    def __init__(self, job: PreparedJob, launcher: SparkLauncher) -> None:
        self.spec, self._job = job.spec, job
        self.streams = _Unreachable()
        self._whole, self._rows = launcher.run_inside(
            job.id, job.spec, job.data, SCHEMA, self._body
        )
        logs = {task: job.job_dir / "logs" / _log_name(task) for task in job.spec.tasks}
        self._outcome = record.Outcome((), {}, Ledger(), (), logs, None, {})

    def run(self) -> Outcome:
        """Wait for the job's end.

        Raises `GridflowError`: What the job failed with.
        Raises `JobCancelled`: After `cancel`.
        """
        job, began = self._job, time.time()
        with contextlib.closing(
            Console(job.spec.tasks, None, logs=job.logs, progress=False)
        ) as console:
            observed = Observed(job.observers, console.say)
            error: BaseException | None = None
            result = None
            try:
                outcome = self._run(console)
            except BaseException as problem:
                error = problem
                raise
            else:
                result = job.result(outcome)
                return outcome
            finally:
                seconds, state = time.time() - began, record.state_of(error)
                observed.tell("end", JobEnd(state, error, seconds, self.report(), result))
                observed.close()

    def _run(self, console: Console) -> Outcome:
        job = self._job
        where = f"in the task of {job.spec.tasks[0]}"
        console.say(f"the coordinator runs {where}: logs and progress are shown when the job ends")
        error: BaseException | None = None
        began = set()
        for row in self._rows:
            if row.kind == _FILE:
                path = inside(job.job_dir, row.name)
                try:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    with path.open("ab" if path in began else "wb") as file:
                        file.write(row.chunk)
                except OSError as problem:
                    words = refusal(f"the job's folder {job.job_dir}", problem)
                    raise GridflowError(
                        f"{words}: the job has ended, but its files are lost."
                    ) from problem
                began.add(path)
            elif row.kind == _ERROR:
                error = cloudpickle.loads(bytes(row.chunk))
        self._show_logs(console)
        if error is not None:
            raise error
        self._outcome = record.read_outcome(job.job_dir)
        return self._outcome

    def _show_logs(self, console: Console) -> None:
        """Print the tasks' output."""
        for task, path in self.log_paths.items():
            if not path.is_file():  # the disk was full
                continue
            with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
                while lines := [line.rstrip("\n") for line in file.readlines(_LOG_CHARACTERS)]:
                    console.log(task, lines)
                    console.wait_for_room()

    def cancel(self) -> None:
        """End the job's stage, and everything that it started."""
        self._whole.cancel()

    def stacks(self, timeout: float, give_up: Callable[[], bool]) -> dict[str, str | None]:  # noqa: ARG002 (as of a running job)
        """Refuse.

        Raises `InvalidArgument`: Always.
        """
        raise InvalidArgument(f"tasks can't be asked for their stacks: {_WHY}")

    def profile(self, first: int, last: int) -> Path:  # noqa: ARG002 (as of a running job)
        """Refuse.

        Raises `InvalidArgument`: Always.
        """
        raise InvalidArgument(f"tasks can't be asked to profile their steps: {_WHY}")

    def has_been(self, state: str, timeout: float | None, give_up: Callable[[], bool]) -> bool:  # noqa: ARG002 (nobody here can know)
        """Wait for the end: the job's earlier states aren't known here."""
        end = None if timeout is None else time.monotonic() + timeout
        while not give_up() and (end is None or time.monotonic() < end):
            time.sleep(0.1)
        return False

    def _body(
        self, places: tuple[int, ...], rows: RankRows | None, gpu_shares: int
    ) -> Callable[..., Iterator[pa.RecordBatch]]:
        job = replace(self._job, data=dict.fromkeys(self._job.data), logs="none", notice="")
        job = replace(job, show_progress=False, observers=())

        def run_inside(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            from gridflow._coordinator.executor_coordinator import run_task

            yield from run_task(job, places, rows, gpu_shares, batches)

        return run_inside


class _Unreachable(NoStreams):
    """Refuses rows: the agents can't reach this process."""

    def destination(self, stream: str) -> Destination:
        """Refuse.

        Raises `InvalidArgument`: Always.
        """
        raise InvalidArgument(
            f"rows can't be pushed to {stream!r}: {_WHY} Or pass the rows to run(data=…)."
        )


class _Present:
    """A launcher of agents that already run."""

    def __init__(self) -> None:
        self.payloads: queue.SimpleQueue[AgentPayload] = queue.SimpleQueue()
        self._listener: LaunchListener | None = None

    def launch(self, payload: AgentPayload, data: Any, listener: LaunchListener) -> _Present:  # noqa: ARG002 (Spark has it)
        """Give the payload to the tasks that wait for it."""
        self._listener = listener
        if payload.launch > 1:
            error = TaskLost("an agent is gone, and a Spark task can't request another one.")
            listener.launch_ended(payload.launch, error)
        self.payloads.put(payload)
        return self

    def replace(self, rank: int) -> bool:  # noqa: ARG002 (as of other launches)
        """Refuse: a Spark task can't request another one."""
        return False

    def ended(self) -> None:
        """Note that all agents have ended."""
        if self._listener is not None:
            self._listener.launch_ended(1, None)

    def obstacle(self) -> str:
        """Return nothing: all tasks run."""
        return ""

    def replace_executor(self, executor: str) -> None:
        """Do nothing: a Spark task can't request it."""

    def cancel(self) -> None:
        """Do nothing: agents end by themselves after the coordinator."""

    close = cancel


class _Keeper:
    """The coordinator in the first task."""

    def __init__(self, job: PreparedJob, folder: Path, address: str) -> None:
        self.folder = folder / "job"
        self.folder.mkdir()
        job = replace(
            job,
            job_dir=self.folder,
            checkpoint_dir=self.folder / "checkpoints",
            network=Network(host=address, advertise=address),
        )
        self._job, self._launcher = job, _Present()
        self._error: BaseException | None = None
        self._in_memory: Mapping[int, Mapping[str, bytes]] = {}
        self._thread = threading.Thread(target=self._run, name="gridflow-inside", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            run = JobRun(self._job, cast("Launcher", self._launcher))
            threading.Thread(
                target=self._end_streams, args=(run,), name="gridflow-inside-streams", daemon=True
            ).start()
            outcome = run.run()
            self._in_memory = outcome.in_memory
            record.write_outcome(self.folder, outcome)
        except BaseException as error:  # noqa: BLE001 (raised again in the driver)
            self._error = error

    def _end_streams(self, run: JobRun) -> None:
        """End streams at once: nobody can reach the agents to feed them."""
        while self._thread.is_alive():
            if run.streams.is_awaited(STREAM):
                run.streams.end_streams()
                return
            time.sleep(_LOOK_SECONDS)

    def payload(self) -> AgentPayload | None:
        """Return the agents' payload; None if the coordinator has failed."""
        while self._thread.is_alive() or not self._launcher.payloads.empty():
            try:
                return self._launcher.payloads.get(timeout=0.1)
            except queue.Empty:
                continue
        return None

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Wait for the coordinator to end, and yield the files of the job's folder."""
        self._launcher.ended()
        self._thread.join(2 * self._job.spec.deadlines.shutdown)
        if self._thread.is_alive():
            self._error = self._error or GridflowError("the coordinator did not end.")
        if self._error is not None:
            yield _row(_ERROR, "", _dump(self._error))
        for path in sorted(self.folder.rglob("*")):
            if path.is_file():
                name = path.relative_to(self.folder).as_posix()
                with path.open("rb") as file:
                    yield _row(_FILE, name, file.read(_CHUNK_BYTES))
                    while chunk := file.read(_CHUNK_BYTES):
                        yield _row(_FILE, name, chunk)
        for rank, files in self._in_memory.items():
            for name, content in files.items():
                path = (value_folder(self.folder, rank) / name).relative_to(self.folder)
                for at in range(0, max(len(content), 1), _CHUNK_BYTES):
                    yield _row(_FILE, path.as_posix(), content[at : at + _CHUNK_BYTES])


def run_task(
    job: PreparedJob,
    places: tuple[int, ...],
    rows: RankRows | None,
    gpu_shares: int,
    batches: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Run the task of this partition, with the coordinator beside the first one."""
    from pyspark import BarrierTaskContext

    context = BarrierTaskContext.get()
    place = place_of_this_task(places)
    with temporary_folder(f"gridflow-{job.id}-inside-", job.spec.hosts.spool.dir) as folder:
        keeper = _Keeper(job, folder, _address(context)) if place == 0 else None
        said = None if keeper is None else keeper.payload()
        told = "" if said is None else base64.b64encode(cloudpickle.dumps(said)).decode()
        told = max(context.allGather(told), key=len)
        problem: BaseException | None = None
        if told:
            try:
                payload = cloudpickle.loads(base64.b64decode(told))
                agent = Agent(
                    payload,
                    place,
                    gpus_of_this_task(gpu_shares),
                    executor=executor_above(os.getpid()),
                )
                with rows_of_this_task(rows, batches) as own:
                    agent.run(own)
            except Exception as error:  # noqa: BLE001 (the coordinator says what the job failed with)
                problem = error
        context.barrier()  # now all have ended
        if keeper is not None:
            yield from keeper.finish()
        elif problem is not None:
            sys.stderr.write(f"gridflow: {job.spec.tasks[place]}: {problem!r}\n")
    yield _row("", "", b"")


def _address(context: Any) -> str:
    """Return the address at which other tasks reach this host; loopback if all share it."""
    hosts = {info.address.rpartition(":")[0] or info.address for info in context.getTaskInfos()}
    addresses = {local_address(f"{host}:1") for host in hosts}
    others = sorted(address for address in addresses if not address.startswith("127."))
    return others[0] if others else "127.0.0.1"


def _log_name(task: Task) -> str:
    return f"{task.role}-{task.index}.log"


def _dump(error: BaseException) -> bytes:
    try:
        dumped = bytes(cloudpickle.dumps(error))
        cloudpickle.loads(dumped)
    except Exception:  # noqa: BLE001 (any reason will do)
        return bytes(cloudpickle.dumps(GridflowError(f"{type(error).__name__}: {error}")))
    return dumped


def _row(kind: str, name: str, chunk: bytes) -> pa.RecordBatch:
    columns = [pa.array([kind]), pa.array([name]), pa.array([chunk], pa.binary())]
    return pa.RecordBatch.from_arrays(columns, names=["kind", "name", "chunk"])
