"""Agents that release their Spark slots and go on, for the tasks that feed them.

A Spark task starts the agent as a process of its own, and ends. From then on the agent depends on
its *line*, a connection to the driver, and its *owner*, the executor's Java process. If either
ends, the agent ends with everything that it has started. For the driver, the end of the line is the
end of the agent.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Final, NoReturn

import msgspec

from gridflow._agent.executor import executor_above
from gridflow._files.procfs import began
from gridflow._wire import mutual_tls
from gridflow.errors import GridflowError

if TYPE_CHECKING:
    from gridflow._gpu.grant import SparkGpus
    from gridflow._wire.mutual_tls import Connection
    from gridflow._wire.payload import AgentPayload

UP: Final = b"up"
END: Final = b"end"
BYE: Final = b"bye"
_LOOK_SECONDS: Final = 1.0
#: Time for an agent to shut down in order, before it is killed.
END_SECONDS: Final = 20.0
#: Time for its Python to start and import what it needs, on a busy machine.
_START_SECONDS: Final = 120.0


@dataclass(frozen=True)
class Line:
    """The driver's end of an agent's line."""

    address: tuple[str, int]
    key: bytes


def start(payload: AgentPayload, place: int, gpus: SparkGpus, line: Line) -> None:
    """Start an agent from a Spark task, and wait until its line is connected.

    Raises `GridflowError`: It doesn't start; the message has its output.
    """
    owner, executor = _java_above(), executor_above(os.getpid())
    errors: IO[bytes]
    with tempfile.TemporaryFile() as errors:
        agent = subprocess.Popen(
            [sys.executable, "-m", "gridflow._launch.spark.detached"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env={**os.environ, "PYTHONPATH": ":".join(path for path in sys.path if path)},
            start_new_session=True,  # Spark's signals to its starting worker mustn't reach it
        )
        assert agent.stdin is not None
        assert agent.stdout is not None
        # The process that started it reaps it, while it lives.
        threading.Thread(target=agent.wait, name="gridflow-reaper", daemon=True).start()
        timer = threading.Timer(_START_SECONDS, agent.kill)
        timer.start()
        with contextlib.suppress(BrokenPipeError), agent.stdin:
            # By the pipe: keys are for no command line and no file.
            pickle.dump((payload, place, gpus, line, owner, executor), agent.stdin)
        with agent.stdout:
            is_up = agent.stdout.readline().strip() == UP
        timer.cancel()
        if not is_up:
            agent.kill()
            errors.seek(0)
            words = errors.read().decode(errors="replace").strip()
            raise GridflowError(f"the agent of task {place} did not come up. {words}")


def _java_above() -> tuple[int, int | None]:
    """Return the process id of this Python worker's executor, and when it started."""
    import psutil

    for parent in psutil.Process().parents():
        with contextlib.suppress(psutil.Error):
            if "java" in parent.name():
                return parent.pid, began(parent.pid)
    return os.getppid(), began(os.getppid())


def main() -> None:
    """Run one task as a detached agent, until its job, driver or executor ends."""
    from gridflow._agent.agent import Agent

    # From the parent's own pipe: no one else can write to it.
    payload, place, gpus, line, owner, executor = pickle.load(sys.stdin.buffer)  # noqa: S301
    signal.signal(signal.SIGTERM, _end)
    connection = mutual_tls.knock(line.address, line.key)
    connection.send_bytes(msgspec.msgpack.encode(place))
    watcher = threading.Thread(target=_watch, args=(connection, owner), daemon=True)
    watcher.start()
    sys.stdout.write(UP.decode() + "\n")
    sys.stdout.flush()
    silence = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(silence, stream)
    Agent(payload, place, gpus, executor).run(())
    connection.send_bytes(BYE)


def _watch(line: Connection, owner: tuple[int, int | None]) -> None:
    """End this process when its line says so or breaks, or when its executor is gone."""
    pid, its_begin = owner
    with contextlib.suppress(EOFError, OSError):
        while not line.poll(_LOOK_SECONDS):
            if began(pid) != its_begin:
                break
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(END_SECONDS)
    os._exit(1)


def _end(*_: object) -> NoReturn:
    """Unwind, so that everything is cleaned up."""
    raise SystemExit(143)


if __name__ == "__main__":
    main()
