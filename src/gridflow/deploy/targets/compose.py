"""Docker Compose: a service for each task on one host."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any, ClassVar, Final, TextIO

from gridflow._spec.exits import Exit
from gridflow.deploy.description import rules
from gridflow.deploy.description.description import RUN_AS_USER
from gridflow.deploy.description.plain_secrets import holds_secret, is_secret
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
from gridflow.deploy.lint.cluster import check_cluster
from gridflow.deploy.lint.report import shapes
from gridflow.deploy.pods import GCS_DIRECTORY, s3_settings
from gridflow.deploy.targets.base import Document, Target
from gridflow.deploy.targets.sidecars import tensorboard_words
from gridflow.deploy.task_start import (
    addresses,
    news,
    program_words,
    start_variables,
    start_words,
    tasks,
)
from gridflow.errors import GridflowError, MissingDependency

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gridflow.deploy.description.description import Job
    from gridflow.deploy.description.parts import Resources
    from gridflow.deploy.drivers.base import Driver
    from gridflow.deploy.lint.report import LintReport
    from gridflow.deploy.targets.base import Rendering

#: Why targets with a single host can't select nodes.
ONE_HOST: Final = "everything runs on one host"
ONE_HOST_CANNOT: Final = {
    "namespace": "there are no namespaces; the project name keeps jobs apart",
    "resources.gpu_type": ONE_HOST,
    "resources.gpu_resource": "Docker supports only NVIDIA GPUs",
    "time_to_live": "nothing removes finished containers after a while",
    "gang": "all containers start at once anyway",
    "secrets.image_pull": "credentials for the registry come from 'docker login'",
    "node_selector": ONE_HOST,
    "tolerations": ONE_HOST,
    "affinity": ONE_HOST,
    "priority_class": "processes on one host have no priority classes",
    "service_account": "there are no service accounts",
}


def amount(text: str) -> str:
    """Return a quantity in bytes, as Docker expects it."""
    return str(int(rules.quantity(text)))


def doubled(text: str) -> str:
    """Double every ``$``, so that Compose doesn't expand it."""
    return text.replace("$", "$$")


def escape(value: Any, change: Callable[[str], str] = doubled) -> Any:
    """Change all strings in a tree, except keys."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [escape(item, change) for item in value]
    if isinstance(value, dict):
        return {key: escape(item, change) for key, item in value.items()}
    return value


def limits(wanted: Resources) -> dict[str, str]:
    """Return a service's limits on cores and memory."""
    found = {}
    if wanted.cpu:
        found["cpus"] = f"{rules.quantity(wanted.cpu).normalize():f}"
    if wanted.memory:
        found["memory"] = amount(wanted.memory)
    return found


def deploy(wanted: Resources) -> dict[str, Any]:
    """Return a service's resources."""
    amounts: dict[str, Any] = {"limits": found} if (found := limits(wanted)) else {}
    if wanted.gpu:
        device = {"driver": "nvidia", "count": wanted.gpu, "capabilities": ["gpu"]}
        amounts["reservations"] = {"devices": [device]}
    return {"resources": amounts} if amounts else {}


def volumes(job: Job) -> list[dict[str, Any]]:
    """Return a service's volumes for claims, host directories and scratch space."""
    found: list[dict[str, Any]] = []
    for volume in job.volumes:
        entry: dict[str, Any] = {"type": "volume", "target": volume.path}
        if volume.pvc:
            entry["source"] = volume.pvc
        elif volume.host:
            entry |= {"type": "bind", "source": volume.host}
        elif volume.kind != "empty":  # an anonymous volume, on disk
            continue
        if volume.read_only:
            entry["read_only"] = True
        found.append(entry)
    return found


def claims(job: Job) -> dict[str, dict[str, str]]:
    """Return the claims as a document's named volumes."""
    return {volume.pvc: {"name": volume.pvc} for volume in job.volumes if volume.pvc}


def mounts(job: Job) -> list[dict[str, Any]]:
    """Return all volumes of a service."""
    found = volumes(job)
    for path, source in directories(job).items():
        entry = {"type": "bind", "target": path, "source": source, "read_only": True}
        # A missing directory must be an error; Docker would create an empty one, owned by root.
        found.append({**entry, "bind": {"create_host_path": False}})
    return [dict(escape(entry)) for entry in found]


def directories(job: Job) -> dict[str, str]:
    """Return local directories with the keys of secrets and configs, by their mount paths.

    There is no API that stores secrets on these targets, so each key is a file, as in a pod.
    """
    found = {path: f"./secrets/{name}" for path, name in job.secrets.files.items()}
    for volume in job.volumes:
        if volume.secret:
            found[volume.path] = f"./secrets/{volume.secret}"
        if volume.config:
            found[volume.path] = f"./configs/{volume.config}"
    if job.credentials.gcs:
        found[GCS_DIRECTORY] = f"./secrets/{job.credentials.gcs.secret}"
    return found


