"""The agent: one task from start to end.

It has three threads. The launcher's thread (on Spark, the task's own) reads rows into the spool.
The supervisor starts the training process and obeys the coordinator; it starts all processes,
because the kernel ties a child's PR_SET_PDEATHSIG to its parent's thread. The heartbeat talks to
the coordinator, even while the supervisor is busy.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
import uuid
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa
from pyarrow import flight

from gridflow._agent import environment
from gridflow._agent.executor import ExecutorWatch
from gridflow._agent.folder import local_folder, short_path, task_prefix, temporary_folder
from gridflow._agent.forkserver.client import ForkServers
from gridflow._agent.host_load import HostLoad
from gridflow._agent.reporter import Heartbeat, Reporter
from gridflow._agent.task import TaskRunner
from gridflow._agent.uploads import Uploads
from gridflow._features.checkpoints.agent import Checkpoints
from gridflow._feed.store import SpoolReader, SpoolWriter, records, size_of
from gridflow._files.local import is_refusal, refusal
from gridflow._gpu import devices
from gridflow._gpu.grant import SparkGpus, take
from gridflow._spec import program
from gridflow._spec.gpus import VISIBLE, GpuNeed
from gridflow._spec.network import host_and_port, local_address
from gridflow._wire.client import CoordinatorClient
from gridflow._wire.commands import Close
from gridflow._wire.reports import Gone, Spooled
from gridflow.errors import DataError, NotEnoughGpus, UnsafePath

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from gridflow._agent.executor import Executor
    from gridflow._feed.store import Segment
    from gridflow._gpu.grant import GpuGrant
    from gridflow._wire.payload import AgentPayload

#: As they come from the launcher.
Rows: TypeAlias = "pa.RecordBatch | Segment"

_EXCHANGE_SECONDS: Final = 0.2
_EAGER_SECONDS: Final = 0.05
#: While all are at work: each exchange takes processor time from a step that all wait for.
_QUIET_SECONDS: Final = 1.0
_QUIET_AFTER_SECONDS: Final = 2.0
#: Big clusters talk less often, so that the coordinator answers at most this many calls a second.
_CALLS_PER_SECOND: Final = 500
_FLUSH_SECONDS: Final = 10.0


class Agent:
    """Run one task.

    `spark_gpus`: What Spark assigned to the task.
    `executor`: The Spark executor that the task runs on.
    `owner`: Warm processes end with this process. Default: this one's parent.
    `is_alone`: Whether this process exists only for the agent, and may end with it.
    """

    def __init__(
        self,
        payload: AgentPayload,
        rank: int,
        spark_gpus: SparkGpus | None = None,
        executor: Executor | None = None,
        owner: int | None = None,
        *,
        is_alone: bool = False,
    ) -> None:
        self._owner, self._is_alone = owner, is_alone
        self.payload, self.rank, self._executor = payload, rank, executor
        self._spark_gpus = spark_gpus or SparkGpus()
        self.id = uuid.uuid4().hex
        self.task = payload.spec.tasks[rank]
        self.part = payload.spec.parts[rank]
        self._closed = threading.Event()
        self._registered = threading.Event()
        self._error: BaseException | None = None
        self._heartbeat: Heartbeat | None = None
        self._busy_until = 0.0
        self._is_reading = False

    def run(self, batches: Iterable[tuple[str, Rows]]) -> None:
        """Spool the rows, and stay until the coordinator closes the job.

        `batches` (iterable of (dataset name, record batch or segment)): Read once.
        """
        prefix = task_prefix(self.payload.job, self.task)
        root = self.payload.spec.hosts.spool.dir or local_folder()
        with contextlib.ExitStack() as stack:
            try:
                folder = stack.enter_context(temporary_folder(prefix, root))
            except UnsafePath:  # it says itself what to do
                raise
            except OSError as error:
                raise DataError(
                    f"no folder for the task's rows can be made in {root or 'the temporary folder'}"
                    f" on {socket.gethostname()}. Choose another one with Spool(dir=…). ({error})"
                ) from error
            self._run_in(folder, batches)
        if self._error is not None:
            raise self._error

    def _run_in(self, folder: Path, batches: Iterable[tuple[str, Rows]]) -> None:
        supervisor = threading.Thread(target=self._supervise, args=(folder,), name="gridflow-agent")
        supervisor.start()
        try:
            self._registered.wait()
            if not self._closed.is_set() and self.part.is_fed:
                self._is_reading = True
                try:
                    self._spool(batches, folder / "spool")
                finally:
                    self._is_reading = False
        except BaseException:
            self._closed.set()
            raise
        finally:
            self._await(supervisor)

    def _await(self, supervisor: threading.Thread) -> None:
        try:
            supervisor.join()
        except BaseException:  # a signal: shut down in order, then let it take effect
            self._closed.set()
            supervisor.join()
            raise

    def _spool(self, batches: Iterable[tuple[str, Rows]], folder: Path) -> None:
        try:
            feed, arrived = self.payload.spec.feed, self._runner.arrived
            with SpoolWriter(folder, feed, on_segment=arrived) as writer, writer.explaining():
                for dataset in self.payload.datasets:
                    writer.declare(dataset)
                inflow = _Inflow()
                for dataset, rows in inflow.measured(batches):
                    if self._closed.is_set():
                        return
                    with inflow.storing():
                        writer.write(dataset, rows)
                    self._runner.read(size_of(rows))
                with inflow.storing():
                    counts = writer.close()
            if self.part.serves:
                worker = self.payload.spec.fed.index(self.rank)
                for name in counts:
                    records.write(folder, name, worker=worker)
        except DataError as error:
            self._runner.fail("data", str(error))
            self._closed.wait()
            return
        named = {name: asdict(count) for name, count in counts.items()}
        specs = {name: records.encode_specs(each) for name, each in writer.specs.items()}
        digests = {}
        if self.payload.spec.max_replacements:
            digests = {name: SpoolReader(folder, name).digest() for name in counts}
        report = Spooled(named, specs, writer.left_out, inflow.report(), digests)
        self._reporter.report(report)

    def _supervise(self, folder: Path) -> None:
        try:
            client = CoordinatorClient(self.payload.coordinator, self.payload.identity)
            holder, port = environment.hold_port()
            (folder / "tmp").mkdir()
            with holder, self._gpus() as gpus, short_path(folder / "tmp") as scratch:
                self._work(client, folder, scratch, port, gpus)
            client.close()
            is_frozen = self._heartbeat is not None and self._heartbeat.executor_is_frozen
            if is_frozen and self._is_reading and self._is_alone:
                # The other thread waits for rows from the executor; the janitor deletes the rest.
                os.kill(os.getpid(), signal.SIGKILL)
        except BaseException as error:  # noqa: BLE001 (raised again in the launcher's thread)
            self._error = DataError(_refusal(folder, error)) if is_refusal(error) else error
        finally:
            self._closed.set()
            self._registered.set()

    @contextlib.contextmanager
    def _gpus(self) -> Iterator[GpuGrant | str]:
        """Take the task's GPUs, or return why it gets none; before heartbeats are expected."""
        payload = self.payload
        owner = f"job {payload.job}, {self.task} (pid {os.getpid()})"
        need = payload.spec.gpus[self.rank] if payload.spec.gpus else GpuNeed()
        grant, problem = None, ""
        try:
            grant = take(need, payload.spec.gpu_options, self._spark_gpus, owner)
        except NotEnoughGpus as error:
            problem = str(error)
        if grant is None:
            yield problem
            return
        with contextlib.closing(grant):
            yield grant

    def _work(
        self,
        client: CoordinatorClient,
        folder: Path,
        scratch: Path,
        port: int,
        gpus: GpuGrant | str,
    ) -> None:
        payload = self.payload
        deadlines = payload.spec.deadlines
        timeout = deadlines.heartbeat
        me = {"rank": self.rank, "agent": self.id, "launch": payload.launch}
        load = None
        if payload.is_watched:
            load = HostLoad(folder, has_gpus=bool(getattr(gpus, "addresses", ())))
        read = dict if load is None else load.read
        self._reporter = Reporter(client, me, timeout, deadlines.driver, read)
        checkpoints = Checkpoints(client, self._reporter.lines)
        uploads = Uploads(client, me, checkpoints)
        versions = environment.describe()
        warm_seconds = payload.spec.hosts.launch.warm_seconds
        self._runner = TaskRunner(
            payload,
            self.rank,
            folder,
            client,
            self._reporter,
            checkpoints,
            uploads,
            gpus,
            servers=ForkServers(warm_seconds, versions, self._owner) if warm_seconds else None,
            scratch=scratch,
            on_end=self._wake,
        )
        is_complete = all(versions[name] for name in self._runner.needed)
        if is_complete:
            self._runner.warm_up()
        answer = self._register(client, me, versions, port)
        if not answer["accepted"]:
            return
        # A task that Spark has started again knows only in which its launch began.
        self._runner.generation = answer["generation"]
        self._heartbeat = self._begin_to_beat()
        if self.rank == 0 and not isinstance(gpus, str):
            self._notice_idle_gpus(gpus)
        try:
            with self._reporting(folder):
                client.download({"kind": "function"}, folder / "function")
                if payload.has_modules:
                    client.download({"kind": "modules"}, folder / "modules.zip")
                    program.unpack(folder / "modules.zip", folder / "modules")
                if is_complete:  # else the coordinator refuses: nothing to start
                    self._runner.prepare()
            self._registered.set()
            self._runner.begin_features()
            self._obey_until_closed(self._heartbeat, folder)
        finally:
            self._closed.set()
            self._runner.kill()
            if self._heartbeat.is_beating:  # the last checkpoint of a job that failed
                uploads.drain(min(_FLUSH_SECONDS, timeout))
            self._heartbeat.stop()
            self._reporter.report(Gone())
            self._runner.close_features()
            self._reporter.flush(min(_FLUSH_SECONDS, timeout))
            if load is not None:
                load.close()
            uploads.close()

    def _notice_idle_gpus(self, gpus: GpuGrant) -> None:
        """Report GPUs that stay hidden only because the job didn't request them."""
        spec = self.payload.spec
        asked = bool(gpus.addresses) or VISIBLE in spec.environment_of(spec.tasks[self.rank])
        unasked = not spec.gpus or spec.gpus[self.rank].count is None
        if unasked and not asked and devices.lie_idle():
            words = "this host's GPUs stay hidden; gpus=1 gives each worker one, gpus=0 none"
            self._reporter.lines([f"gridflow: {words}"])

    def _register(
        self, client: CoordinatorClient, me: dict[str, Any], versions: dict[str, str], port: int
    ) -> dict[str, Any]:
        address = local_address(self.payload.coordinator)
        message = {
            **me,
            "host": socket.gethostname(),
            "address": host_and_port(address, port),
            "environment": versions,
            "executor": self._executor.name if self._executor is not None else "",
        }
        deadlines, began = self.payload.spec.deadlines, time.monotonic()
        while True:
            try:
                return client.call("register", message, 5.0)
            except pa.ArrowException as error:
                # It listened before agents existed: if nothing listens, the job has already ended.
                ended = isinstance(error, flight.FlightUnavailableError)
                limit = deadlines.heartbeat if ended else self.payload.spec.start_timeout
                if time.monotonic() - began > limit:
                    raise
                time.sleep(0.2)

    def _begin_to_beat(self) -> Heartbeat:
        timeout = self.payload.spec.deadlines.heartbeat
        least = len(self.payload.spec.tasks) / _CALLS_PER_SECOND
        interval, eager = max(_EXCHANGE_SECONDS, least), max(_EAGER_SECONDS, least)
        quiet = max(interval, min(_QUIET_SECONDS, timeout / 5))
        watch = ExecutorWatch(self._executor, timeout) if self._executor is not None else None
        return Heartbeat(self._reporter, interval, quiet, self._is_quiet, eager, watch)

    def _is_quiet(self) -> bool:
        return self._runner.is_at_work and time.monotonic() > self._busy_until

    def _wake(self) -> None:
        if self._heartbeat is not None:
            self._heartbeat.wake()

    def _obey_until_closed(self, heartbeat: Heartbeat, folder: Path) -> None:
        while not self._closed.is_set() and heartbeat.is_beating:
            self._runner.look()
            command = heartbeat.next_command()
            if command is None:
                continue
            if isinstance(command, Close):
                self._runner.leave()
                return
            with self._reporting(folder):
                self._runner.obey(command)
            self._busy_until = time.monotonic() + _QUIET_AFTER_SECONDS
        if heartbeat.error is not None:
            raise heartbeat.error

    @contextlib.contextmanager
    def _reporting(self, folder: Path) -> Iterator[None]:
        """Report what the disk refuses as a failure of this task, not as the loss of its agent."""
        try:
            yield
        except OSError as error:
            if not is_refusal(error):
                raise
            self._runner.fail("data", _refusal(folder, error))


class _Inflow:
    """Measures how a task's rows come: waiting for those who compute them, storing, and bytes."""

    def __init__(self) -> None:
        self._upstream = self._stored = 0.0
        self._bytes = 0

    def measured(self, batches: Iterable[tuple[str, Rows]]) -> Iterator[tuple[str, Rows]]:
        """Yield the batches."""
        coming = iter(batches)
        while True:
            began = time.monotonic()
            found = next(coming, None)
            self._upstream += time.monotonic() - began
            if found is None:
                return
            self._bytes += size_of(found[1])
            yield found

    @contextlib.contextmanager
    def storing(self) -> Iterator[None]:
        """Measure a block that stores rows."""
        began = time.monotonic()
        yield
        self._stored += time.monotonic() - began

    def report(self) -> dict[str, float]:
        """Return the seconds of waiting and storing, those of waiting, and the bytes."""
        return {
            "inflow": self._upstream + self._stored,
            "upstream": self._upstream,
            "inflow_bytes": float(self._bytes),
        }


def _refusal(folder: Path, error: BaseException) -> str:
    assert isinstance(error, OSError)
    words = refusal(f"the task's folder {folder}", error)
    return f"{words}. Make room there, or choose another disk with Spool(dir=…) or spark.local.dir."
