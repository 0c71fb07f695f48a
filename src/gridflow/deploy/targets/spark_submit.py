"""spark-submit for standalone, YARN and Kubernetes clusters."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, ClassVar, Final

from gridflow.deploy.description.problems import Problem
from gridflow.deploy.pods import GCS_DIRECTORY, GPU_PRODUCT, s3_settings
from gridflow.deploy.targets.base import Document, ScriptTarget
from gridflow.deploy.targets.spark import (
    APPLICATION,
    LEAVES,
    application_args,
    conf,
    largest,
    settings,
)
from gridflow.deploy.task_start import kubernetes_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gridflow.deploy.description.description import Job

#: gridflow's driver program, for submitting machines with gridflow installed.
INSTALLED: Final = "$(python -c 'import gridflow.deploy.inside.spark_main as m; print(m.__file__)')"


#: In cluster mode on Kubernetes, spark-submit exits with 0 even if the driver fails: it only waits
#: for the pod (LoggingPodStatusWatcherImpl). ``--status`` prints the pod's phase
#: (K8SSparkSubmitOperation, KubernetesUtils.formatPodState) and the exit codes of its containers
#: (containerStatusDescription), at any log level.
_JUDGE: Final = """\
state="$(spark-submit --master "$master" --status "{namespace}:$driver" 2>&1)" || true
case $state in
  *'phase: Succeeded'*) ;;
  *) printf '%s\\n' "$state" "the driver $driver did not succeed: kubectl logs --namespace \
{namespace} $driver" >&2
    code="$(printf '%s\\n' "$state" \
| sed -n 's/.*exit code: *\\([1-9][0-9]*\\).*/\\1/p' | head -n 1)"
    exit "${{code:-1}}" ;;