def environment(job: Job, role: str, launch: dict[str, str]) -> dict[str, str | None]:
    """Return a task's variables; those with secrets must be set in the shell that runs Compose."""
    env: dict[str, str | None] = dict(escape({**launch, **job.env_of(role), **s3_settings(job)}))
    for name in job.secret_keys:
        env[name] = f"${{{name}:?set it to the value of the secret}}"
    if job.credentials.gcs:
        place = f"{GCS_DIRECTORY}/{job.credentials.gcs.key}"
        env["GOOGLE_APPLICATION_CREDENTIALS"] = escape(place)
    return env


def required(name: str) -> str:
    """Return a line of a shell script that fails if a secret's variable is empty."""
    # The message must not contain quotes: bash and sh parse them differently inside ${…}.
    return f': "${{{name}:?set it to the value of the secret}}"'


def board(job: Job, common: dict[str, Any]) -> dict[str, Any]:
    """Return TensorBoard's service."""
    assert job.tensorboard is not None
    port = job.tensorboard.port
    service: dict[str, Any] = {
        "image": job.tensorboard.image,
        "entrypoint": [],
        "command": escape(tensorboard_words(job.tensorboard)),
        "ports": [f"{port}:{port}"],
        **{key: value for key, value in common.items() if key == "volumes"},
    }
    settings: dict[str, str | None] = dict(escape(s3_settings(job)))
    for name in job.credentials.keys:
        settings[name] = f"${{{name}:?set it to the value of the secret}}"
    if job.credentials.gcs:
        place = f"{GCS_DIRECTORY}/{job.credentials.gcs.key}"
        settings["GOOGLE_APPLICATION_CREDENTIALS"] = escape(place)
    if settings:
        service["environment"] = settings
    if resources := deploy(job.tensorboard.resources):
        service["deploy"] = resources
    return service


# Rules that its schema lacks ----------------------------------------------------------------------

_SHAPES: Final = shapes(
    ComposeService="""
        annotations attach blkio_config build cap_add cap_drop cgroup cgroup_parent command configs
        container_name cpu_count cpu_percent cpu_period cpu_quota cpu_rt_period cpu_rt_runtime
        cpu_shares cpus cpuset credential_spec depends_on deploy develop device_cgroup_rules
        devices dns dns_opt dns_search domainname entrypoint env_file environment expose extends
        external_links extra_hosts gpus group_add healthcheck hostname image init ipc isolation
        label_file labels links logging mac_address mem_limit mem_reservation mem_swappiness
        memswap_limit models network_mode networks oom_kill_disable oom_score_adj pid pids_limit
        platform ports post_start pre_stop privileged profiles provider pull_policy
        pull_refresh_after read_only restart runtime scale secrets security_opt shm_size stdin_open
        stop_grace_period stop_signal storage_opt sysctls tmpfs tty ulimits use_api_socket user
        userns_mode uts volumes volumes_from working_dir
    """,
    Compose="""
        configs include models name networks secrets services version volumes
    """,
)


_PROJECT: Final = re.compile(r"[a-z0-9][a-z0-9_-]*\Z")
_LONE_DOLLAR: Final = re.compile(r"(?<!\$)(?:\$\$)*\$(?![\${A-Za-z_])")


