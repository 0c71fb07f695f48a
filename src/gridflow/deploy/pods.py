"""A task's pod, the same on all Kubernetes-based targets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

from gridflow._spec.cluster import role_variables
from gridflow.deploy.targets.base import Document
from gridflow.deploy.task_start import kubernetes_text, program_words

if TYPE_CHECKING:
    from gridflow.deploy.description.description import Job
    from gridflow.deploy.description.parts import Resources, Toleration, Volume
    from gridflow.deploy.task_start import News

GPU_PRODUCT: Final = "nvidia.com/gpu.product"
GCS_DIRECTORY: Final = "/etc/gridflow/gcs"
#: TensorFlow's cluster can't be reached through an Istio sidecar, and a sidecar would keep a
#: finished pod running. Istio reads the label; Istio up to 1.9 and Kubeflow's docs use the
#: annotation.
NO_SIDECAR: Final = {"sidecar.istio.io/inject": "false"}
#: The job's start time. `gridflow run` records it for targets that restart pods, so that the
#: deadline counts from the first start.
BEGAN: Final = "gridflow/began"
#: The label for an object's part of the job: a role, or a sidecar such as TensorBoard.
COMPONENT: Final = "app.kubernetes.io/component"
KUEUE_QUEUE: Final = "kueue.x-k8s.io/queue-name"


def names(job: Job, component: str | None = None) -> dict[str, str]:
    """Return the labels that identify an object's job and component."""
    labels = {
        "app.kubernetes.io/name": job.name,
        "app.kubernetes.io/instance": job.name,
        "app.kubernetes.io/managed-by": "gridflow",
    }
    if component:
        labels[COMPONENT] = component
    return labels


def selector(job: Job, component: str | None = None) -> dict[str, str]:
    """Return the labels that select the pods of a job, or of one of its components."""
    labels = {"app.kubernetes.io/name": job.name}
    return {**labels, COMPONENT: component} if component else labels


def metadata(job: Job, name: str, component: str | None = None) -> dict[str, Any]:
    """Return the metadata for an object of the job."""
    return {
        "name": name,
        "namespace": job.namespace,
        "labels": {**job.labels, **names(job, component)},
    }


def env_list(env: dict[str, str]) -> list[dict[str, Any]]:
    """Return variables in Kubernetes' form."""
    return [{"name": name, "value": kubernetes_text(value)} for name, value in env.items()]


def key_env(name: str, secret: str, key: str) -> dict[str, Any]:
    """Return a variable whose value is a key of a secret."""
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}


def field_env(name: str, path: str) -> dict[str, Any]:
    """Return a variable whose value is a field of the pod."""
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def began_env(job: Job) -> tuple[dict[str, Any], ...]:
    """Return the variable with the job's first start time, for jobs with a deadline."""
    if job.deadline is None:
        return ()
    return (field_env("GRIDFLOW_BEGAN", f"metadata.annotations['{BEGAN}']"),)


def credential_env(job: Job) -> list[dict[str, Any]]:
    """Return the variables through which TensorFlow and boto find credentials for buckets."""
    env: list[dict[str, Any]] = []
    if job.credentials.gcs:
        place = f"{GCS_DIRECTORY}/{job.credentials.gcs.key}"
        env.append({"name": "GOOGLE_APPLICATION_CREDENTIALS", "value": place})
    env += [key_env(name, ref.secret, ref.key) for name, ref in job.credentials.keys.items()]
    return env + env_list(s3_settings(job))


def s3_settings(job: Job) -> dict[str, str]:
    """Return the S3 variables that aren't secret."""
    s3 = job.credentials.s3
    if not s3:
        return {}
    settings = {}
    if s3.endpoint:
        # boto reads the first, TensorFlow's S3 file system the others.
        settings["AWS_ENDPOINT_URL"] = s3.endpoint
        settings["S3_ENDPOINT"] = s3.endpoint.partition("://")[2]
        settings["S3_USE_HTTPS"] = str(int(s3.endpoint.startswith("https://")))
    if s3.region:
        settings["AWS_REGION"] = s3.region
    return settings


