"""Agents as plain processes on this machine: no Spark needed."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from gridflow._agent.folder import temporary_folder
from gridflow._agent.forkserver import messages
from gridflow._agent.forkserver.client import Forked, ForkServers, NotForked, retire_all
from gridflow._files.local import writing_to_temporary
from gridflow._gpu.grant import check_host
from gridflow._launch.base import Placement
from gridflow.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import DataFrame

    from gridflow._feed.ingest.arrays import ArraySource, FileRows
    from gridflow._feed.push.sender import Destination
    from gridflow._launch.base import LaunchListener
    from gridflow._spec.gpus import GpuNeed
    from gridflow._wire.payload import AgentPayload

_log = logging.getLogger(__name__)

_TERM_SECONDS: Final = 15.0
_EXIT_SECONDS: Final = 1.0
_ROWS_PER_BATCH: Final = 10_000
#: Where forking an agent failed, it isn't tried again.
_is_hopeless = False


class LocalLauncher:
    """Run every task in its own processes on this machine.

    Data can be numpy arrays, dicts or tuples of them, pandas DataFrames and pyarrow
    tables; each rank gets a block of their rows.

    Examples
    --------
    >>> from gridflow import LocalLauncher, TensorflowDistributor
    >>> distributor = TensorflowDistributor(num_workers=2, launcher=LocalLauncher())
    """

    def __init__(self) -> None:
        self._source: tuple[Mapping[str, Any], ArraySource] | None = None
        self._rows: list[FileRows] | None = None
        self._stack = contextlib.ExitStack()

    @property
    def replaces_agents(self) -> bool:
        """Another process can always be started."""
        return True

    def for_job(self) -> LocalLauncher:
        """Return a new launcher."""
        return LocalLauncher()

    def place(
        self,
        num_tasks: int,
        data: Mapping[str, Any],
        start_timeout: float,  # noqa: ARG002
        *,
        fed: Sequence[int] | None = None,
        gpus: Sequence[GpuNeed] = (),
    ) -> Placement:
        """Check data and GPUs. This machine runs any number of tasks, which share its cores."""
        source = self._source_of(data)
        source.check(num_tasks if fed is None else len(fed))
        check_host(gpus, os.environ)
        return Placement(
            "local",
            "127.0.0.1",
            "127.0.0.1",
            None,
            source.details(),
            source.left_out,
            source.columns,
        )

    def launch(
        self, payload: AgentPayload, data: Mapping[str, Any], listener: LaunchListener
    ) -> LocalLaunch:
        """Start the agents from the caller's thread, as they end with that thread.

        Raises
        ------
        InvalidArgument
            The temporary folder can't be written.
        """
        fed = payload.spec.fed
        if self._rows is None or len(self._rows) != len(fed) * bool(data):
            self._stack.close()  # what other tasks had
            with writing_to_temporary():
                prefix = f"gridflow-{payload.job}-data-"
                folder = self._stack.enter_context(temporary_folder(prefix))
                kept = payload.spec.feed.columns
                source = self._source_of(data)
                self._rows = source.deal(len(fed), folder, kept) if data and fed else []
        return LocalLaunch(payload, self._rows, listener)

    def _source_of(self, data: Mapping[str, Any]) -> ArraySource:
        """Return the source of the data; reuse it for the same data."""
        from gridflow._feed.ingest.arrays import ArraySource

        if self._source is None or self._source[0] is not data:
            self._source = data, ArraySource(data)
        return self._source[1]

    def feed(
        self,
        destination: Destination,
        rows: Any,
        columns: Sequence[str] | None,
        has_ended: Callable[[float], bool],
    ) -> int:
        """Push arrays or a table from here."""
        del has_ended  # the rows are local, and the agents' answers say it
        from gridflow._feed.ingest.arrays import feedable
        from gridflow._feed.push.sender import check_columns, send_all
        from gridflow._feed.selection import refuse_left_out

        table, reasons = feedable(rows, destination.stream)
        if columns is not None:
            refuse_left_out([name for name in columns if name not in table.column_names], reasons)
            check_columns(columns, table.column_names)
            table = table.select(list(columns))
        return send_all(destination, 0, 0, table.to_batches(max_chunksize=_ROWS_PER_BATCH))

    def feed_stream(self, rows: Any, *others: Any) -> None:
        """Refuse: streams are Spark's."""
        del others
        raise InvalidArgument(
            f"a Spark stream needs Spark's executors, so use SparkLauncher; got "
            f"{type(rows).__name__} with LocalLauncher."
        )

    def infer(self, destination: Destination, rows: Any, schema: str, timeout: float) -> DataFrame:
        """Refuse: that is for DataFrames."""
        del destination, schema, timeout
        raise InvalidArgument(
            f"infer() needs a Spark DataFrame and Spark's executors, so use SparkLauncher; got "
            f"{type(rows).__name__} with LocalLauncher. Or predict in the function, and return the "
            "predictions: they are in result.value."
        )

    def replace_executor(self, executor: str) -> None:
        """Do nothing: there are none."""

    def make_thread(self, target: Callable[[], None], name: str) -> threading.Thread:
        """Return a thread."""
        return threading.Thread(target=target, name=name, daemon=True)

    def close(self) -> None:
        """Delete the partitioned data."""
        self._stack.close()
        self._source = self._rows = None


