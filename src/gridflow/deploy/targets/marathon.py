"""Marathon 1.10 on Mesos: a group with an app for each task, on the hosts' network.

Marathon runs services and restarts everything that ends, so `gridflow launch` keeps running when
its program is done.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any, Final, cast

from gridflow.deploy.description import rules
from gridflow.deploy.description.services import Marathon
from gridflow.deploy.pods import GCS_DIRECTORY, s3_settings
from gridflow.deploy.targets.base import Document, Target
from gridflow.deploy.targets.sidecars import SIDES, tensorboard_words
from gridflow.deploy.task_start import (
    addresses,
    news,
    ports_on_one_host,
    program_words,
    start_variables,
    start_words,
    tasks,
)

if TYPE_CHECKING:
    from gridflow.deploy.description.description import Job
    from gridflow.deploy.description.parts import Resources
    from gridflow.deploy.kinds import MarathonApp

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
) -> MarathonApp:
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
    return cast("MarathonApp", whole)


def render(job: Job) -> list[Document]:
    """Return the group, for ``PUT /v2/groups``."""
    domain = (job.marathon or Marathon()).dns_domain
    ports, second = ports_on_one_host(job)

    def host(role: str, index: int) -> str:
        return f"{role}-{index}-{job.name}.{domain}"

    cluster = addresses(job, host, lambda role, index: ports[role, index])
    heard = news(job, host, lambda role, index: second[role, index])
    words = start_words(job, restarts=True, deadline=True, stay=True)
    apps = []
    for role, index in tasks(job):
        # Role and index come from MARATHON_APP_ID, which Marathon sets.
        start = start_variables(role, index, cluster, heard)
        env = {
            name: start[name] for name in start if name not in {"GRIDFLOW_ROLE", "GRIDFLOW_INDEX"}
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
        settings: dict[str, Any] = dict(s3_settings(job))
        words = tensorboard_words(board)
        apps.append(
            app(
                job,
                "tensorboard",
                board.image,
                words,
                {"http": board.port},
                board.resources,
                settings,
            )
        )
    return [Document("group.json", {"id": f"/{job.name}", "apps": apps})]


TARGET: Final = Target(
    name="marathon",
    title="Marathon 1.10 on Mesos: a group of apps on the hosts' network",
    form="marathon",
    render=render,
    cannot={
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
    },
    leaves={key: value for key, value in SIDES.items() if key != "marathon"},
    needs=("image", "command"),
)
