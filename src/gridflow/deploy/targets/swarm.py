"""Docker Swarm: a stack with a service for each role; slots identify its tasks.

Sources of the format, in docker/cli: cli/compose/schema/data/config_schema_v3.13.json and
cli/compose/convert.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, TextIO

from gridflow._spec.exits import Exit
from gridflow.deploy.description.description import RUN_AS_USER
from gridflow.deploy.description.problems import Problem
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
from gridflow.deploy.emit import to_yaml
from gridflow.deploy.lint.report import shapes
from gridflow.deploy.pods import GCS_DIRECTORY, s3_settings
from gridflow.deploy.targets import serving
from gridflow.deploy.targets.base import Document, Target, sides, write_all
from gridflow.deploy.targets.compose import (
    amount,
    check_services,
    claims,
    doubled,
    escape,
    limits,
    volumes,
)
from gridflow.deploy.targets.sidecars import tensorboard_words
from gridflow.deploy.task_start import (
    addresses,
    news,
    program_words,
    start_variables,
    start_words,
    tasks,
)
from gridflow.errors import GridflowError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from gridflow.deploy.description.description import Job
    from gridflow.deploy.description.parts import Resources, SecretKey
    from gridflow.deploy.description.services import Serve
    from gridflow.deploy.drivers.base import Driver
    from gridflow.deploy.lint.report import LintReport
    from gridflow.deploy.targets.base import Rendering

#: Has all fields that are written here, and Docker reads it since 19.03. Without a version, Docker
#: before 25 assumes version 1.
VERSION: Final = "3.8"
STACK: Final = "stack.yaml"
#: Counts from 1. The mode replicated-job isn't used: its slots count from 0, and the placeholder
#: for slot 0 is the node's id (moby/swarmkit, template/context.go and manager/orchestrator/jobs).
SLOT: Final = "{{.Task.Slot}}"
#: `gridflow launch` gives a program 25 seconds from SIGTERM to SIGKILL.
STOP_GRACE: Final = "30s"
SECRETS: Final = "/run/secrets"
#: Limit for a service's name, including the stack's (moby/swarmkit, controlapi/service.go).
MOST_OF_NAME: Final = 63
ONE_VALUE: Final = (
    "a Swarm secret or config is one file without keys; use an override with a target for each file"
)


def verbatim(text: str) -> str:
    """Escape a variable or mount, so that it reaches the container unchanged.

    The stack command expands ``$NAME``. Swarm then treats variables and mounts, but not commands
    and labels, as Go templates (moby/swarmkit, template/expand.go).
    """
    return doubled(text.replace("{{", '{{"{{"}}'))


def secret_name(ref: SecretKey) -> str:
    """Return the name of the Swarm secret for a secret's key."""
    return f"{ref.secret}.{ref.key}"


def reading(variables: Mapping[str, SecretKey]) -> list[str]:
    """Return a command that sets variables from secrets and then runs the words that follow it.

    Swarm provides secrets only as files.
    """
    if not variables:
        return []
    reads = [
        f'{name}="$(cat {SECRETS}/{secret_name(ref)})" && export {name}'
        for name, ref in variables.items()
    ]
    return ["sh", "-c", doubled(" && ".join([*reads, 'exec "$@"'])), "sh"]


def gpu_kind(resource: str) -> str:
    """Return the generic resource for a Kubernetes device, such as NVIDIA-GPU or AMD-GPU."""
    vendor, _, device = resource.partition("/")
    return f"{vendor.partition('.')[0]}-{device}".upper()


def deploy(job: Job, wanted: Resources, **settings: Any) -> dict[str, Any]:
    """Return a service's ``deploy`` section: resources, placement and other settings."""
    amounts: dict[str, Any] = {}
    # Swarm's scheduler only considers reservations.
    if found := limits(wanted):
        amounts = {"limits": found, "reservations": dict(found)}
    if wanted.gpu:
        spec = {"kind": gpu_kind(wanted.gpu_resource), "value": wanted.gpu}
        devices = [{"discrete_resource_spec": spec}]
        amounts["reservations"] = {**found, "generic_resources": devices}
    if amounts:
        settings["resources"] = amounts
    if job.node_selector:
        nodes = [f"node.labels.{key}=={value}" for key, value in job.node_selector.items()]
        settings["placement"] = {"constraints": nodes}
    return settings