def check_services(
    report: LintReport, document: dict[str, Any], shape: str
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Check the rules for all services in Compose and stack files; yield each with its path."""
    services = report.mapping("services", document.get("services"))
    if not services:
        report.add("services", "is missing or empty.")
    for key, value in services.items():
        path = f"services.{key}"
        service = report.mapping(path, value, shape)
        report.add(path, rules.dns_label(str(key)))
        if "image" not in service and "build" not in service:
            report.add(path, "has neither image nor build.")
        if (image := report.text(f"{path}.image", service.get("image"))) is not None:
            report.add(f"{path}.image", rules.image(image))
        env = report.mapping(f"{path}.environment", service.get("environment"))
        _env(report, f"{path}.environment", env)
        _references(report, path, service, document)
        for other in _words(service.get("depends_on")):
            if other not in services:
                report.add(f"{path}.depends_on", f"there is no service {other!r}.")
        for index, port in enumerate(report.listing(f"{path}.ports", service.get("ports"))):
            numbers = str(port).partition("/")[0].split(":")[-2:] if isinstance(port, str) else []
            for number in numbers:
                if number.isdecimal():  # of many digits the first ones tell enough
                    report.add(f"{path}.ports[{index}]", rules.port_number(int(number[:9])))
        yield path, service


def _words(value: Any) -> list[str]:
    return [str(item) for item in value] if isinstance(value, (list, dict)) else []


def _env(report: LintReport, path: str, env: dict[str, Any]) -> None:
    for name, value in env.items():
        report.add(f"{path}.{name}", rules.env_name(str(name)))
        text = value if isinstance(value, str) else ""
        is_plain = text and not text.startswith("${")
        if is_plain and (holds_secret(str(name)) or is_secret(text)):
            reason = (
                f"{name} looks like a secret in plain text; take it from the shell: ${{{name}}}."
            )
            report.add(f"{path}.{name}", reason)
        if _LONE_DOLLAR.search(text):
            report.add(f"{path}.{name}", "has a single '$'; Compose needs '$$' for a '$'.")
    plain = {key: str(value).replace("$$", "$") for key, value in env.items() if value is not None}
    check_cluster(report, path, plain)


def _references(
    report: LintReport, path: str, service: dict[str, Any], document: dict[str, Any]
) -> None:
    for group in ("secrets", "configs"):
        known = report.mapping(group, document.get(group))
        for index, item in enumerate(report.listing(f"{path}.{group}", service.get(group))):
            source = item.get("source") if isinstance(item, dict) else item
            if source not in known:
                place = f"{path}.{group}[{index}]"
                report.add(place, f"there is no {source!r} under {group}.")
    known = report.mapping("volumes", document.get("volumes"))
    targets: list[str] = []
    for index, item in enumerate(report.listing(f"{path}.volumes", service.get("volumes"))):
        if not isinstance(item, dict):
            continue
        place = f"{path}.volumes[{index}]"
        if item.get("type") == "volume" and "source" in item and item["source"] not in known:
            report.add(f"{place}.source", f"there is no {item['source']!r} under volumes.")
        if item.get("target") in targets:
            report.add(f"{place}.target", f"{item['target']!r} is mounted twice.")
        targets.append(str(item.get("target")))


# The job, started and followed --------------------------------------------------------------------


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


class ComposeTarget(Target):
    """A Compose file."""

    name = "compose"
    title = "Docker Compose: each task is a service on one host"
    form = "compose"
    shapes = _SHAPES
    schema = "compose-spec.json"
    cannot: ClassVar = {
        **ONE_HOST_CANNOT,
        "clean_up=running": "Compose doesn't stop containers by itself; use 'docker compose down'",
        "clean_up=all": "Compose doesn't remove containers by itself; use 'docker compose down'",
    }

    def render(self, job: Job) -> list[Document]:
        """Return the Compose file."""
        cluster = addresses(job, lambda role, index: f"{role}-{index}", lambda *_: job.port)
        heard = news(job, lambda role, i: f"{role}-{i}", lambda *_: job.port + 1)
        common: dict[str, Any] = {}
        if found := mounts(job):
            common["volumes"] = found
        if job.shared_memory:
            common["shm_size"] = amount(job.shared_memory)
        services: dict[str, dict[str, Any]] = {}
        for role, index in tasks(job):
            service: dict[str, Any] = {
                "image": job.image,
                "hostname": f"{role}-{index}",
                "entrypoint": start_words(job, restarts=True, deadline=True),
                "command": escape(program_words(job, role)),
                "environment": environment(job, role, start_variables(role, index, cluster, heard)),
                "init": True,
                # gridflow launch restarts by the job's policy; Compose can't tell failures apart.
                "restart": "no",
                **common,
            }
            if job.run_as_user != RUN_AS_USER:
                service["user"] = str(job.run_as_user)
            if resources := deploy(job.roles[role].resources):
                service["deploy"] = resources
            if job.labels:
                service["labels"] = escape(dict(job.labels))
            if job.annotations:
                service["annotations"] = escape(dict(job.annotations))
            services[f"{role}-{index}"] = service
        if job.tensorboard:
            services["tensorboard"] = board(job, common)
        whole: dict[str, Any] = {"name": job.name, "services": services}
        if named := claims(job):
            whole["volumes"] = named
        return [Document("compose.yaml", whole)]

    def check(self, report: LintReport, document: dict[str, Any]) -> None:
        """Check a Compose file: references, ports, restarts, the cluster spec."""
        report.mapping("", document, "Compose")
        if "version" in document:
            report.add("version", "is obsolete; leave it out.")
        name = document.get("name")
        if name is not None and not _PROJECT.match(str(name)):
            report.add("name", f"{name!r} is not a project name: a-z, 0-9, '-', '_'.")
        for path, service in check_services(report, document, "ComposeService"):
            allowed = ("no", "always", "on-failure", "unless-stopped")
            restart = service.get("restart")
            plain = str(restart).partition(":")[0] if restart is not None else None
            report.one_of(f"{path}.restart", plain, allowed)

    def drive(self, job: Job, rendering: Rendering) -> Driver:
        """Return the driver with ``docker compose``."""
        return ComposeDriver(job, rendering)
