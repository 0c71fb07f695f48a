"""Docker Swarm: a stack with a service for each role; slots identify its tasks.

Sources of the format, in docker/cli: cli/compose/schema/data/config_schema_v3.13.json and
cli/compose/convert.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final, cast

from gridflow.deploy.description.description import RUN_AS_USER
from gridflow.deploy.description.problems import Problem
from gridflow.deploy.pods import GCS_DIRECTORY, s3_settings
from gridflow.deploy.targets import serving
from gridflow.deploy.targets.base import Document, Target
from gridflow.deploy.targets.compose import amount, claims, doubled, escape, limits, volumes
from gridflow.deploy.targets.sidecars import SIDES, tensorboard_words
from gridflow.deploy.task_start import (
    addresses,
    news,
    program_words,
    start_variables,
    start_words,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gridflow.deploy.description.description import Job
    from gridflow.deploy.description.parts import Resources, SecretKey
    from gridflow.deploy.description.services import Serve
    from gridflow.deploy.kinds import StackService

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


def role_service(job: Job, role: str, variables: dict[str, str]) -> StackService:
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
    return cast("StackService", whole)


def board(job: Job) -> StackService:
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
    return cast("StackService", whole)


def config_names(job: Job, serve: Serve) -> dict[str, str]:
    """Return the names of the Swarm configs for TensorFlow Serving, by file name.

    Configs are immutable, so new content gets a new name, which also replaces the servers.
    """
    found = {}
    for name, text in serving.files(serve).items():
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        found[name] = f"{job.name}_{name.partition('.')[0]}-{digest}"
    return found


def servers(job: Job, serve: Serve) -> StackService:
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
    return cast("StackService", whole)


def render(job: Job) -> list[Document]:
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


def problems(job: Job) -> Iterator[Problem]:
    """Yield names and labels that Swarm can't express."""
    beside = {"tensorboard": job.tensorboard, "serving": job.serve}
    names = [*job.roles, *(name for name, is_there in beside.items() if is_there)]
    if len(name := f"{job.name}_{max(names, key=len)}") > MOST_OF_NAME:
        reason = f"the service name {name!r} has {len(name)} characters (limit {MOST_OF_NAME})"
        yield Problem("name", reason)
    for key, value in job.node_selector.items():
        if "/" in key or not value:
            path = f"node_selector.{key}"
            yield Problem(path, "placement constraints allow no '/' in a label and no empty value")


TARGET: Final = Target(
    name="swarm",
    title="Docker Swarm: a stack with a service for each role",
    form="swarm",
    render=render,
    cannot={
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
    },
    leaves={key: value for key, value in SIDES.items() if key != "serve"},
    needs=("image", "command"),
    cannot_together=problems,
)
