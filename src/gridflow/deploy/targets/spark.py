"""Spark: the operator's SparkApplication, and the parts that spark-submit shares with it.

Each task of the job is an executor, and gridflow's driver program runs the job's roles in them, as
``gridflow run`` does. All executors are alike, so they get the largest resources that any role
requests.
"""

from __future__ import annotations

import json
from decimal import Decimal
from typing import TYPE_CHECKING, Any, ClassVar, Final

from gridflow._spec.cluster import runs_no_command
from gridflow.deploy.capabilities import uses
from gridflow.deploy.description import rules
from gridflow.deploy.description.description import RUN_AS_USER, START_TIMEOUT, Spark
from gridflow.deploy.description.parts import Resources
from gridflow.deploy.description.problems import Problem, refuse
from gridflow.deploy.pods import (
    box_security,
    credential_env,
    env_list,
    key_env,
    metadata,
    names,
    object_document,
    placement,
    pod_security,
    volumes,
)
from gridflow.deploy.targets.base import sides
from gridflow.deploy.targets.objects import KubernetesTarget
from gridflow.deploy.task_start import kubernetes_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gridflow.deploy.description.description import Job
    from gridflow.deploy.targets.base import Document

IGNORED: Final = "needs gridflow's own driver program, but spark.application names another."
#: The path of gridflow's driver program in images built with the docker target's Dockerfile.
APPLICATION: Final = "local:///opt/gridflow/spark_main.py"
#: Memory of the Spark executor itself, in MiB; the rest of a task's memory is for TensorFlow.
EXECUTOR_HEAP: Final = 1024
LEAST_OVERHEAD: Final = 384
LEAVES: Final = {**sides(but="spark"), "port": "the targets that give tasks a fixed port"}
#: The user in Spark's own images.
SPARK_USER: Final = 185
#: A script that comes with Spark and its images.
DISCOVERY: Final = "/opt/spark/examples/src/main/scripts/getGpusResources.sh"


def settings(job: Job) -> Spark:
    """Return the job's Spark section."""
    return job.spark or Spark()


def largest(job: Job) -> Resources:
    """Return the resources of each executor: the most that any role requests."""
    wanted = [role.resources for role in job.roles.values()]

    def most(texts: Iterable[str | None]) -> str | None:
        return max((t for t in texts if t), key=rules.quantity, default=None)

    return Resources(
        cpu=most(item.cpu for item in wanted),
        memory=most(item.memory for item in wanted),
        gpu=max(item.gpu for item in wanted),
        gpu_type=next((item.gpu_type for item in wanted if item.gpu_type), None),
    )


