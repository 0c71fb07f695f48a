"""Marathon 1.10 on Mesos: a group with an app for each task, on the hosts' network.

Marathon runs services and restarts everything that ends, so `gridflow launch` keeps running when
its program is done.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import time
import urllib.error
import urllib.request
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, ClassVar, Final, TextIO

from gridflow.deploy.description import rules
from gridflow.deploy.description.description import Marathon
from gridflow.deploy.description.plain_secrets import holds_secret, is_secret
from gridflow.deploy.drivers.base import AlreadyThere, Patience, TaskStatus, say
from gridflow.deploy.lint.cluster import check_cluster
from gridflow.deploy.lint.report import shapes
from gridflow.deploy.pods import GCS_DIRECTORY, s3_settings
from gridflow.deploy.targets.base import Document, Target, sides
from gridflow.deploy.targets.sidecars import tensorboard_words
from gridflow.deploy.task_start import (
    addresses,
    news,
    ports_on_one_host,
    program_words,
    start_variables,
    start_words,
    tasks,
)
from gridflow.errors import GridflowError, InvalidArgument

if TYPE_CHECKING:
    from gridflow.deploy.description.description import Job
    from gridflow.deploy.description.parts import Resources
    from gridflow.deploy.drivers.base import Driver
    from gridflow.deploy.lint.report import LintReport
    from gridflow.deploy.targets.base import Rendering

ONE_FILE: Final = (
    "Mesos mounts a secret as one file and doesn't know its keys; use an override with a "
    "containerPath for each file"
)
DEFAULT_CPUS: Final = 1.0
DEFAULT_MEMORY: Final = 2048.0


def mebibytes(text: str) -> float:
    """Return a quantity in MiB."""
    return float(rules.quantity(text) / (1 << 20))


def volumes(job: Job) -> list[dict[str, Any]]:
    """Return a container's volumes."""
    found: list[dict[str, Any]] = [
        {
            "containerPath": volume.path,
            "hostPath": volume.host,
            "mode": "RO" if volume.read_only else "RW",
        }
        for volume in job.volumes
        if volume.host
    ]
    if gcs := job.credentials.gcs:
        found.append({"containerPath": f"{GCS_DIRECTORY}/{gcs.key}", "secret": "gcs"})
    return found


def secret_sources(job: Job) -> tuple[dict[str, Any], dict[str, dict[str, str]]]:
    """Return the variables with secrets, and the app's table of secrets."""
    env: dict[str, Any] = {}
    table = {}
    if gcs := job.credentials.gcs:
        env["GOOGLE_APPLICATION_CREDENTIALS"] = f"{GCS_DIRECTORY}/{gcs.key}"
        table["gcs"] = {"source": f"{job.name}/{gcs.secret}/{gcs.key}"}
    for variable, ref in job.secret_keys.items():
        name = f"env-{variable.lower().replace('_', '-')}"
        while name in table:  # HTTP_PROXY and http_proxy are two variables
            name += "-2"
        env[variable] = {"secret": name}
        table[name] = {"source": f"{job.name}/{ref.secret}/{ref.key}"}
    return env, table


def command_line(words: list[str]) -> str:
    """Return the words as a command for the image's shell.

    Mesos appends ``args`` to the image's ENTRYPOINT, or to its CMD if it has none, and runs ``cmd``
    in place of both (apache/mesos, docs/isolators/docker-runtime.md). With ``exec``, the program
    itself receives the signal to stop.
    """
    return "exec " + shlex.join(words)