def resources(wanted: Resources) -> dict[str, Any]:
    """Return resource requests and limits.

    Cores have a request but no limit: a limit would throttle TensorFlow's threads without freeing
    cores for others.
    """
    amounts: dict[str, dict[str, str | int]] = {"requests": {}, "limits": {}}
    if wanted.cpu:
        amounts["requests"]["cpu"] = wanted.cpu
    if wanted.memory:
        amounts["requests"]["memory"] = amounts["limits"]["memory"] = wanted.memory
    if wanted.gpu:
        amounts["limits"][wanted.gpu_resource] = wanted.gpu
    return {key: value for key, value in amounts.items() if value}


def volumes(
    job: Job, *, looks_on: bool = False
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return a pod's volumes and its container's mounts.

    ``looks_on`` is for containers that only read training results and only write to ``/tmp``.
    """
    sources: list[dict[str, Any]] = []
    mounts: list[dict[str, Any]] = []

    def add(source: dict[str, Any], path: str, *, read_only: bool) -> None:
        sources.append(source)
        mount: dict[str, Any] = {"name": source["name"], "mountPath": path}
        if read_only:
            mount["readOnly"] = True
        mounts.append(mount)

    for volume in job.volumes:
        add(
            {"name": volume.name, **_source(volume)},
            volume.path,
            read_only=looks_on or volume.read_only,
        )
    for index, (path, secret) in enumerate(job.secrets.files.items()):
        source = {"name": f"gridflow-secret-{index}", "secret": {"secretName": secret}}
        add(source, path, read_only=True)
    if gcs := job.credentials.gcs:
        source = {"name": "gridflow-gcs", "secret": {"secretName": gcs.secret}}
        add(source, GCS_DIRECTORY, read_only=True)
    if job.shared_memory and not looks_on:
        memory = {"medium": "Memory", "sizeLimit": job.shared_memory}
        add({"name": "gridflow-shm", "emptyDir": memory}, "/dev/shm", read_only=False)  # noqa: S108
    if looks_on and all(mount["mountPath"] != "/tmp" for mount in mounts):  # noqa: S108
        add({"name": "gridflow-tmp", "emptyDir": {}}, "/tmp", read_only=False)  # noqa: S108
    return sources, mounts


def _source(volume: Volume) -> dict[str, Any]:
    if volume.pvc:
        return {"persistentVolumeClaim": {"claimName": volume.pvc}}
    if volume.host:
        return {"hostPath": {"path": volume.host}}
    if volume.secret:
        return {"secret": {"secretName": volume.secret}}
    if volume.config:
        return {"configMap": {"name": volume.config}}
    return {"emptyDir": {"sizeLimit": volume.empty} if volume.empty else {}}


def tolerations(wanted: tuple[Toleration, ...]) -> list[dict[str, str | int]]:
    """Return tolerations in Kubernetes' form."""
    fields = (
        ("key", "key"),
        ("operator", "operator"),
        ("value", "value"),
        ("effect", "effect"),
        ("seconds", "tolerationSeconds"),
    )
    return [
        {theirs: getattr(item, ours) for ours, theirs in fields if getattr(item, ours) is not None}
        for item in wanted
    ]


def placement(job: Job, wanted: Resources) -> dict[str, Any]:
    """Return the fields of a pod's spec for placement and service account."""
    nodes = dict(job.node_selector)
    if wanted.gpu_type:
        nodes[GPU_PRODUCT] = wanted.gpu_type
    spec: dict[str, Any] = {}
    if job.service_account:
        spec["serviceAccountName"] = job.service_account
    if nodes:
        spec["nodeSelector"] = nodes
    if job.tolerations:
        spec["tolerations"] = tolerations(job.tolerations)
    if job.affinity:
        spec["affinity"] = dict(job.affinity)
    if job.priority_class:
        spec["priorityClassName"] = job.priority_class
    if job.secrets.image_pull:
        spec["imagePullSecrets"] = [{"name": name} for name in job.secrets.image_pull]
    return spec


def pod_security(user: int, group: int | None = None) -> dict[str, Any]:
    """Return a pod's ``securityContext``, as the "restricted" Pod Security Standard requires.

    ``group`` may write to the volumes. Default: the user's id.
    """
    context: dict[str, Any] = {"seccompProfile": {"type": "RuntimeDefault"}, "runAsUser": user}
    if user:
        context |= {"runAsNonRoot": True, "fsGroup": user if group is None else group}
        # Without this, each start would change the group of every file in a volume.
        context["fsGroupChangePolicy"] = "OnRootMismatch"
    return {"securityContext": context}


def box_security(user: int, *, read_only: bool = False) -> dict[str, Any]:
    """Return a container's ``securityContext``; use ``read_only`` if it only writes to volumes.

    Root keeps its capabilities, because it couldn't read other users' files without them.
    """
    context: dict[str, Any] = {"allowPrivilegeEscalation": False}
    if user:
        context["capabilities"] = {"drop": ["ALL"]}
    if read_only:
        context["readOnlyRootFilesystem"] = True
    return {"securityContext": context}


def task_env(
    job: Job, role: str, cluster: dict[str, list[str]] | None, news: News | None
) -> list[dict[str, Any]]:
    """Return a task's variables; the target provides its index."""
    start = role_variables(role, None, cluster) if cluster is not None else {}
    start |= news.variables() if news and role in news else {}
    env = env_list(start) + env_list(job.env_of(role))
    env += [key_env(name, ref.secret, ref.key) for name, ref in job.secrets.env.items()]
    return env + credential_env(job)


def task_pod(
    job: Job,
    role: str,
    *,
    words: list[str],
    container: str,
    port_name: str,
    cluster: dict[str, list[str]] | None,
    news: News | None = None,
    restart: Literal["Never", "OnFailure"] | None = "Never",
    subdomain: str | None = None,
    extra_env: tuple[dict[str, Any], ...] = (),
) -> dict[str, Any]:
    """Return the template of a role's pods.

    `words` (list of str): The command up to the user's program.
    `container`, `port_name`: Names that the target expects.
    `cluster`: The cluster spec; None if the target's operator provides it.
    `news`: How tasks learn that others have ended.
    `restart` ({"Never", "OnFailure"} or None): The pod's restart policy; None leaves it to an
        operator.
    `subdomain`: The headless Service that gives the pod its DNS name.
    `extra_env`: Variables that only this target needs.
    """
    wanted = job.roles[role].resources
    sources, mounts = volumes(job)
    ports = [{"name": port_name, "containerPort": job.port}]
    if news and role in news:
        ports.append({"name": "finish", "containerPort": job.port + 1})
    box: dict[str, Any] = {"name": container, "image": job.image, "command": words}
    if program := program_words(job, role):
        box["args"] = [kubernetes_text(word) for word in program]
    box["env"] = [*task_env(job, role, cluster, news), *extra_env]
    box["ports"] = ports
    if amounts := resources(wanted):
        box["resources"] = amounts
    if mounts:
        box["volumeMounts"] = mounts
    # A container that dies without gridflow's message, such as after an OOM kill, shows its log.
    box["terminationMessagePolicy"] = "FallbackToLogsOnError"
    box |= box_security(job.run_as_user)
    spec: dict[str, Any] = {}
    if restart:
        spec["restartPolicy"] = restart
    if subdomain:
        spec["subdomain"] = subdomain
    spec |= placement(job, wanted) | pod_security(job.run_as_user)
    spec["containers"] = [box]
    if sources:
        spec["volumes"] = sources
    about: dict[str, Any] = {
        "labels": {**NO_SIDECAR, **job.labels, **names(job, role)},
        "annotations": {**NO_SIDECAR, **job.annotations},
    }
    return {"metadata": about, "spec": spec}


def service(
    job: Job, name: str, ports: dict[str, int], component: str | None, *, headless: bool = False
) -> Document:
    """Return a Service for the pods of the job, or of one component."""
    spec: dict[str, Any] = {}
    if headless:
        # Peers must find each other before any of them is ready.
        spec |= {"clusterIP": "None", "publishNotReadyAddresses": True}
    spec["selector"] = selector(job, component)
    spec["ports"] = [{"name": n, "port": port, "targetPort": port} for n, port in ports.items()]
    return object_document("v1", "Service", metadata(job, name, component), spec=spec)


def object_document(version: str, kind: str, about: dict[str, Any], **fields: Any) -> Document:
    """Return a Kubernetes object as a document, named by kind and name."""
    tree = {"apiVersion": version, "kind": kind, "metadata": about, **fields}
    return Document(f"{kind.lower()}-{about['name']}.yaml", tree)
