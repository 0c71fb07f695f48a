"""Agents as plain processes on this machine: no Spark needed."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from gridflow.agent.folder import temporary_folder
from gridflow.errors import SchemaError
from gridflow.gpu.grant import check_host
from gridflow.launch.base import Placement

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gridflow.launch.base import LaunchListener
    from gridflow.spec.gpus import GpuNeed
    from gridflow.spec.options import Deadlines
    from gridflow.wire.payload import AgentPayload

_TERM_SECONDS: Final = 15.0


class LocalLauncher:
    """Run every task on this machine, in processes of its own.

    Data may be given as numpy arrays, dicts or tuples of them, pandas DataFrames and pyarrow
    tables; each rank gets a block of their rows.

    Examples
    --------
    >>> from gridflow import LocalLauncher, TensorflowDistributor
    >>> distributor = TensorflowDistributor(num_workers=2, launcher=LocalLauncher())
    """

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._stack = contextlib.ExitStack()

    def for_job(self) -> LocalLauncher:
        """Return one that has launched nothing."""
        return LocalLauncher()

    def place(
        self,
        num_tasks: int,
        data: Mapping[str, Any],
        deadlines: Deadlines,  # noqa: ARG002
        *,
        fed: Sequence[int] | None = None,
        gpus: Sequence[GpuNeed] = (),
        wait: bool = True,  # noqa: ARG002
    ) -> Placement:
        """Check data and GPUs; this machine takes any number of tasks, which share its cores."""
        from gridflow.feed.sources import arrays

        tables = {name: arrays.feedable(value, name) for name, value in data.items()}
        rows = {name: table.num_rows for name, (table, _) in tables.items()}
        num_fed = num_tasks if fed is None else len(fed)
        for name, count in rows.items():
            if num_fed and not count:
                raise SchemaError(f"dataset {name!r} has no rows: there is nothing to feed.")
        check_host(gpus, os.environ)
        details = {f"rows of {name}": f"{count:,}" for name, count in rows.items()}
        left_out = {name: reasons for name, (_, reasons) in tables.items() if reasons}
        names = [
            name for table, reasons in tables.values() for name in (*table.schema.names, *reasons)
        ]
        columns = tuple(dict.fromkeys(names))
        return Placement("local", "127.0.0.1", "127.0.0.1", None, details, left_out, columns)

    def launch(
        self, payload: AgentPayload, data: Mapping[str, Any], listener: LaunchListener
    ) -> LocalLaunch:
        """Start the agents; from the caller's thread, whose end would end them, too."""
        from gridflow.feed.sources import arrays

        if self._folder is None:
            self._folder = self._stack.enter_context(
                temporary_folder(f"gridflow-{payload.job}-data-")
            )
            arrays.partition(data, len(payload.spec.fed), self._folder)
        return LocalLaunch(payload, self._folder, listener)

    def make_thread(self, target: Callable[[], None], name: str) -> threading.Thread:
        """Return a thread."""
        return threading.Thread(target=target, name=name, daemon=True)

    def close(self) -> None:
        """Delete the partitioned data."""
        self._stack.close()
        self._folder = None


class LocalLaunch:
    """The processes of one launch.

    Parameters
    ----------
    payload : AgentPayload
    folder : Path
        Where the rows of each rank lie.
    listener : LaunchListener
    """

    def __init__(self, payload: AgentPayload, folder: Path, listener: LaunchListener) -> None:
        self._agents = [
            _start_agent(payload, rank, folder) for rank in range(len(payload.spec.tasks))
        ]
        watcher = threading.Thread(
            target=_watch,
            args=(payload, self._agents, listener),
            name="gridflow-local",
            daemon=True,
        )
        watcher.start()
        self._threads = [watcher]

    def obstacle(self) -> str:
        """Return what keeps agents from coming up: nothing that would be known."""
        return ""

    def cancel(self) -> None:
        """Ask the agents to end, kill those that don't; returns at once."""
        args = (self._agents,)
        thread = threading.Thread(target=_end, args=args, name="gridflow-end", daemon=True)
        thread.start()
        self._threads.append(thread)

    def close(self) -> None:
        """End the agents, and wait for them."""
        self.cancel()
        for thread in self._threads:
            thread.join()


def _end(agents: list[subprocess.Popen[bytes]]) -> None:
    for agent in agents:
        if agent.poll() is None:
            agent.send_signal(signal.SIGTERM)
            agent.send_signal(signal.SIGCONT)  # one that is frozen hears nothing otherwise
    for agent in agents:
        try:
            agent.wait(_TERM_SECONDS)
        except subprocess.TimeoutExpired:
            agent.kill()


def _start_agent(payload: AgentPayload, rank: int, folder: Path) -> subprocess.Popen[bytes]:
    errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (its watcher closes it)
    importable = ":".join(path or str(Path.cwd()) for path in sys.path)
    agent = subprocess.Popen(
        [sys.executable, "-m", "gridflow.agent.main"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=errors,
        env={**os.environ, "PYTHONPATH": importable},
        start_new_session=True,  # Ctrl-C is for the driver, which then ends them in order
    )
    agent.gridflow_errors = errors  # type: ignore[attr-defined]
    if agent.stdin is None:
        raise AssertionError("the agent was started without a pipe")
    try:
        # By the pipe: keys are for no command line and no file.
        share = payload.spec.fed.index(rank) if rank in payload.spec.fed else None
        rows = None if share is None else str(folder / f"rank-{share}")
        with agent.stdin:
            pickle.dump((payload, rank, rows, os.getpid()), agent.stdin)
    except BrokenPipeError:
        pass  # it died already; its watcher says why
    return agent


def _watch(
    payload: AgentPayload, agents: list[subprocess.Popen[bytes]], listener: LaunchListener
) -> None:
    threads = [
        threading.Thread(target=_watch_one, args=(payload, rank, agent, listener), daemon=True)
        for rank, agent in enumerate(agents)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    listener.launch_ended(payload.launch, None)


def _watch_one(
    payload: AgentPayload, rank: int, agent: subprocess.Popen[bytes], listener: LaunchListener
) -> None:
    from gridflow.agent.process import signal_name

    code = agent.wait()
    errors: IO[bytes] = agent.gridflow_errors  # type: ignore[attr-defined]
    with errors:
        if code != 0:
            errors.seek(0)
            words = errors.read().decode(errors="replace").strip()
            how = f"was killed by {signal_name(-code)}" if code < 0 else f"ended with {code}"
            listener.agent_lost(payload.launch, rank, f"its agent {how}. {words}".rstrip(". "))
