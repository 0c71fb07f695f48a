"""Runs jobs on Docker Swarm with ``docker`` on one of its managers."""

from __future__ import annotations

import json
import re
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
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
from gridflow.deploy.drivers.streams import LogStream, show
from gridflow.deploy.targets.base import write_all
from gridflow.deploy.targets.swarm import STACK
from gridflow.deploy.task_start import tasks
from gridflow.errors import GridflowError

if TYPE_CHECKING:
    from gridflow.deploy.description.description import Job
    from gridflow.deploy.rendering import Rendering

_POLL: Final = 1.0
_LAST_WORDS: Final = 10.0
#: Seconds for Swarm to stop a stack's tasks and remove its network.
_GONE: Final = 120.0
#: A task that should have ended and still runs after this many seconds is lost with its node. This
#: is longer than the time between SIGTERM and SIGKILL.
_LOST: Final = 90.0
#: The label that identifies a stack's objects.
_LABEL: Final = "com.docker.stack.namespace"
#: First versions in which a service's tasks resolve each other's host names (moby/moby, pull
#: request 39204), and in which tasks with generic resources stay on their nodes (issue 44378).
_NAMES: Final = (20, 10)
_DEVICES: Final = (24, 0)
#: Final states (moby/swarmkit, api/types.proto).
_ENDED: Final = ("complete", "shutdown", "failed", "rejected", "remove", "orphaned")
#: States of a task that isn't on a node yet.
_UNPLACED: Final = ("new", "allocated", "pending")
#: moby/moby, daemon/cluster/executor/container/errors.go.
_CODE: Final = re.compile(r"non-zero exit \((\d+)\)")


@dataclass(frozen=True)
class SwarmTask:
    """A line of ``docker stack ps``."""

    id: str
    name: str
    state: str
    desired: str
    error: str
    node: str

    @classmethod
    def of(cls, line: str) -> SwarmTask:
        """Read a line of ``--format '{{json .}}'``."""
        item: dict[str, str] = json.loads(line)
        return cls(
            id=item["ID"],
            name=item["Name"],
            state=item["CurrentState"].partition(" ")[0].lower(),
            desired=item["DesiredState"].lower(),
            error=item["Error"].strip('"'),
            node=item["Node"],
        )

    @property
    def has_ended(self) -> bool:
        """Whether the task's state is final."""
        return self.state in _ENDED

    @property
    def has_begun(self) -> bool:
        """Whether a container has started, or will never do so."""
        return self.state == "running" or self.has_ended

    @property
    def exit_code(self) -> int | None:
        """The program's exit code, None if it wasn't started or was stopped."""
        found = _CODE.search(self.error)
        return int(found.group(1)) if found else 0 if self.state == "complete" else None

    @property
    def has_output(self) -> bool:
        """Whether there is a container with output."""
        return self.state in {"running", "complete", "shutdown", "failed"}