def service(job: Job, image: str, words: list[str], *, looks_on: bool = False) -> dict[str, Any]:
    """Return the part that all services of the stack share.

    ``looks_on`` is for services that only read training results.
    """
    keys = job.credentials.keys if looks_on else job.secret_keys
    mounts = [escape(entry, verbatim) for entry in volumes(job)]
    if looks_on:
        mounts = [{**entry, "read_only": True} for entry in mounts]
    elif job.shared_memory:
        size = int(amount(job.shared_memory))
        # The stack command ignores shm_size.
        mounts.append({"type": "tmpfs", "target": "/dev/shm", "tmpfs": {"size": size}})  # noqa: S108
    names = dict.fromkeys(secret_name(ref) for ref in keys.values())
    files = [{"source": name, "target": name} for name in names]
    environment = escape(s3_settings(job), verbatim)
    if gcs := job.credentials.gcs:
        place = f"{GCS_DIRECTORY}/{gcs.key}"
        files.append({"source": f"{gcs.secret}.{gcs.key}", "target": place})
        environment["GOOGLE_APPLICATION_CREDENTIALS"] = place
    whole: dict[str, Any] = {
        "image": image,
        "entrypoint": [*reading(keys), *words],
        "environment": environment,
        "volumes": mounts,
        "secrets": files,
        "labels": escape({**job.annotations, **job.labels}),
    }
    return {key: value for key, value in whole.items() if value}


def role_service(job: Job, role: str, variables: dict[str, str]) -> dict[str, Any]:
    """Return the service for all tasks of a role."""
    start = start_words(job, restarts=True, deadline=True)
    whole = service(job, job.image, start)
    program = escape(program_words(job, role))
    environment = {**escape({**variables, **job.env_of(role)}, verbatim), "GRIDFLOW_SLOT": SLOT}
    whole["environment"] = {**environment, **whole.get("environment", {})}
    whole |= {
        "hostname": f"{role}-{SLOT}",
        "init": True,
        # With an image's health check, Swarm would only publish the task's name once it is healthy
        # (moby/moby, daemon/cluster/executor/container/controller.go, Start), but a task needs the
        # others to become healthy.
        "healthcheck": {"disable": True},
        "stop_grace_period": STOP_GRACE,
        "deploy": deploy(
            job,
            job.roles[role].resources,
            replicas=job.roles[role].replicas,
            # Tasks use each other's names. A service address would go through IPVS, which drops
            # connections after 15 idle minutes.
            endpoint_mode="dnsrr",
            # gridflow launch restarts by the job's policy; Swarm can't tell failures apart.
            restart_policy={"condition": "none"},
            # Update all tasks at once: a group can't train with tasks of an older stack.
            update_config={"parallelism": 0, "order": "stop-first"},
        ),
    }
    if program:
        whole["command"] = program
    if job.run_as_user != RUN_AS_USER:
        whole["user"] = str(job.run_as_user)
    return whole


def board(job: Job) -> dict[str, Any]:
    """Return TensorBoard's service."""
    assert job.tensorboard is not None
    words = escape(tensorboard_words(job.tensorboard))
    whole = service(job, job.tensorboard.image, words, looks_on=True)
    port = job.tensorboard.port
    restart = {"condition": "any"}
    whole |= {
        "ports": [f"{port}:{port}"],
        "deploy": deploy(job, job.tensorboard.resources, restart_policy=restart),
    }
    return whole


def config_names(job: Job, serve: Serve) -> dict[str, str]:
    """Return the names of the Swarm configs for TensorFlow Serving, by file name.

    Configs are immutable, so new content gets a new name, which also replaces the servers.
    """
    found = {}
    for name, text in serving.files(serve).items():
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        found[name] = f"{job.name}_{name.partition('.')[0]}-{digest}"
    return found


def servers(job: Job, serve: Serve) -> dict[str, Any]:
    """Return TensorFlow Serving's service."""
    serving.check_buckets(serve)
    words = ["tensorflow_model_server", *escape(serving.server_words(serve))]
    whole = service(job, serve.image, words, looks_on=True)
    whole |= {
        "ports": [f"{port}:{port}" for port in (serve.rest_port, serve.grpc_port)],
        "configs": [
            {"source": name, "target": f"{serving.CONFIG}/{name}"} for name in serving.files(serve)
        ],
        "deploy": deploy(
            job,
            serve.resources,
            replicas=serve.replicas,
            restart_policy={"condition": "any"},
            update_config={"parallelism": 1, "order": "start-first", "failure_action": "rollback"},
        ),
    }
    return whole


# Rules that its schema lacks ----------------------------------------------------------------------

_SHAPES: Final = shapes(
    StackService="""
        build cap_add cap_drop cgroup_parent cgroupns_mode command configs container_name
        credential_spec depends_on deploy devices dns dns_search domainname entrypoint
        env_file environment expose external_links extra_hosts healthcheck hostname image
        init ipc isolation labels links logging mac_address network_mode networks
        oom_score_adj pid ports privileged read_only restart secrets security_opt shm_size
        stdin_open stop_grace_period stop_signal sysctls tmpfs tty ulimits user userns_mode
        volumes working_dir
    """,
    Stack="""
        configs networks secrets services version volumes
    """,
    # docker/cli, cli/compose/types/types.go, UnsupportedProperties and DeprecatedProperties; no
    # depends_on is read in cli/compose/convert.
    IgnoredInStacks="""
        build cgroup_parent cgroupns_mode container_name depends_on devices domainname expose
        external_links ipc links mac_address network_mode pid privileged restart security_opt
        shm_size userns_mode
    """,
)