esac
"""
_DRIVER: Final = "spark.kubernetes.driver.pod.name"
_WAITS: Final = "spark.kubernetes.submission.waitAppCompletion"


def script(
    job: Job, master: str, properties: dict[str, str], default: str, *, in_pods: bool = False
) -> list[Document]:
    """Return a script with one spark-submit command.

    ``master``, and ``default`` (the application if the job names none), are shell text inside
    double quotes. With ``in_pods``, the script asks Kubernetes how the driver ended.
    """
    side = settings(job)
    merged = {**conf(job), **properties, **side.conf}
    judged = in_pods and merged.get(_WAITS) != "false"
    setup, start, end = "set -eu\n", "exec ", ""
    if judged:
        # Each run needs its own name, because pods of earlier runs still exist.
        own = merged.pop(_DRIVER, None)
        driver = shlex.quote(own) if own else f'"{job.name}-driver-$(date +%s)-$$"'
        setup += f'master="{master}"\ndriver={driver}\n'
        start, end, master = "", _JUDGE.format(namespace=job.namespace), "$master"
    if not side.application:  # as a variable: a command that fails in an argument ends no script
        setup += f'application="{default}"\n'
    words = [f'--master "{master}"', f"--name {job.name}"]
    words += [f'--conf "{_DRIVER}=$driver"'] if judged else []
    words += [f"--conf {shlex.quote(f'{key}={value}')}" for key, value in merged.items()]
    words.append(shlex.quote(side.application) if side.application else '"$application"')
    # Spark copies them into the arguments of the driver's container.
    arguments = [kubernetes_text(word) if in_pods else word for word in application_args(job)]
    words += [shlex.quote(word) for word in arguments]
    lines = " \\\n  ".join(words)
    text = f"#!/bin/sh\n{setup}{start}spark-submit \\\n  {lines}\n{end}"
    return [Document("submit.sh", text)]


def _env(
    job: Job, *prefixes: str, escape: Callable[[str], str] = lambda text: text
) -> dict[str, str]:
    env = {**s3_settings(job), **job.env}
    return {f"{prefix}{name}": escape(value) for prefix in prefixes for name, value in env.items()}


def _yarn_text(text: str) -> str:
    """Escape what a shell expands inside double quotes.

    YARN's NodeManager writes ``export NAME="VALUE"`` into the script that starts a container
    (apache/hadoop, ContainerLaunch.UnixShellScriptBuilder.env).
    """
    return re.sub(r'[\\"$`]', r"\\\g<0>", text)


def _pod(job: Job, base: str) -> dict[str, str]:
    found = {f"{base}label.{key}": value for key, value in job.labels.items()}
    found |= {f"{base}annotation.{key}": value for key, value in job.annotations.items()}
    found |= {f"{base}secrets.{v.secret}": v.path for v in job.volumes if v.secret}
    for volume in job.volumes:
        if volume.kind not in {"pvc", "host", "empty"}:
            continue
        kind, option, value = {
            "pvc": ("persistentVolumeClaim", "claimName", volume.pvc),
            "host": ("hostPath", "path", volume.host),
            "empty": ("emptyDir", "sizeLimit", volume.empty),
        }[volume.kind]
        place = f"{base}volumes.{kind}.{volume.name}."
        found[f"{place}mount.path"] = volume.path
        found[f"{place}mount.readOnly"] = str(volume.read_only).lower()
        if value:
            found[f"{place}options.{option}"] = value
    if job.shared_memory:
        place = f"{base}volumes.emptyDir.gridflow-shm."
        found[f"{place}mount.path"] = "/dev/shm"  # noqa: S108  (where shared memory is)
        found[f"{place}options.medium"] = "Memory"
        found[f"{place}options.sizeLimit"] = job.shared_memory
    found |= {f"{base}secrets.{name}": path for path, name in job.secrets.files.items()}
    found |= {
        f"{base}secretKeyRef.{variable}": f"{ref.secret}:{ref.key}"
        for variable, ref in job.secret_keys.items()
    }
    if gcs := job.credentials.gcs:
        found[f"{base}secrets.{gcs.secret}"] = GCS_DIRECTORY
        variable = "spark.executorEnv." if "executor" in base else "spark.kubernetes.driverEnv."
        found[f"{variable}GOOGLE_APPLICATION_CREDENTIALS"] = f"{GCS_DIRECTORY}/{gcs.key}"
    return found


_COMMON: Final = {
    "time_to_live": "Spark doesn't keep finished applications on the cluster",
    "clean_up": "Spark itself removes executors at the end",
    "resources.gpu_resource": "Spark's script finds only NVIDIA GPUs",
    "gang.minimum": "gridflow's coordinator needs all tasks at once",
    "tensorboard": "spark-submit starts only Spark's processes",
}
_HOSTS: Final = "executors are host processes and use the hosts' files"
_NOT_KUBERNETES: Final = {
    "namespace": "there are no namespaces",
    "resources.gpu_type": "Spark schedules GPUs only by number",
    "affinity": "only Kubernetes has affinities",
    "priority_class": "only Kubernetes has priority classes",
    "run_as_user": "processes run as the cluster's user",
    "volumes": _HOSTS,
    "shared_memory": _HOSTS,
    "secrets": "the cluster's own tools must provide secrets to executors",
    "credentials": "the cluster's own tools must provide credentials to executors",
    "tolerations": "there are no taints",
    "service_account": "there are no service accounts",
    "annotations": "applications have no annotations",
}


class _SubmitTarget(ScriptTarget):
    """A script with ``spark-submit``."""

    def has_program(self, job: Job) -> bool:
        """Whether the job has a driver program of its own."""
        return bool(settings(job).application)


class StandaloneTarget(_SubmitTarget):
    """``spark-submit`` to a standalone cluster."""

    name = "spark-submit-standalone"
    title = "spark-submit to a standalone cluster"
    needs = ("command",)
    cannot: ClassVar = {
        **_COMMON,
        **_NOT_KUBERNETES,
        "gang": "a standalone cluster has no queues",
        "node_selector": "a standalone cluster has no kinds of nodes",
        "labels": "applications have no labels",
    }
    leaves: ClassVar = {**LEAVES, "image": "the targets with containers"}

    def render(self, job: Job) -> list[Document]:
        """Return the script for a standalone cluster."""
        properties = _env(job, "spark.executorEnv.")
        properties["spark.cores.max"] = str(job.tasks * int(conf(job)["spark.executor.cores"]))
        return script(job, "${SPARK_MASTER:?set it to spark://HOST:7077}", properties, INSTALLED)


class YarnTarget(_SubmitTarget):
    """``spark-submit`` to YARN."""

    name = "spark-submit-yarn"
    title = "spark-submit to YARN"
    needs = ("command",)
    cannot: ClassVar = {
        **_COMMON,
        **_NOT_KUBERNETES,
        "gang.scheduler=kueue": "YARN uses its own queues",
        "gang.scheduler=volcano": "YARN uses its own queues",
        "node_selector": "YARN takes a single node label expression; set "
        "spark.yarn.executor.nodeLabelExpression in spark.conf",
    }
    leaves: ClassVar = {**LEAVES, "image": "the targets with containers"}

    def render(self, job: Job) -> list[Document]:
        """Return the script for YARN."""
        properties = {"spark.submit.deployMode": "cluster"}
        prefixes = ("spark.executorEnv.", "spark.yarn.appMasterEnv.")
        properties |= _env(job, *prefixes, escape=_yarn_text)
        if job.gang and job.gang.queue:
            properties["spark.yarn.queue"] = job.gang.queue
        if job.labels:
            properties["spark.yarn.tags"] = ",".join(f"{k}={v}" for k, v in job.labels.items())
        return script(job, "yarn", properties, INSTALLED)


class SparkPodsTarget(_SubmitTarget):
    """``spark-submit`` to Kubernetes."""

    name = "spark-submit-kubernetes"
    title = "spark-submit to Kubernetes"
    cannot: ClassVar = {
        **_COMMON,
        "gang.scheduler=kueue": "spark-submit supports only Volcano",
        "gang.queue": "Volcano's queue needs a pod group template; use sparkapplication",
        "affinity": "spark-submit needs a pod template for that; use sparkapplication",
        "priority_class": "spark-submit needs a pod template for that; use sparkapplication",
        "run_as_user": "spark-submit needs a pod template for that; use sparkapplication",
        "tolerations": "spark-submit needs a pod template for that; use sparkapplication",
        "volumes.config": "spark-submit doesn't mount ConfigMaps",
    }
    leaves: ClassVar = LEAVES

    def render(self, job: Job) -> list[Document]:
        """Return the script for Kubernetes."""
        base = "spark.kubernetes."
        properties = {
            "spark.submit.deployMode": "cluster",
            f"{base}namespace": job.namespace,
            f"{base}container.image": job.image,
            **_env(job, "spark.executorEnv.", f"{base}driverEnv.", escape=kubernetes_text),
        }
        if job.service_account:
            properties[f"{base}authenticate.driver.serviceAccountName"] = job.service_account
        if job.secrets.image_pull:
            properties[f"{base}container.image.pullSecrets"] = ",".join(job.secrets.image_pull)
        for key, value in job.node_selector.items():
            properties[f"{base}node.selector.{key}"] = value
        wanted = largest(job)
        if wanted.gpu:
            properties["spark.executor.resource.gpu.vendor"] = "nvidia.com"
        if wanted.gpu_type:
            properties[f"{base}executor.node.selector.{GPU_PRODUCT}"] = wanted.gpu_type
        if job.gang:
            for side in ("driver", "executor"):
                feature = "org.apache.spark.deploy.k8s.features.VolcanoFeatureStep"
                properties[f"{base}{side}.pod.featureSteps"] = feature
            properties[f"{base}scheduler.name"] = "volcano"
        for side in ("driver", "executor"):
            properties |= _pod(job, f"{base}{side}.")
        master = "k8s://${KUBERNETES_API:?set it to https://HOST:PORT}"
        return script(job, master, properties, APPLICATION, in_pods=True)

    def cannot_together(self, job: Job) -> Iterator[Problem]:
        """Reject a secret at two paths, because the property is named after the secret."""
        mounts = [(f"volumes[{i}].secret", v.secret) for i, v in enumerate(job.volumes) if v.secret]
        mounts += [(f"secrets.files.{path}", name) for path, name in job.secrets.files.items()]
        mounts += [("credentials.gcs.secret", gcs.secret)] if (gcs := job.credentials.gcs) else []
        seen = set()
        for path, name in mounts:
            if name in seen:
                yield Problem(
                    path, f"Spark mounts a secret at one path only, and {name!r} has another"
                )
            seen.add(name)