class SwarmDriver:
    """Starts, follows and removes a rendered stack."""

    def __init__(self, job: Job, rendering: Rendering, *, poll: float = _POLL) -> None:
        hint = "Install Docker, or render the job and deploy it on a manager of the swarm."
        self._docker = tool("docker", hint)
        self._name = job.name
        self._limits = (job.start_timeout, job.deadline)
        self._tasks = [f"{job.name}_{role}.{index + 1}" for role, index in tasks(job)]
        self._has_gpus = any(role.resources.gpu for role in job.roles.values())
        self._rendering = rendering
        self._poll = poll
        self._seen: dict[str, str] = {}
        self._streams: dict[str, LogStream] = {}
        #: When a running task was first seen with a final desired state.
        self._leaving: dict[str, float] = {}

    def start(self, *, replace: bool = False, follows: bool = True) -> None:  # noqa: ARG002
        """Deploy the stack."""
        self._check_swarm()
        if self._services():
            if not replace:
                states = ", ".join(f"{task.task} {task.state}" for task in self.status())
                raise AlreadyThere(self._name, f"{self._name} already exists ({states})")
            self.cancel()
        # Objects removed by 'gridflow cancel' may still be terminating.
        self._wait_until_gone()
        with tempfile.TemporaryDirectory(prefix="gridflow-") as folder:
            write_all(self._rendering.documents, Path(folder))
            words = ["--with-registry-auth", f"--compose-file={folder}/{STACK}", self._name]
            try:
                said = self._call("stack", "deploy", *words)
            except GridflowError:
                # Docker creates the network before it looks for the secrets.
                self.cancel()
                raise
        for line in said.splitlines():
            say(line)

    def follow(self, output: TextIO) -> int:
        """Print tasks and their output until all have ended."""
        patience = Patience(self._name, *self._limits)
        try:
            while True:
                # Look at services before tasks, so that a task that ends in between counts as
                # running.
                is_there = bool(self._services())
                found = self._own_tasks()
                for task in found.values():
                    self._show(task, output)
                code = self._verdict(found, is_there=is_there)
                if code is None:
                    code = patience.verdict(
                        has_begun=any(task.has_begun for task in found.values()),
                        is_running=any(task.state == "running" for task in found.values()),
                        is_queued=False,
                        reasons=[f"{name}: {self._seen[name]}" for name in found],
                    )
                if code is not None:
                    return code
                time.sleep(self._poll)
        finally:
            self._end_streams()

    def status(self) -> list[TaskStatus]:
        """Return the newest task of each slot."""
        return [
            TaskStatus(task.name, task.state, f"{task.node} {task.error}".strip())
            for task in self._newest().values()
        ]

    def is_there(self) -> bool:
        """Return whether the stack has services."""
        return bool(self._services())

    def logs(self, *, follow: bool) -> int:
        """Print the output of all services; with `follow`, that of the tasks until they end."""
        if follow:
            # 'docker service logs --follow' would not end with the tasks.
            self.follow(sys.stdout)
            return 0
        codes = []
        for service in self._services():
            words = [self._docker, "service", "logs", "--no-task-ids", service]
            codes.append(show(words, sys.stdout))
        return max(codes, default=0)

    def cancel(self) -> None:
        """Remove the stack; volumes stay."""
        for line in self._call("stack", "rm", self._name).splitlines():
            say(line)

    def _check_swarm(self) -> None:
        """Reject a swarm on which the job couldn't run, or its result couldn't be seen."""
        swarm = json.loads(self._call("info", "--format={{json .Swarm}}"))
        if not swarm.get("ControlAvailable"):
            raise GridflowError(
                f"this Docker isn't a manager of a swarm (its state is "
                f"{swarm.get('LocalNodeState', 'unknown')!r}): run 'docker swarm init', or set "
                "DOCKER_HOST or DOCKER_CONTEXT to a manager."
            )
        settings = ((swarm.get("Cluster") or {}).get("Spec") or {}).get("Orchestration") or {}
        if settings.get("TaskHistoryRetentionLimit") == 0:
            raise GridflowError(
                "this swarm keeps no history of tasks, so the job's result would be unknown: run "
                "'docker swarm update --task-history-limit=5'."
            )
        nodes = map(json.loads, self._call("node", "ls", "--format={{json .}}").splitlines())
        needed, why = (_NAMES, "tasks can't resolve each other's host names")
        if self._has_gpus:
            needed, why = (_DEVICES, "Swarm rejects tasks with GPUs soon after their start")
        old = [f"{n['Hostname']} ({n['EngineVersion']})" for n in nodes if _is_old(n, needed)]
        if old:
            raise GridflowError(
                f"on nodes with Docker before {needed[0]}.{needed[1]}, {why}: {', '.join(old)}. "
                "Update or drain these nodes."
            )

    def _verdict(self, found: dict[str, SwarmTask], *, is_there: bool) -> int | None:
        """Return the exit code if the job has ended, otherwise None."""
        if not is_there or any(name in self._seen and name not in found for name in self._tasks):
            say(f"{self._name} was removed before its result was known")
            return int(Exit.OTHER)
        if len(found) < len(self._tasks):
            return None
        codes = {name: task.exit_code for name, task in found.items() if task.has_ended}
        gone = {task.name for task in found.values() if self._is_lost(task)}
        going = [task for name, task in found.items() if name not in {*codes, *gone}]
        has_failed = bool(gone) or any(code != 0 for code in codes.values())
        # A task that can't be placed waits forever, even after the others have given up.
        if going and not (has_failed and all(task.state in _UNPLACED for task in going)):
            return None
        for task in going:
            say(f"{task.name} was never placed: {task.error or task.state}")
        for name in sorted(gone):
            say(f"{name} should have ended {_LOST:g} s ago; its node doesn't respond")
        for name in [name for name, code in codes.items() if code is None]:
            say(f"{name} ended as {found[name].state}: {found[name].error or 'it was stopped'}")
        code = verdict({name: code for name, code in codes.items() if code})
        return code or (int(Exit.LOST) if has_failed else 0)

    def _is_lost(self, task: SwarmTask) -> bool:
        """Return whether a task should have ended long ago, because its node is down.

        Swarm then keeps its last known state (moby/swarmkit, manager/orchestrator/restart).
        """
        if task.has_ended or task.desired not in _ENDED or task.state in _UNPLACED:
            self._leaving.pop(task.id, None)
            return False
        now = time.monotonic()
        return now - self._leaving.setdefault(task.id, now) >= _LOST

    def _show(self, task: SwarmTask, output: TextIO) -> None:
        where = f" on {task.node}" if task.node else ""
        line = f"{task.state}{where}" + (f": {task.error}" if task.error else "")
        if self._seen.get(task.name) != line:
            self._seen[task.name] = line
            say(f"{task.name}: {line}")
        if task.has_output and task.id not in self._streams:
            words = [self._docker, "service", "logs", "--timestamps", "--no-task-ids", task.id]
            self._streams[task.id] = LogStream(
                words, output, self._poll, since="--since", is_endless=True
            )
        if task.has_ended and task.id in self._streams:
            self._streams[task.id].end()

    def _end_streams(self) -> None:
        until = time.monotonic() + _LAST_WORDS
        streams = self._streams.values()
        whole = [stream.close(max(0.0, until - time.monotonic())) for stream in streams]
        self._streams = {}
        if not all(whole):
            say("the end of the output is missing; print all of it with 'gridflow logs'")

    def _own_tasks(self) -> dict[str, SwarmTask]:
        """Return the roles' tasks, without TensorBoard and model servers, which never end."""
        newest = self._newest()
        return {name: newest[name] for name in self._tasks if name in newest}

    def _newest(self) -> dict[str, SwarmTask]:
        """Return the newest task of each slot."""
        found: dict[str, SwarmTask] = {}
        for task in self._listed():
            # Tasks of a slot are listed together, newest first (docker/cli, command/task/print.go).
            # Tasks of removed services no longer have a name.
            if task.name.startswith(f"{self._name}_") and task.desired != "remove":
                found.setdefault(task.name, task)
        return found

    def _listed(self) -> list[SwarmTask]:
        words = ["stack", "ps", "--no-trunc", "--format={{json .}}", self._name]
        try:
            return [SwarmTask.of(line) for line in self._call(*words).splitlines()]
        except GridflowError as error:
            if "nothing found in stack" not in str(error).lower():
                raise
            return []

    def _services(self) -> list[str]:
        return self._labelled("service", "{{.Name}}")

    def _labelled(self, kind: str, form: str) -> list[str]:
        words = ["ls", f"--filter=label={_LABEL}={self._name}", f"--format={form}"]
        return self._call(kind, *words).splitlines()

    def _wait_until_gone(self) -> None:
        end = time.monotonic() + _GONE
        while left := [
            *(task.id for task in self._listed()),
            *self._labelled("network", "{{.ID}}"),
        ]:
            if time.monotonic() > end:
                raise GridflowError(
                    f"Swarm still has {', '.join(left)} of the removed stack {self._name} after "
                    f"{_GONE:g} s."
                )
            time.sleep(self._poll)

    def _call(self, *words: str) -> str:
        return call([self._docker, *words])


def _is_old(node: dict[str, Any], needed: tuple[int, int]) -> bool:
    found = re.match(r"(\d+)\.(\d+)", node.get("EngineVersion", ""))
    is_drained = node.get("Availability", "").lower() == "drain"
    return not is_drained and found is not None and tuple(map(int, found.groups())) < needed