_VERSION: Final = re.compile(r"3(\.\d+)?\Z")
_JOBS: Final = ("replicated-job", "global-job")
_MODES: Final = ("replicated", "global", *_JOBS)
#: The names allowed in placeholders (moby/swarmkit, template/context.go).
_PLACEHOLDER: Final = re.compile(r"\{\{-?\s*(\.[A-Za-z.]+)")
_KNOWN: Final = re.compile(
    r"\.(Service\.(ID|Name|Labels(\..+)?)|Task\.(ID|Name|Slot)"
    r"|Node\.(ID|Hostname|Platform\.(OS|Architecture)))\Z"
)
#: moby/swarmkit, manager/constraint/constraint.go.
_CONSTRAINT: Final = re.compile(
    r"\s*[a-z_][a-z0-9\-_.]+\s*(==|!=)\s*[a-z0-9:\-_\s.*()?+\[\]\\^$|/]+\Z", re.IGNORECASE
)
#: Names of secrets and configs (moby/swarmkit, manager/controlapi/secret.go).
_NAME: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9_.-]*[a-zA-Z0-9])?\Z")
_MOST_OF_NAME: Final = 64


def _deploy(report: LintReport, path: str, service: dict[str, Any]) -> None:
    place = f"{path}.deploy"
    deploy = report.mapping(place, service.get("deploy"))
    mode = deploy.get("mode")
    report.one_of(f"{place}.mode", mode, _MODES)
    report.integer(f"{place}.replicas", deploy.get("replicas"), 0)
    endpoint = deploy.get("endpoint_mode")
    report.one_of(f"{place}.endpoint_mode", endpoint, ("vip", "dnsrr"))
    if endpoint == "dnsrr" and any(_is_ingress(port) for port in service.get("ports") or ()):
        report.add(
            f"{place}.endpoint_mode", "with dnsrr, ports can only be published in host mode."
        )
    policy = report.mapping(f"{place}.restart_policy", deploy.get("restart_policy"))
    conditions = ("none", "on-failure") if mode in _JOBS else ("none", "on-failure", "any")
    report.one_of(f"{place}.restart_policy.condition", policy.get("condition"), conditions)
    if mode in _JOBS and ".Task.Slot" in str(service.get("hostname", "")):
        reason = f"slots of a {mode} count from 0, and slot 0 is replaced by the node's id."
        report.add(f"{path}.hostname", reason)
    placement = report.mapping(f"{place}.placement", deploy.get("placement"))
    at = f"{place}.placement.constraints"
    for index, text in enumerate(report.listing(at, placement.get("constraints"))):
        if not _CONSTRAINT.match(str(text)):
            reason = f"invalid constraint {text!r}: use NAME==VALUE or NAME!=VALUE, without '/'."
            report.add(f"{at}[{index}]", reason)


def _is_ingress(port: Any) -> bool:
    return not isinstance(port, dict) or port.get("mode", "ingress") == "ingress"


def _named(report: LintReport, path: str, key: Any, value: dict[str, Any]) -> None:
    if not any(value.get(each) for each in ("file", "external", "driver")):
        report.add(path, "has neither file nor external.")
    name = str(value.get("name", key))
    if len(name) > _MOST_OF_NAME or not _NAME.match(name):
        report.add(
            path,
            f"invalid name of a secret or config: {name!r}. Use letters, digits, '-', '_' and '.', "
            f"at most {_MOST_OF_NAME} characters.",
        )


@cache
def _has_stack_config() -> bool:
    """Return whether a ``docker`` command that checks stacks is installed; it needs no engine."""
    return shutil.which("docker") is not None and "stack config" in _docker("--help").stdout


