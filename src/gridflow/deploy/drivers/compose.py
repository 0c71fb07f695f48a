"""Runs jobs on this host's Docker with ``docker compose``."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any, Final, TextIO

from gridflow._spec.exits import Exit
from gridflow.deploy.drivers.base import (
    AlreadyThere,
    Patience,
    TaskStatus,
    call,
    say,
    tool,
    verdict,
)
from gridflow.deploy.drivers.streams import show, showing
from gridflow.deploy.task_start import tasks
from gridflow.errors import GridflowError, MissingDependency

if TYPE_CHECKING:
    from gridflow.deploy.description.description import Job
    from gridflow.deploy.rendering import Rendering

_POLL: Final = 1.0
_LAST_WORDS: Final = 10.0


class ComposeDriver:
    """Starts, follows and removes a rendered job."""

    def __init__(self, job: Job, rendering: Rendering, *, poll: float = _POLL) -> None:
        docker = tool("docker", "Install Docker, or render the job and run it on another host.")
        self._words = [docker, "compose", f"--project-name={job.name}", "--file=-"]
        self._job = job
        self._tasks = [f"{role}-{index}" for role, index in tasks(job)]
        self._text = rendering.text()
        self._poll = poll
        try:
            call([docker, "compose", "version"])
        except GridflowError as error:
            reason = f"Docker's Compose plugin (docker compose) isn't installed: {error}"
            raise MissingDependency(reason) from error

    def start(self, *, replace: bool = False, follows: bool = True) -> None:  # noqa: ARG002
        """Create and start the containers."""
        if there := self._services():
            if not replace:
                states = ", ".join(f"{t['Service']} {t['State']}" for t in there)
                raise AlreadyThere(self._job.name, f"{self._job.name} already exists ({states})")
            self.cancel()
        self._call("up", "--detach")
        hint = f"list them with 'docker compose -p {self._job.name} ps'"
        say(f"started {self._job.tasks} tasks; {hint}")

    def follow(self, output: TextIO) -> int:
        """Print the output until all tasks have ended."""
        # Leave out TensorBoard, which never ends, so that the output ends with the tasks.
        words = [*self._words, "logs", "--follow", *self._tasks]
        patience = Patience(self._job.name, self._job.start_timeout, self._job.deadline)
        with showing(words, output, self._text) as stream:
            while True:
                found = [t for t in self._services() if t["Service"] in self._tasks]
                if not found:
                    say(f"{self._job.name} was removed before its result was known")
                    return int(Exit.OTHER)
                if all(task["State"] == "exited" for task in found):
                    break
                states = {task["Service"]: task["State"] for task in found}
                code = patience.verdict(
                    has_begun=any(state != "created" for state in states.values()),
                    is_running="running" in states.values(),
                    is_queued=False,
                    reasons=[f"{name}: {state}" for name, state in states.items()],
                )
                if code is not None:
                    return code
                time.sleep(self._poll)
            try:
                stream.wait(timeout=_LAST_WORDS)
            except subprocess.TimeoutExpired:
                say("the end of the output is missing; print all of it with 'gridflow logs'")
        return verdict({t["Service"]: t["ExitCode"] for t in found if t["ExitCode"]})

    def status(self) -> list[TaskStatus]:
        """Return the containers."""
        return [
            TaskStatus(task["Service"], task["State"], f"exit code {task['ExitCode']}")
            if task["State"] == "exited"
            else TaskStatus(task["Service"], task["State"])
            for task in self._services()
        ]

    def is_there(self) -> bool:
        """Return whether there are containers."""
        return bool(self._services())

    def logs(self, *, follow: bool) -> int:
        """Print the output of all containers."""
        words = [*self._words, "logs", *(["--follow"] if follow else [])]
        return show(words, sys.stdout, self._text)

    def cancel(self) -> None:
        """Stop and remove the containers; named volumes stay."""
        # Scratch directories are anonymous volumes, which `down` would leave behind.
        self._call("rm", "--stop", "--force", "--volumes")
        self._call("down")

    def _services(self) -> list[dict[str, Any]]:
        text = self._call("ps", "--all", "--format=json").strip()
        # Compose up to 2.20 prints one list, later versions print one object per line.
        parsed = json.loads(text) if text.startswith("[") else map(json.loads, text.splitlines())
        return list(parsed)

    def _call(self, *words: str) -> str:
        return call([*self._words, *words], self._text)