def mebibytes(text: str) -> int:
    """Return a quantity in whole MiB, rounded up."""
    return int(-(-rules.quantity(text) // (1 << 20)))


def cores(wanted: Resources) -> int:
    """Return the number of cores, rounded up, at least one."""
    return max(1, int(-(-rules.quantity(wanted.cpu) // Decimal(1)))) if wanted.cpu else 1


def split_memory(wanted: Resources) -> tuple[int, int]:
    """Return an executor's heap and its memory overhead for TensorFlow, in MiB."""
    whole = mebibytes(wanted.memory) if wanted.memory else 4096
    heap = min(EXECUTOR_HEAP, max(whole // 2, 1))
    return heap, max(whole - heap, LEAST_OVERHEAD)


def conf(job: Job) -> dict[str, str]:
    """Return the Spark properties that apply on every cluster."""
    wanted = largest(job)
    heap, beside = split_memory(wanted)
    properties = {
        "spark.executor.instances": str(job.tasks),
        "spark.executor.cores": str(cores(wanted)),
        "spark.task.cpus": str(cores(wanted)),
        "spark.executor.memory": f"{heap}m",
        "spark.executor.memoryOverhead": f"{beside}m",
        "spark.driver.memory": f"{mebibytes(settings(job).driver.memory or '2Gi')}m",
        "spark.driver.cores": str(cores(settings(job).driver)),
        "spark.dynamicAllocation.enabled": "false",
        "spark.speculation": "false",
    }
    if wanted.gpu:
        properties["spark.executor.resource.gpu.amount"] = str(wanted.gpu)
        properties["spark.task.resource.gpu.amount"] = str(wanted.gpu)
        properties["spark.executor.resource.gpu.discoveryScript"] = DISCOVERY
    return properties


def application_args(job: Job) -> list[str]:
    """Return the arguments of the driver program; `spark_main.read_job` reads them.

    Raises `JobError`: If the job has its own application, and roles have programs or variables that
        it would ignore.
    """
    if settings(job).application:
        ignored = [use for use in uses(job) if use.feature in {"roles.command", "roles.env"}]
        refuse([Problem(use.path, IGNORED) for use in ignored])
        return [*job.args]
    roles = ",".join(f"{name}={role.replicas}" for name, role in job.role_items())
    words = [f"--name={job.name}", f"--roles={roles}"]
    common = job.command + job.args
    for name, role in job.role_items():
        own = job.command_of(name)
        if own != (() if runs_no_command(name) else common):
            words.append(f"--role-command={name}={json.dumps(own)}")
        if role.env:
            words.append(f"--role-env={name}={json.dumps(dict(role.env))}")
    if job.restart_policy == "exit-code":
        words.append("--restart-policy=exit-code")
    if job.restart_policy != "never":
        words.append(f"--restart-limit={job.restart_limit}")
    if job.start_timeout != START_TIMEOUT:
        words.append(f"--start-timeout={job.start_timeout}")
    if job.deadline is not None:
        words.append(f"--deadline={job.deadline}")
    if job.classic_flags:
        words.append("--classic-flags")
    return [*words, "--", *common]


class SparkApplicationTarget(KubernetesTarget):
    """A SparkApplication."""

    name = "sparkapplication"
    title = "spark-operator: SparkApplication sparkoperator.k8s.io/v1beta2"
    cannot: ClassVar = {
        "clean_up": "Spark itself removes executors at the end",
        "gang.scheduler=kueue": "the operator supports only Volcano and YuniKorn",
        "gang.minimum": "gridflow's coordinator needs all tasks at once",
        "resources.gpu_resource": "Spark requests VENDOR/gpu, and its script finds only NVIDIA's",
        "tensorboard": "the operator starts only Spark's pods; use another target for TensorBoard",
    }
    leaves: ClassVar = LEAVES

    def render(self, job: Job) -> list[Document]:
        """Return the SparkApplication."""
        side = settings(job)
        wanted = largest(job)
        heap, beside = split_memory(wanted)
        sources, mounts = volumes(job)
        env = env_list(dict(job.env))
        env += [key_env(variable, ref.secret, ref.key) for variable, ref in job.secrets.env.items()]
        env += credential_env(job)

        def pod(role: str, resources: Resources) -> dict[str, Any]:
            spec: dict[str, Any] = {"labels": {**job.labels, **names(job, role)}}
            if job.annotations:
                spec["annotations"] = dict(job.annotations)
            if env:
                spec["env"] = env
            if mounts:
                spec["volumeMounts"] = mounts
            user = job.run_as_user if job.run_as_user != RUN_AS_USER else SPARK_USER
            spec["podSecurityContext"] = pod_security(user)["securityContext"]
            spec |= box_security(user)
            place = placement(job, resources)
            place.pop("imagePullSecrets", None)
            if account := place.pop("serviceAccountName", None):
                spec["serviceAccount"] = account
            return spec | place

        heap_of_driver = mebibytes(side.driver.memory or "2Gi")
        driver = {
            "cores": cores(side.driver),
            "memory": f"{heap_of_driver}m",
            **pod("driver", side.driver),
        }
        executor: dict[str, Any] = {
            "instances": job.tasks,
            "cores": cores(wanted),
            "memory": f"{heap}m",
            "memoryOverhead": f"{beside}m",
            **pod("executor", wanted),
        }
        # Cores, memory and instances have their own fields.
        prefixes = ("spark.task.", "spark.executor.resource.", "spark.speculation")
        properties = {key: value for key, value in conf(job).items() if key.startswith(prefixes)}
        if wanted.gpu:
            properties["spark.executor.resource.gpu.vendor"] = "nvidia.com"
        spec: dict[str, Any] = {
            "type": "Python",
            "mode": "cluster",
            "pythonVersion": "3",
            "sparkVersion": side.version,
            "image": job.image,
            "mainApplicationFile": side.application or APPLICATION,
            "arguments": [kubernetes_text(word) for word in application_args(job)],
            "sparkConf": {**properties, **side.conf},
            "restartPolicy": {"type": "Never"},
            "driver": driver,
            "executor": executor,
        }
        if job.secrets.image_pull:
            spec["imagePullSecrets"] = list(job.secrets.image_pull)
        if sources:
            spec["volumes"] = sources
        if job.time_to_live is not None:
            spec["timeToLiveSeconds"] = job.time_to_live
        if job.gang:
            spec["batchScheduler"] = "volcano"
            if job.gang.queue:
                spec["batchSchedulerOptions"] = {"queue": job.gang.queue}
        whole = object_document(
            "sparkoperator.k8s.io/v1beta2", "SparkApplication", metadata(job, job.name), spec=spec
        )
        return [whole]

    def has_program(self, job: Job) -> bool:
        """Whether the job has a driver program of its own."""
        return bool(settings(job).application)