def app(
    job: Job,
    name: str,
    image: str,
    words: list[str],
    ports: dict[str, int],
    wanted: Resources,
    env: dict[str, Any],
) -> dict[str, Any]:
    """Return one app of the group."""
    docker: dict[str, Any] = {"image": image}
    secret_env, table = secret_sources(job)
    if job.secrets.image_pull:
        pull = job.secrets.image_pull[0]
        name_of_pull = f"pull-{pull}" if pull in table else pull
        docker["pullConfig"] = {"secret": name_of_pull}
        table[name_of_pull] = {"source": f"{job.name}/{pull}"}
    container: dict[str, Any] = {"type": "MESOS", "docker": docker}
    if found := volumes(job):
        container["volumes"] = found
    if job.shared_memory:
        size = int(mebibytes(job.shared_memory))
        container["linuxInfo"] = {"ipcInfo": {"mode": "PRIVATE", "shmSize": size}}
    whole: dict[str, Any] = {
        "id": f"/{job.name}/{name}",
        "cmd": command_line(words),
        "cpus": float(rules.quantity(wanted.cpu)) if wanted.cpu else DEFAULT_CPUS,
        "mem": mebibytes(wanted.memory) if wanted.memory else DEFAULT_MEMORY,
        "instances": 1,
        "container": container,
        "networks": [{"mode": "host"}],
        "portDefinitions": [
            {"port": port, "name": label, "protocol": "tcp"} for label, port in ports.items()
        ],
        "requirePorts": True,
        "env": {**env, **secret_env},
        # A second instance couldn't bind the same ports while the first one runs.
        "upgradeStrategy": {"minimumHealthCapacity": 0.0, "maximumOverCapacity": 0.0},
    }
    if wanted.gpu:
        whole["gpus"] = wanted.gpu
    if table:
        whole["secrets"] = table
    if job.labels or job.annotations:
        whole["labels"] = {**job.annotations, **job.labels}
    if job.node_selector:
        whole["constraints"] = [[key, "IS", value] for key, value in job.node_selector.items()]
    return whole


# Rules that its schema lacks ----------------------------------------------------------------------

_SHAPES: Final = shapes(
    MarathonGroup="""
        apps dependencies enforceRole groups id scaleBy version
    """,
    MarathonApp="""
        acceptedResourceRoles args backoffFactor backoffSeconds check cmd constraints container
        cpus dependencies disk env executor executorResources fetch gpus healthChecks id instances
        ipAddress killSelection labels maxLaunchDelaySeconds mem networks portDefinitions ports
        readinessChecks requirePorts residency resourceLimits role secrets
        taskKillGracePeriodSeconds tty unreachableStrategy upgradeStrategy uris user version
        versionInfo
    """,
)


_SEGMENT: Final = re.compile(
    r"(([a-z0-9]|[a-z0-9][a-z0-9-]*[a-z0-9])\.)*([a-z0-9]|[a-z0-9][a-z0-9-]*[a-z0-9])\Z"
)
_OPERATORS: Final = ("UNIQUE", "CLUSTER", "GROUP_BY", "LIKE", "UNLIKE", "MAX_PER", "IS")
_LONELY: Final = frozenset({"UNIQUE"})


def _id(report: LintReport, path: str, value: Any) -> None:
    text = report.text(path, value)
    if text is None:
        report.add(path, "is missing." if value is None else None)
        return
    for segment in text.strip("/").split("/"):
        if segment not in {"..", "."} and not _SEGMENT.match(segment):
            report.add(
                path, f"{segment!r} in {text!r}: ids contain only a-z, 0-9, '-' and slashes."
            )


