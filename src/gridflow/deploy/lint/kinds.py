"""Rules for each kind of object that its schema lacks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gridflow.deploy.description import rules
from gridflow.deploy.lint.cluster import check_pod_host
from gridflow.deploy.lint.pods import check_env, check_metadata, check_pod, check_template
from gridflow.deploy.lint.report import below
from gridflow.errors import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable

    from gridflow.deploy.lint.report import LintReport

_TF_ROLES: Final = ("Chief", "Master", "Worker", "PS", "Evaluator")


def _name(document: dict[str, Any]) -> str:
    meta = document.get("metadata")
    return str(meta.get("name", "")) if isinstance(meta, dict) else ""


def job(report: LintReport, document: dict[str, Any]) -> None:
    """Check a ``batch/v1`` Job."""
    check_metadata(report, document, label=True)
    check_job_spec(report, "spec", document.get("spec"), _name(document))


def service(report: LintReport, document: dict[str, Any]) -> None:
    """Check a Service."""
    check_metadata(report, document, label=True)
    spec = report.mapping("spec", document.get("spec"), "ServiceSpec")
    names: list[Any] = []
    ports = report.listing("spec.ports", spec.get("ports"))
    for index, item in enumerate(ports):
        path = f"spec.ports[{index}]"
        port = report.mapping(path, item, "ServicePort")
        for key in ("port", "targetPort", "nodePort"):
            value = port.get(key)
            if type(value) is int:
                report.add(f"{path}.{key}", rules.port_number(value))
            elif key == "port":
                report.add(f"{path}.port", f"must be a port, got {value!r}.")
        if name := port.get("name"):
            report.add(f"{path}.name", rules.dns_label(str(name)))
        elif len(ports) > 1:
            report.add(f"{path}.name", "several ports need names.")
        if port.get("name") in names:
            report.add(f"{path}.name", f"the port {port.get('name')!r} is defined twice.")
        names.append(port.get("name"))
    if spec.get("publishNotReadyAddresses") and spec.get("clusterIP") != "None":
        report.add(
            "spec.clusterIP", "must be 'None': tasks find each other through a headless Service."
        )
    if "selector" in spec and not spec["selector"]:
        report.add("spec.selector", "is empty, so it selects nothing.")


def deployment(report: LintReport, document: dict[str, Any]) -> None:
    """Check a Deployment."""
    check_metadata(report, document, label=False)
    spec = report.mapping("spec", document.get("spec"), "DeploymentSpec")
    report.integer("spec.replicas", spec.get("replicas"), 0)
    check_template(report, "spec.template", spec.get("template"), restart=("Always",))
    selector = report.mapping("spec.selector", spec.get("selector"))
    labels = report.mapping("", report.mapping("", spec.get("template")).get("metadata"))
    have = labels.get("labels") or {}
    want = report.mapping("spec.selector.matchLabels", selector.get("matchLabels"))
    if not want and not selector.get("matchExpressions"):
        report.add("spec.selector", "is missing or empty.")
    for key, value in want.items():
        if have.get(key) != value:
            reason = f"selects {value!r}, but the template's pods have {have.get(key)!r}."
            report.add(f"spec.selector.matchLabels.{key}", reason)


def tfjob(report: LintReport, document: dict[str, Any]) -> None:
    """Check a TFJob, as its webhook and controller would."""
    check_metadata(report, document, label=True)
    spec = report.mapping("spec", document.get("spec"), "TFJobSpec")
    policy = report.mapping("spec.runPolicy", spec.get("runPolicy"), "TFJobRunPolicy")
    clean = ("None", "Running", "All")
    report.one_of("spec.runPolicy.cleanPodPolicy", policy.get("cleanPodPolicy"), clean)
    report.one_of("spec.successPolicy", spec.get("successPolicy"), ("", "AllWorkers"))
    path = "spec.runPolicy.schedulingPolicy"
    gang = report.mapping(path, policy.get("schedulingPolicy"), "TFJobSchedulingPolicy")
    roles = report.mapping("spec.tfReplicaSpecs", spec.get("tfReplicaSpecs"))
    if not roles:
        report.add("spec.tfReplicaSpecs", "is missing or empty.")
    chiefs = total = 0
    for role, value in roles.items():
        path = f"spec.tfReplicaSpecs.{role}"
        if role not in _TF_ROLES:
            reason = f"{role!r} is not a role; the roles are {', '.join(_TF_ROLES)}."
            report.add(path, reason + did_you_mean(str(role).capitalize(), _TF_ROLES))
        replica = report.mapping(path, value, "TFJobReplica")
        count = report.integer(f"{path}.replicas", replica.get("replicas", 1), 0) or 0
        total += count
        chiefs += count if role in {"Chief", "Master"} else 0
        allowed = ("Always", "OnFailure", "Never", "ExitCode")
        report.one_of(f"{path}.restartPolicy", replica.get("restartPolicy"), allowed)
        pod = check_template(
            report,
            f"{path}.template",
            replica.get("template"),
            restart=None,
            container="tensorflow",
        )
        if (
            replica.get("restartPolicy") == "ExitCode"
            and pod.get("restartPolicy", "Never") != "Never"
        ):
            place = f"{path}.template.spec.restartPolicy"
            report.add(place, "must be Never: with ExitCode, the operator restarts pods.")
        check_pod_host(
            report, "metadata.name", f"{_name(document)}-{str(role).lower()}-{count - 1}"
        )
        _tfjob_port(report, f"{path}.template.spec", pod)
    if chiefs > 1:
        report.add("spec.tfReplicaSpecs", f"a job has at most one chief, got {chiefs}.")
    minimum = report.integer(f"{path}.minAvailable", gang.get("minAvailable"), 1)
    if minimum and minimum > total:
        reason = f"{minimum} is more than the job's {total} tasks."
        report.add("spec.runPolicy.schedulingPolicy.minAvailable", reason)


def _tfjob_port(report: LintReport, path: str, pod: dict[str, Any]) -> None:
    for index, box in enumerate(pod.get("containers") or ()):
        if not isinstance(box, dict) or box.get("name") != "tensorflow":
            continue
        ports = [p for p in box.get("ports") or () if isinstance(p, dict)]
        if ports and "tfjob-port" not in [port.get("name") for port in ports]:
            reason = "the operator uses only the port named 'tfjob-port', otherwise 2222."
            report.add(f"{path}.containers[{index}].ports", reason)


def check_set_spec(report: LintReport, path: str, spec: dict[str, Any], name: str) -> None:
    """Check the spec of a JobSet that will be named ``name``."""
    jobs = report.listing(below(path, "replicatedJobs"), spec.get("replicatedJobs"))
    names = []
    for index, item in enumerate(jobs):
        place = f"{path}.replicatedJobs[{index}]"
        part = report.mapping(place, item, "ReplicatedJob")
        own = report.text(f"{place}.name", part.get("name")) or ""
        report.add(f"{place}.name", rules.dns_label(own))
        if own in names:
            report.add(f"{place}.name", f"{own!r} is defined twice.")
        names.append(own)
        replicas = report.integer(f"{place}.replicas", part.get("replicas", 1), 0) or 1
        template = report.mapping(f"{place}.template", part.get("template"))
        host = f"{name}-{own}-{replicas - 1}"
        check_job_spec(report, f"{place}.template.spec", template.get("spec"), host)
        _check_set_pods(report, f"{place}.template.spec", template.get("spec"), host)
    for policy, key in (("successPolicy", "targetReplicatedJobs"),):
        chosen = report.mapping(below(path, policy), spec.get(policy))
        for index, target in enumerate(report.listing(f"{path}.{policy}.{key}", chosen.get(key))):
            if target not in names:
                reason = f"there is no replicated job {target!r}; there are {', '.join(names)}."
                report.add(f"{path}.{policy}.{key}[{index}]", reason)
    network = report.mapping(below(path, "network"), spec.get("network"))
    if network.get("publishNotReadyAddresses") is False:
        place = f"{path}.network.publishNotReadyAddresses"
        report.add(place, "must be true: tasks must find each other before they are ready.")


def _check_set_pods(report: LintReport, path: str, spec: Any, host: str) -> None:
    """Check the longest pod name, which must be a DNS label for JobSet's webhook.

    The index and five characters are appended (kubernetes-sigs/jobset,
    pkg/webhooks/jobset_webhook.go).
    """
    count = spec.get("completions") if isinstance(spec, dict) else None
    if type(count) is int:
        check_pod_host(report, below(path, "completions"), f"{host}-{max(count - 1, 0)}-abcde")


def jobset(report: LintReport, document: dict[str, Any]) -> None:
    """Check a JobSet."""
    check_metadata(report, document, label=True)
    spec = report.mapping("spec", document.get("spec"), "JobSetSpec")
    check_set_spec(report, "spec", spec, _name(document))


def training_runtime(report: LintReport, document: dict[str, Any]) -> None:
    """Check a runtime of Kubeflow Trainer: one replicated job is the trainer."""
    check_metadata(report, document, label=True)
    spec = report.mapping("spec", document.get("spec"), "TrainingRuntimeSpec")
    template = report.mapping("spec.template", spec.get("template"))
    inner = report.mapping("spec.template.spec", template.get("spec"), "JobSetSpec")
    # The set and its pods are named after the TrainJob, not the runtime.
    check_set_spec(report, "spec.template.spec", inner, "a")
    key = "trainer.kubeflow.org/trainjob-ancestor-step"
    steps = 0
    for index, part in enumerate(inner.get("replicatedJobs") or ()):
        if isinstance(part, dict):
            if part.get("replicas", 1) != 1:
                path = f"spec.template.spec.replicatedJobs[{index}].replicas"
                report.add(path, "must be 1 for Trainer.")
            meta = report.mapping("", report.mapping("", part.get("template")).get("metadata"))
            steps += (meta.get("labels") or {}).get(key) == "trainer"
    if steps != 1:
        reason = f"exactly one replicated job needs the label {key}: trainer; found {steps}."
        report.add("spec.template.spec.replicatedJobs", reason)


def train_job(report: LintReport, document: dict[str, Any]) -> None:
    """Check a TrainJob."""
    check_metadata(report, document, label=True)
    spec = report.mapping("spec", document.get("spec"), "TrainJobSpec")
    reference = report.mapping("spec.runtimeRef", spec.get("runtimeRef"))
    report.text("spec.runtimeRef.name", reference.get("name", 0))
    trainer = report.mapping("spec.trainer", spec.get("trainer"), "Trainer")
    nodes = report.integer("spec.trainer.numNodes", trainer.get("numNodes"), 1) or 1
    check_pod_host(report, "metadata.name", f"{_name(document)}-node-0-{nodes - 1}-abcde")
    check_env(report, "spec.trainer.env", trainer.get("env"))


def volcano_job(report: LintReport, document: dict[str, Any]) -> None:
    """Check a Volcano Job, as its webhook would."""
    check_metadata(report, document, label=True)
    spec = report.mapping("spec", document.get("spec"), "VolcanoSpec")
    total = 0
    names = []
    for index, item in enumerate(report.listing("spec.tasks", spec.get("tasks"))):
        path = f"spec.tasks[{index}]"
        task = report.mapping(path, item, "VolcanoTask")
        name = report.text(f"{path}.name", task.get("name")) or ""
        report.add(f"{path}.name", rules.dns_label(name))
        if name in names:
            report.add(f"{path}.name", f"the task {name!r} is defined twice.")
        names.append(name)
        count = report.integer(f"{path}.replicas", task.get("replicas", 1), 0) or 0
        total += count
        check_pod_host(report, "metadata.name", f"{_name(document)}-{name}-{count - 1}")
        check_template(report, f"{path}.template", task.get("template"), restart=JOB_RESTARTS)
    minimum = report.integer("spec.minAvailable", spec.get("minAvailable"), 1)
    if minimum and minimum > total:
        report.add("spec.minAvailable", f"{minimum} is more than the job's {total} tasks.")
    events = []
    for index, rule in enumerate(report.listing("spec.policies", spec.get("policies"))):
        if not isinstance(rule, dict):
            continue
        if ("event" in rule or "events" in rule) and "exitCode" in rule:
            report.add(
                f"spec.policies[{index}]", "has an event and an exitCode; only one is allowed."
            )
        if rule.get("exitCode") == 0:
            report.add(f"spec.policies[{index}].exitCode", "0 is success, not a failure.")
        mark = rule.get("event", rule.get("exitCode"))
        if mark in events:
            report.add(f"spec.policies[{index}]", f"{mark!r} is defined twice.")
        events.append(mark)


def pod_group(report: LintReport, document: dict[str, Any]) -> None:
    """Check a Volcano PodGroup."""
    check_metadata(report, document, label=False)
    spec = report.mapping("spec", document.get("spec"), "PodGroupSpec")
    report.integer("spec.minMember", spec.get("minMember"), 1)


def notebook(report: LintReport, document: dict[str, Any]) -> None:
    """Check a Kubeflow Notebook."""
    check_metadata(report, document, label=True)
    longest = 52  # pods of a StatefulSet have a label with its name and a hash
    if len(_name(document)) > longest:
        report.add("metadata.name", f"a notebook's name has at most {longest} characters.")
    spec = report.mapping("spec", document.get("spec"))
    template = report.mapping("spec.template", spec.get("template"))
    check_pod(report, "spec.template.spec", template.get("spec"))


def inference_service(report: LintReport, document: dict[str, Any]) -> None:
    """Check a KServe InferenceService."""
    check_metadata(report, document, label=True)
    spec = report.mapping("spec", document.get("spec"))
    path = "spec.predictor"
    predictor = report.mapping(path, spec.get("predictor"), "Predictor")
    # KServe names the pods NAME-predictor-…
    check_pod_host(report, "metadata.name", f"{_name(document)}-predictor-default")
    least = report.integer(f"{path}.minReplicas", predictor.get("minReplicas"), 0)
    most = report.integer(f"{path}.maxReplicas", predictor.get("maxReplicas"), 0)
    if least is not None and most and least > most:
        report.add(f"{path}.minReplicas", f"{least} is more than maxReplicas, {most}.")
    model = report.mapping(f"{path}.model", predictor.get("model"), "PredictorModel")
    place = model.get("storageUri")
    schemes = ("gs://", "s3://", "pvc://", "hdfs://", "http://", "https://")
    if place is not None and not str(place).startswith(schemes):
        reason = f"must begin with one of {', '.join(schemes)}, got {place!r}."
        report.add(f"{path}.model.storageUri", reason)


def tensorboard(report: LintReport, document: dict[str, Any]) -> None:
    """Check a Kubeflow Tensorboard."""
    check_metadata(report, document, label=True)
    spec = report.mapping("spec", document.get("spec"))
    place = report.text("spec.logspath", spec.get("logspath", 0)) or ""
    if not place.startswith(("pvc://", "gs://", "s3://")):
        report.add("spec.logspath", f"must begin with pvc://, gs:// or s3://, got {place!r}.")


def spark_application(report: LintReport, document: dict[str, Any]) -> None:
    """Check a SparkApplication."""
    check_metadata(report, document, label=True)
    spec = report.mapping("spec", document.get("spec"), "SparkSpec")
    restart = report.mapping("spec.restartPolicy", spec.get("restartPolicy"))
    allowed = ("Never", "OnFailure", "Always")
    report.one_of("spec.restartPolicy.type", restart.get("type"), allowed)
    for side in ("driver", "executor"):
        path = f"spec.{side}"
        part = report.mapping(path, spec.get(side), f"Spark{side.capitalize()}")
        report.integer(f"{path}.cores", part.get("cores"), 1)
        memory = part.get("memory")
        if memory is not None and not str(memory).rstrip("kmgtKMGTbB").isdigit():
            reason = f"must be in Spark's units, such as 512m or 4g, got {memory!r}."
            report.add(f"{path}.memory", reason)
        check_env(report, f"{path}.env", part.get("env"))
        check = [v.get("name") for v in spec.get("volumes") or () if isinstance(v, dict)]
        for index, mount in enumerate(part.get("volumeMounts") or ()):
            if isinstance(mount, dict) and mount.get("name") not in check:
                place = f"{path}.volumeMounts[{index}].name"
                report.add(place, f"there is no volume {mount.get('name')!r}.")
    executor = report.mapping("spec.executor", spec.get("executor"))
    report.integer("spec.executor.instances", executor.get("instances"), 1)


def other(report: LintReport, document: dict[str, Any]) -> None:
    """Check an object of a kind without specific rules."""
    check_metadata(report, document, label=False)


#: By kind and the group of apiVersion.
KINDS: Final[dict[tuple[str, str], Callable[[LintReport, dict[str, Any]], None]]] = {
    ("Job", "batch"): job,
    ("Job", "batch.volcano.sh"): volcano_job,
    ("Service", ""): service,
    ("ConfigMap", ""): other,
    ("PersistentVolumeClaim", ""): other,
    ("Deployment", "apps"): deployment,
    ("TFJob", "kubeflow.org"): tfjob,
    ("Notebook", "kubeflow.org"): notebook,
    ("JobSet", "jobset.x-k8s.io"): jobset,
    ("TrainJob", "trainer.kubeflow.org"): train_job,
    ("TrainingRuntime", "trainer.kubeflow.org"): training_runtime,
    ("ClusterTrainingRuntime", "trainer.kubeflow.org"): training_runtime,
    ("PodGroup", "scheduling.volcano.sh"): pod_group,
    ("InferenceService", "serving.kserve.io"): inference_service,
    ("Tensorboard", "tensorboard.kubeflow.org"): tensorboard,
    ("SparkApplication", "sparkoperator.k8s.io"): spark_application,
}


# Rules for the spec of a ``batch/v1`` Job, which is also part of other kinds.

JOB_RESTARTS: Final = ("Never", "OnFailure")
_MAX_CODE: Final = 255


def check_job_spec(
    report: LintReport, path: str, value: Any, name: str, container: str | None = None
) -> None:
    """Check the spec of a ``batch/v1`` Job that will be named ``name``."""
    spec = report.mapping(path, value, "JobSpec")
    restart: tuple[str, ...] = JOB_RESTARTS
    pod = check_template(
        report, below(path, "template"), spec.get("template"), restart=restart, container=container
    )
    completions = report.integer(below(path, "completions"), spec.get("completions"), 0)
    report.integer(below(path, "parallelism"), spec.get("parallelism"), 0)
    report.integer(below(path, "backoffLimit"), spec.get("backoffLimit"), 0)
    report.integer(below(path, "activeDeadlineSeconds"), spec.get("activeDeadlineSeconds"), 1)
    report.integer(below(path, "ttlSecondsAfterFinished"), spec.get("ttlSecondsAfterFinished"), 0)
    mode = spec.get("completionMode")
    report.one_of(below(path, "completionMode"), mode, ("Indexed", "NonIndexed"))
    if mode == "Indexed":
        if completions is None:
            report.add(below(path, "completions"), "an Indexed Job needs completions.")
        else:
            check_pod_host(report, below(path, "completions"), f"{name}-{max(completions - 1, 0)}")
    elif "backoffLimitPerIndex" in spec:
        report.add(below(path, "backoffLimitPerIndex"), "only an Indexed Job supports this.")
    if "maxFailedIndexes" in spec and "backoffLimitPerIndex" not in spec:
        report.add(below(path, "maxFailedIndexes"), "needs backoffLimitPerIndex.")
    _failure_policy(report, below(path, "podFailurePolicy"), spec, pod)


def _failure_policy(
    report: LintReport, path: str, spec: dict[str, Any], pod: dict[str, Any]
) -> None:
    if "podFailurePolicy" not in spec:
        return
    if pod.get("restartPolicy") == "OnFailure":
        report.add(path, "needs restartPolicy: Never in the pod's template, which has OnFailure.")
    policy = report.mapping(path, spec["podFailurePolicy"])
    boxes = [b.get("name") for b in pod.get("containers") or () if isinstance(b, dict)]
    for index, item in enumerate(report.listing(f"{path}.rules", policy.get("rules"))):
        place = f"{path}.rules[{index}]"
        rule = report.mapping(place, item)
        actions = ("FailJob", "FailIndex", "Ignore", "Count")
        report.one_of(f"{place}.action", rule.get("action"), actions)
        if rule.get("action") == "FailIndex" and "backoffLimitPerIndex" not in spec:
            report.add(f"{place}.action", "FailIndex needs backoffLimitPerIndex.")
        codes = report.mapping(f"{place}.onExitCodes", rule.get("onExitCodes"))
        wanted = codes.get("containerName")
        if wanted is not None and wanted not in boxes:
            reason = f"there is no container {wanted!r}; the pod has {', '.join(map(str, boxes))}."
            report.add(f"{place}.onExitCodes.containerName", reason)
        values = report.listing(f"{place}.onExitCodes.values", codes.get("values"))
        if any(type(v) is not int or not 0 <= v <= _MAX_CODE for v in values):
            report.add(f"{place}.onExitCodes.values", f"exit codes are from 0 to {_MAX_CODE}.")
        if codes.get("operator") == "In" and 0 in values:
            report.add(f"{place}.onExitCodes.values", "0 is success, not a failure.")