class LocalLaunch:
    """The processes of one launch.

    `rows`: The rows of each rank that is fed, in order.
    `places`: The tasks that run here. Default: all.
    """

    def __init__(
        self,
        payload: AgentPayload,
        rows: Sequence[FileRows],
        listener: LaunchListener,
        places: Sequence[int] | None = None,
    ) -> None:
        self._payload, self._listener = payload, listener
        self._rows = dict(zip(payload.spec.fed, rows, strict=False))
        mine = range(len(payload.spec.tasks)) if places is None else places
        self._lock = threading.Lock()
        self._left, self._is_cancelled = len(mine), False
        started = {rank: AgentProcess(payload, rank, self._rows.get(rank)) for rank in mine}
        self._agents = list(started.values())
        self._threads: list[threading.Thread] = []
        for rank, agent in started.items():
            self._in_thread(self._watch, rank, agent)

    def replace(self, rank: int) -> bool:
        """Start another agent, from the thread that has started the first ones."""
        with self._lock:
            if not self._left or self._is_cancelled:
                return False
            agent = AgentProcess(self._payload, rank, self._rows.get(rank))
            self._left += 1
            self._agents.append(agent)
        self._in_thread(self._watch, rank, agent)
        return True

    def obstacle(self) -> str:
        """Return an empty string: nothing is known."""
        return ""

    def cancel(self) -> None:
        """Ask the agents to end, and kill those that don't; return at once."""
        with self._lock:
            self._is_cancelled = True
            self._in_thread(_end, list(self._agents))

    def close(self) -> None:
        """End the agents, and wait for them."""
        self.cancel()
        for thread in self._threads:
            thread.join()

    def _in_thread(self, target: Callable[..., None], *args: Any) -> None:
        thread = threading.Thread(target=target, args=args, name="gridflow-local", daemon=True)
        thread.start()
        self._threads.append(thread)

    def _watch(self, rank: int, agent: AgentProcess) -> None:
        """Tell how an agent ends, and when the last one has."""
        from gridflow._agent.process import signal_name

        code = agent.process.wait() or 0
        words = agent.words()
        if code != 0:
            how = f"was killed by {signal_name(-code)}" if code < 0 else f"exited with code {code}"
            detail = f"its agent {how}. {words}".rstrip(". ")
            self._listener.agent_lost(self._payload.launch, rank, detail)
        with self._lock:
            self._left -= 1
            is_last = not self._left
        if is_last:
            self._listener.launch_ended(self._payload.launch, None)


def _end(agents: list[AgentProcess]) -> None:
    processes = [agent.process for agent in agents]
    for process in processes:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGCONT)  # a frozen one can't react otherwise
    for process in processes:
        try:
            process.wait(_TERM_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()


# Agents as processes of this machine: forked if possible, otherwise started.
#
# The first launch of a driver starts a fork server that imports what agents need, which is most of
# the work of a short job; it stays for later launches. Both kinds of agents get the same input
# through pipes, and behave alike.


class AgentProcess:
    """An agent, from its start to its end.

    `rows`: The rows to spool, if its task is fed.
    """

    def __init__(self, payload: AgentPayload, rank: int, rows: FileRows | None) -> None:
        with writing_to_temporary():
            self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (`words` closes it)
        read, write = os.pipe()
        with contextlib.closing(open(write, "wb")) as pipe:  # noqa: PTH123 (a descriptor)
            try:
                self.process = _fork_or_start(
                    payload.spec.hosts.launch.warm_seconds, read, self._errors.fileno()
                )
            finally:
                os.close(read)
            with contextlib.suppress(BrokenPipeError):  # it has already died; its watcher says why
                # Through the pipe: keys mustn't be on a command line or in a file.
                pickle.dump((payload, rank, rows, os.getpid()), pipe)
                pipe.flush()

    def words(self) -> str:
        """Return its last output. Call it once, after the process has ended."""
        with self._errors as errors:
            errors.seek(0)
            return errors.read().decode(errors="replace").strip()


def _fork_or_start(
    warm_seconds: float, payload: int, errors: int
) -> subprocess.Popen[bytes] | Forked:
    global _is_hopeless  # noqa: PLW0603 (of this process, as the servers are)
    importable = [path or str(Path.cwd()) for path in sys.path]
    environment = {**os.environ, "PYTHONPATH": ":".join(importable)}
    command = [sys.executable, "-m", "gridflow._agent.main"]
    if warm_seconds and not _is_hopeless:
        servers = ForkServers(warm_seconds, {}, os.getpid(), messages.AGENT)
        for _ in range(2):  # a server may be ended just now
            try:
                return _fork(servers, command, environment, payload, errors)
            except NotForked as error:
                _log.debug("starting an agent instead of forking it: %s", error)
        _is_hopeless = True
    return subprocess.Popen(
        command,
        stdin=payload,
        stdout=subprocess.DEVNULL,
        stderr=errors,
        env=environment,
        start_new_session=True,  # Ctrl-C goes only to the driver, which then ends them in order
    )


def _fork(
    servers: ForkServers,
    command: list[str],
    environment: dict[str, str],
    payload: int,
    errors: int,
) -> Forked:
    agent = servers.fork(
        command, work_dir=Path.cwd(), environment=environment, descriptors=[payload, errors]
    )
    agent.settle()
    return agent


# At the driver's exit its server ends at once, except while agents are ending.
atexit.register(retire_all, _EXIT_SECONDS)