def _app(
    report: LintReport, path: str, app: dict[str, Any], ports: dict[int, str], ids: list[str]
) -> None:
    def at(key: str) -> str:
        return f"{path}.{key}" if path else key

    _id(report, at("id"), app.get("id"))
    if app.get("id") in ids:
        report.add(at("id"), f"{app.get('id')!r} is defined twice.")
    ids.append(str(app.get("id")))
    if "cmd" in app and "args" in app:
        report.add(at("cmd"), "cmd and args can't be used together.")
    for key, least in (("cpus", 0.001), ("mem", 32)):
        value = app.get(key)
        if isinstance(value, bool) or (
            value is not None and (not isinstance(value, (int, float)) or value < least)
        ):
            report.add(at(key), f"must be a number of at least {least}, got {value!r}.")
    report.integer(at("gpus"), app.get("gpus"), 0)
    report.integer(at("instances"), app.get("instances"), 0)
    container = report.mapping(at("container"), app.get("container"))
    if "network" in container or "network" in report.mapping("", container.get("docker")):
        report.add(
            at("container"), "'network' was removed in Marathon 1.5; use networks: [{mode: host}]."
        )
    docker = report.mapping(at("container.docker"), container.get("docker"))
    if (image := report.text(at("container.docker.image"), docker.get("image"))) is not None:
        report.add(at("container.docker.image"), rules.image(image))
    _ports(report, at, app, ports)
    env = report.mapping(at("env"), app.get("env"))
    table = report.mapping(at("secrets"), app.get("secrets"))
    for name, value in env.items():
        if isinstance(value, dict):
            if value.get("secret") not in table:
                report.add(at(f"env.{name}"), f"there is no secret {value.get('secret')!r}.")
        elif (text := report.text(at(f"env.{name}"), value)) and (
            holds_secret(str(name)) or is_secret(text)
        ):
            reason = f"{name} looks like a secret in plain text ({len(text)} characters); "
            report.add(at(f"env.{name}"), reason + "use {secret: NAME}.")
    check_cluster(report, at("env"), {k: v for k, v in env.items() if isinstance(v, str)})
    for index, item in enumerate(report.listing(at("constraints"), app.get("constraints"))):
        place = at(f"constraints[{index}]")
        words = report.listing(place, item)
        operator = words[1] if len(words) > 1 else None
        report.one_of(place, operator if operator is not None else "", _OPERATORS)
        if operator in _LONELY and len(words) > len(("field", "operator")):
            report.add(place, f"{operator} takes no value.")


def _ports(report: LintReport, at: Any, app: dict[str, Any], ports: dict[int, str]) -> None:
    definitions = report.listing(at("portDefinitions"), app.get("portDefinitions"))
    modes = [n.get("mode") for n in app.get("networks") or () if isinstance(n, dict)]
    if definitions and any(mode != "host" for mode in modes):
        report.add(at("portDefinitions"), "need networks: [{mode: host}].")
    for index, item in enumerate(definitions):
        place = at(f"portDefinitions[{index}]")
        definition = report.mapping(place, item)
        port = report.integer(f"{place}.port", definition.get("port"), 0)
        if not port:
            continue
        report.add(f"{place}.port", rules.port_number(port))
        if port in ports and app.get("requirePorts"):
            reason = f"{port} is also used by {ports[port]}, and both could run on one host."
            report.add(f"{place}.port", reason)
        ports[port] = str(app.get("id"))


# The job, started and followed --------------------------------------------------------------------


_POLL: Final = 2.0
_SECONDS: Final = 30.0
#: Marathon kills tasks before it forgets their apps.
_GONE: Final = 120.0


class _NotFound(GridflowError):
    """Marathon answered 404."""