def _problem_of_stack(document: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the problem that Docker finds in a stack; it reports one at a time."""
    done = _docker("--compose-file=-", to_yaml([document]))
    if done.returncode:
        path, _, reason = done.stderr.strip().partition(" ")
        if path.partition(".")[0] in document:
            yield re.sub(r"\.(\d+)(?=\.|$)", r"[\1]", path), reason
        else:
            yield "", done.stderr.strip()


def _docker(option: str, text: str = "") -> subprocess.CompletedProcess[str]:
    words = [shutil.which("docker") or "docker", "stack", "config", option]
    return subprocess.run(words, input=text, capture_output=True, text=True, check=False)


# The job, started and followed --------------------------------------------------------------------


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


class SwarmTarget(Target):
    """A stack file."""

    name = "swarm"
    title = "Docker Swarm: a stack with a service for each role"
    form = "swarm"
    shapes = _SHAPES
    schema = "docker-stack.json"
    cannot: ClassVar = {
        "namespace": "Swarm has no namespaces; the stack name keeps jobs apart",
        "resources.gpu_type": "generic resources have no GPU model; label the nodes and select "
        "them with node_selector",
        "time_to_live": "nothing removes finished services after a while",
        "clean_up=running": "Swarm doesn't stop tasks by itself; use 'gridflow cancel'",
        "clean_up=all": "Swarm doesn't remove services by itself; use 'gridflow cancel'",
        "gang": "Swarm places tasks one by one; tasks wait for their peers up to start_timeout",
        "volumes.secret": ONE_VALUE,
        "volumes.config": ONE_VALUE,
        "secrets.files": ONE_VALUE,
        "secrets.image_pull": "credentials for the registry come from 'docker login', and "
        "'gridflow run' passes them on",
        "tolerations": "Swarm nodes have no taints",
        "affinity": "Swarm has constraints; select nodes with node_selector",
        "priority_class": "Swarm has no priorities",
        "service_account": "there are no service accounts",
    }
    leaves: ClassVar = sides(but="serve")

    def render(self, job: Job) -> list[Document]:
        """Return the stack and its config files."""

        def host(role: str, index: int) -> str:
            return f"{role}-{index + 1}"

        cluster = addresses(job, host, lambda *_: job.port)
        heard = news(job, host, lambda *_: job.port + 1)
        services = {
            role: role_service(job, role, start_variables(role, None, cluster, heard))
            for role, _ in job.role_items()
        }
        whole: dict[str, Any] = {"version": VERSION, "services": services}
        if job.tensorboard:
            services["tensorboard"] = board(job)
        files = []
        if job.serve:
            services["serving"] = servers(job, job.serve)
            names = config_names(job, job.serve)
            whole["configs"] = {name: {"file": f"./{name}", "name": names[name]} for name in names}
            files = [Document(name, text) for name, text in serving.files(job.serve).items()]
        whole["networks"] = {"default": {"driver": "overlay"}}
        if named := claims(job):
            whole["volumes"] = named
        wanted = [each["source"] for one in services.values() for each in one.get("secrets", ())]
        if wanted:
            whole["secrets"] = {name: {"external": True} for name in dict.fromkeys(wanted)}
        return [*files, Document(STACK, whole)]

    def cannot_together(self, job: Job) -> Iterator[Problem]:
        """Yield names and labels that Swarm can't express."""
        beside = {"tensorboard": job.tensorboard, "serving": job.serve}
        names = [*job.roles, *(name for name, is_there in beside.items() if is_there)]
        if len(name := f"{job.name}_{max(names, key=len)}") > MOST_OF_NAME:
            reason = f"the service name {name!r} has {len(name)} characters (limit {MOST_OF_NAME})"
            yield Problem("name", reason)
        for key, value in job.node_selector.items():
            if "/" in key or not value:
                path = f"node_selector.{key}"
                yield Problem(
                    path, "placement constraints allow no '/' in a label and no empty value"
                )

    def check(self, report: LintReport, document: dict[str, Any]) -> None:
        """Check a stack file: ignored fields, modes, restarts, placement, placeholders, names."""
        report.mapping("", document, "Stack")
        version = document.get("version")
        if version is not None and not _VERSION.match(str(version)):
            report.add("version", f"must be 3 or 3.N for 'docker stack deploy', got {version!r}.")
        for path, service in check_services(report, document, "StackService"):
            for key in sorted(_SHAPES["IgnoredInStacks"] & set(service)):
                report.add(f"{path}.{key}", "is ignored by 'docker stack deploy'.")
            _deploy(report, path, service)
            texts = {"hostname": service.get("hostname")}
            environment = service.get("environment")
            texts |= {
                f"environment.{key}": value
                for key, value in (environment if isinstance(environment, dict) else {}).items()
            }
            for place, text in texts.items():
                for name in _PLACEHOLDER.findall(text if isinstance(text, str) else ""):
                    if not _KNOWN.match(name):
                        report.add(f"{path}.{place}", f"unknown placeholder {{{{{name}}}}}.")
        for group in ("secrets", "configs"):
            for key, value in report.mapping(group, document.get(group)).items():
                _named(report, f"{group}.{key}", key, report.mapping(f"{group}.{key}", value))

    def drive(self, job: Job, rendering: Rendering) -> Driver:
        """Return the driver with ``docker stack``."""
        return SwarmDriver(job, rendering)

    def schema_problems(
        self, document: dict[str, Any], folder: Path | None
    ) -> Iterable[tuple[str, str]] | None:
        """Return what violates the folder's schema, or else the one in the ``docker`` command."""
        found = super().schema_problems(document, folder)
        return _problem_of_stack(document) if found is None and _has_stack_config() else found