class MarathonDriver:
    """Starts, follows and removes a rendered group."""

    def __init__(self, job: Job, rendering: Rendering, *, poll: float = _POLL) -> None:
        self._url = os.environ.get("MARATHON_URL", "").rstrip("/")
        if not self._url.startswith(("http://", "https://")):
            raise InvalidArgument(
                "MARATHON_URL must be Marathon's address, such as http://host:8080; got "
                f"{self._url!r}."
            )
        self._name = job.name
        self._limits = (job.start_timeout, job.deadline)
        self._tasks = {
            f"/{job.name}/{role}-{i}" for role, r in job.role_items() for i in range(r.replicas)
        }
        self._text = rendering.text()
        self._poll = poll

    def start(self, *, replace: bool = False, follows: bool = True) -> None:  # noqa: ARG002
        """Create the group."""
        if self._apps():
            if not replace:
                states = ", ".join(f"{task.task} {task.state}" for task in self.status())
                raise AlreadyThere(self._name, f"/{self._name} already exists ({states})")
            self.cancel()
            self._wait_until_gone()
        answer = self._call("PUT", "/v2/groups", self._text)
        say(f"Marathon is deploying /{self._name}: {answer.get('deploymentId', '')}")

    def follow(self, output: TextIO) -> int:  # noqa: ARG002  (Marathon has no API for output)
        """Wait until all tasks run; Marathon's apps never end."""
        patience = Patience(self._name, *self._limits)
        seen: dict[str, str] = {}
        while True:
            states = self.status()
            if states and all(task.state == "running" for task in states):
                say("all tasks are running; remove them with 'gridflow cancel' when finished")
                return 0
            lines = {
                task.task: ": ".join(filter(None, (task.state, task.detail))) for task in states
            }
            for name, line in lines.items():
                if seen.get(name) != line:
                    say(f"{name}: {line}")
            seen = lines
            code = patience.verdict(
                # The tasks wait for each other, so one that runs hasn't started anything yet.
                has_begun=False,
                is_running=any(task.state == "running" for task in states),
                is_queued=False,
                reasons=[f"{task.task}: {lines[task.task]}" for task in states],
            )
            if code is not None:
                return code
            time.sleep(self._poll)

    def status(self) -> list[TaskStatus]:
        """Return the apps."""
        found = []
        reasons: dict[str, str] | None = None
        for app in self._apps() or ():
            if app.get("tasksRunning", 0) >= app.get("instances", 1):
                found.append(TaskStatus(app["id"], "running"))
                continue
            reasons = self._unplaced() if reasons is None else reasons
            failure = (app.get("lastTaskFailure") or {}).get("message", "")
            why = failure or reasons.get(app["id"], "")
            found.append(TaskStatus(app["id"], "waiting", why))
        return found

    def _unplaced(self) -> dict[str, str]:
        """Return why no host takes the apps that wait for one, by their ids."""
        try:
            queue = self._call("GET", "/v2/queue").get("queue", [])
        except _NotFound:
            return {}
        found = {}
        for item in queue:
            offers = item.get("processedOffersSummary") or {}
            declined = [
                each for each in offers.get("rejectSummaryLastOffers") or [] if each["declined"]
            ]
            if declined:
                why = ", ".join(
                    f"{each['reason']} ({each['declined']} offers)" for each in declined
                )
                found[item.get("app", {}).get("id", "")] = f"no host fits: {why}"
        return found

    def is_there(self) -> bool:
        """Return whether the group exists."""
        return self._apps() is not None

    def logs(self, *, follow: bool) -> int:  # noqa: ARG002  (all drivers have this parameter)
        """Raise an error that says where to find the output."""
        raise GridflowError(
            "Marathon has no API for output; look in each task's Mesos sandbox (stdout, stderr)."
        )

    def cancel(self) -> None:
        """Delete the group."""
        self._call("DELETE", f"/v2/groups/{self._name}?force=true")
        say(f"Marathon is removing /{self._name}")

    def _apps(self) -> list[Any] | None:
        """Return the group's apps, None if there is no such group."""
        embedded = ("group.apps", "group.apps.counts", "group.apps.lastTaskFailure")
        path = f"/v2/groups/{self._name}?" + "&".join(f"embed={each}" for each in embedded)
        try:
            group = self._call("GET", path)
        except _NotFound:
            return None
        return list(group.get("apps", []))

    def _wait_until_gone(self) -> None:
        end = time.monotonic() + _GONE
        while self._apps() is not None:
            if time.monotonic() > end:
                raise GridflowError(f"Marathon still has /{self._name} after {_GONE:g} s.")
            time.sleep(self._poll)

    def _call(self, method: str, path: str, text: str | None = None) -> dict[str, Any]:
        headers = {"Content-Type": "application/json"}
        if token := os.environ.get("MARATHON_TOKEN"):
            headers["Authorization"] = f"token={token}"
        request = urllib.request.Request(  # noqa: S310  (the scheme is checked above)
            self._url + path, text.encode() if text else None, headers, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=_SECONDS) as answer:  # noqa: S310
                body: dict[str, Any] = json.loads(answer.read() or b"{}")
                return body
        except urllib.error.HTTPError as error:
            said = error.read().decode(errors="replace").strip()
            kind = _NotFound if error.code == HTTPStatus.NOT_FOUND else GridflowError
            raise kind(f"Marathon answered {error.code} to {method} {path}: {said}") from error
        except (OSError, ValueError) as error:
            raise GridflowError(f"Marathon at {self._url} can't be reached: {error}") from error


class MarathonTarget(Target):
    """A group of apps."""

    name = "marathon"
    title = "Marathon 1.10 on Mesos: a group of apps on the hosts' network"
    form = "marathon"
    shapes = _SHAPES
    schema = "marathon_v2_group.json"
    cannot: ClassVar = {
        "namespace": "Marathon has only groups; the group is named after the job",
        "resources.gpu_type": "Mesos doesn't distinguish GPUs; select agents with node_selector",
        "resources.gpu_resource": "Mesos doesn't distinguish GPUs",
        "affinity": "Mesos has constraints; select agents with node_selector",
        "priority_class": "Mesos has no task priorities",
        "run_as_user": "Mesos takes names of host users; set the user in the image",
        "time_to_live": "Marathon keeps an app until it is deleted",
        "clean_up": "Marathon keeps an app until it is deleted",
        "gang": "Mesos offers resources task by task",
        "volumes.pvc": "Mesos has no claims; use host, or an override with an external volume",
        "volumes.empty": "use the sandbox of a Mesos task ($MESOS_SANDBOX)",
        "volumes.secret": ONE_FILE,
        "volumes.config": "Marathon doesn't store configuration files",
        "secrets.files": ONE_FILE,
        "tolerations": "Mesos agents have no taints",
        "service_account": "there are no service accounts",
    }
    leaves: ClassVar = sides(but="marathon")

    def render(self, job: Job) -> list[Document]:
        """Return the group, for ``PUT /v2/groups``."""
        settings = job.marathon or Marathon()
        ports, second = ports_on_one_host(job)

        def host(role: str, index: int) -> str:
            return f"{role}-{index}-{job.name}.{settings.dns_domain}"

        cluster = addresses(job, host, lambda role, index: ports[role, index])
        heard = news(job, host, lambda role, index: second[role, index])
        words = [*start_words(job, restarts=True, deadline=True), "--stay"]
        if settings.finished_dir:
            words.append(f"--finished-dir={settings.finished_dir}")
        apps = []
        for role, index in tasks(job):
            # Role and index come from MARATHON_APP_ID, which Marathon sets.
            start = start_variables(role, index, cluster, heard)
            env = {
                name: start[name]
                for name in start
                if name not in {"GRIDFLOW_ROLE", "GRIDFLOW_INDEX"}
            }
            task_ports = {"tensorflow": ports[role, index]}
            if (role, index) in second:
                task_ports["finish"] = second[role, index]
            apps.append(
                app(
                    job,
                    f"{role}-{index}",
                    job.image,
                    [*words, *program_words(job, role)],
                    task_ports,
                    job.roles[role].resources,
                    {**env, **s3_settings(job), **job.env_of(role)},
                )
            )
        if board := job.tensorboard:
            words = tensorboard_words(board)
            apps.append(
                app(
                    job,
                    "tensorboard",
                    board.image,
                    words,
                    {"http": board.port},
                    board.resources,
                    dict(s3_settings(job)),
                )
            )
        return [Document("group.json", {"id": f"/{job.name}", "apps": apps})]

    def check(self, report: LintReport, document: dict[str, Any]) -> None:
        """Check a group or a single app."""
        if "apps" not in document and "groups" not in document:
            _app(report, "", document, {}, [])
            return
        report.mapping("", document, "MarathonGroup")
        _id(report, "id", document.get("id"))
        ports: dict[int, str] = {}
        ids: list[str] = []
        for index, item in enumerate(report.listing("apps", document.get("apps"))):
            path = f"apps[{index}]"
            app = report.mapping(path, item, "MarathonApp")
            _app(report, path, app, ports, ids)
            whole = str(document.get("id", "")).rstrip("/") + "/"
            own = str(app.get("id", ""))
            if own.startswith("/") and not own.startswith(whole):
                report.add(f"{path}.id", f"{own!r} isn't in the group {document.get('id')!r}.")
        for index, item in enumerate(report.listing("apps", document.get("apps"))):
            wanted = item.get("dependencies") if isinstance(item, dict) else None
            for place, other in enumerate(report.listing(f"apps[{index}].dependencies", wanted)):
                if str(other) not in ids:
                    report.add(
                        f"apps[{index}].dependencies[{place}]", f"there is no app {other!r}."
                    )

    def drive(self, job: Job, rendering: Rendering) -> Driver:
        """Return the driver with Marathon's REST API."""
        return MarathonDriver(job, rendering)
