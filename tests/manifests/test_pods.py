"""What every pod has: the security that clusters ask for, labels, placement, no sidecar."""

from __future__ import annotations

import dataclasses

import pytest
import yaml
from jobs import flights, full

from gridflow.deploy import TARGETS, Resources, Role, Serve, TensorBoard, Volume, get_target, render

ON_KUBERNETES = [name for name in TARGETS if get_target(name).form == "kubernetes"]
TRAINING = ("kubernetes", "jobset", "tfjob", "trainjob", "volcano")


def templates(tree):
    """Yield the metadata and spec of every pod inside of a document."""
    if isinstance(tree, dict):
        spec = tree.get("spec")
        if isinstance(spec, dict) and "containers" in spec:
            yield tree.get("metadata", {}), spec
        for child in tree.values():
            yield from templates(child)
    elif isinstance(tree, list):
        for child in tree:
            yield from templates(child)


def pods(target, job):
    for document in render(job, target, lossy=True).documents:
        yield from templates(document.content)


def violations(spec):
    """The rules of PodSecurity's level "restricted" that a pod breaks, but for host volumes.

    kubernetes/pod-security-admission, policy/check_*.go.
    """
    whole = spec.get("securityContext", {})
    if whole.get("seccompProfile", {}).get("type") not in {"RuntimeDefault", "Localhost"}:
        yield "seccompProfile"
    if whole.get("runAsNonRoot") is not True or whole.get("runAsUser") == 0:
        yield "runAsNonRoot"
    for box in [*spec["containers"], *spec.get("initContainers", [])]:
        context = box.get("securityContext", {})
        if context.get("allowPrivilegeEscalation") is not False:
            yield "allowPrivilegeEscalation"
        if context.get("capabilities", {}).get("drop") != ["ALL"]:
            yield "capabilities"
    if spec.get("hostNetwork") or spec.get("hostPID") or spec.get("hostIPC"):
        yield "host namespaces"


@pytest.mark.parametrize("target", [t for t in ON_KUBERNETES if t not in {"kserve", "tensorboard"}])
def test_every_pod_is_admitted_where_pod_security_is_restricted(target):
    if target == "sparkapplication":
        (document,) = render(full(), target, lossy=True).documents
        sides = [document.content["spec"][side] for side in ("driver", "executor")]
        found = [
            {"securityContext": side["podSecurityContext"], "containers": [side]} for side in sides
        ]
    else:
        found = [spec for _, spec in pods(target, full())]
    assert found
    assert [violation for spec in found for violation in violations(spec)] == []


def test_root_is_a_choice():
    ((_, spec),) = pods("jobset", flights(run_as_user=0))
    assert spec["securityContext"]["runAsUser"] == 0
    assert list(violations(spec)) == ["runAsNonRoot", "capabilities"]


@pytest.mark.parametrize("target", TRAINING)
def test_a_task_has_no_sidecar_and_the_labels_of_its_job(target):
    for about, _ in pods(target, flights(tensorboard=TensorBoard("gs://bucket/logs"))):
        labels = about["labels"]
        assert labels["app.kubernetes.io/instance"] == "flights"
        if labels["app.kubernetes.io/component"] != "tensorboard":
            assert labels["sidecar.istio.io/inject"] == "false"
            assert about["annotations"]["sidecar.istio.io/inject"] == "false"


@pytest.mark.parametrize("target", [*TRAINING, "serving", "notebook"])
def test_priority_affinity_and_other_devices_are_fields(target):
    gpu = Resources(gpu=1, gpu_resource="amd.com/gpu")
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": []}}
    job = dataclasses.replace(
        full(),
        roles={"worker": Role(2, resources=gpu)},
        gang=None,
        priority_class="high",
        affinity=affinity,
    )
    job = dataclasses.replace(job, serve=dataclasses.replace(job.serve, resources=gpu))
    job = dataclasses.replace(job, notebook=dataclasses.replace(job.notebook, resources=gpu))
    devices = set()
    for _, spec in pods(target, job):
        assert (spec["priorityClassName"], spec["affinity"]) == ("high", affinity)
        for box in spec["containers"]:
            devices |= set(box.get("resources", {}).get("limits", {}))
    assert "amd.com/gpu" in devices
    assert "nvidia.com/gpu" not in devices


def test_who_only_reads_a_claim_mounts_it_read_only():
    board = TensorBoard("/data/logs")
    serve = Serve(full().serve.models[:1])
    job = flights(volumes=[Volume("data", "/data", pvc="data")], tensorboard=board, serve=serve)
    for target, name in (("serving", "serving"), ("jobset", "tensorboard")):
        (spec,) = [s for _, s in pods(target, job) if s["containers"][0]["name"] == name]
        (box,) = spec["containers"]
        assert box["securityContext"]["readOnlyRootFilesystem"] is True
        writable = [m["mountPath"] for m in box["volumeMounts"] if not m.get("readOnly")]
        assert writable == ["/tmp"]
    (task,) = [s for _, s in pods("jobset", job) if s["containers"][0]["name"] == "tensorflow"]
    assert task["containers"][0]["volumeMounts"] == [{"name": "data", "mountPath": "/data"}]


def test_a_scratch_directory_of_docker_is_no_memory():
    job = flights(volumes=[Volume("scratch", "/scratch", empty="10Gi")])
    for target, name in (("compose", "worker-0"), ("swarm", "worker")):
        service = yaml.safe_load(render(job, target).text())["services"][name]
        assert service["volumes"] == [{"type": "volume", "target": "/scratch"}]
    assert "--mount=type=volume,target=/scratch" in render(job, "docker").text()


@pytest.mark.parametrize("target", ["kubernetes", "compose", "swarm", "marathon"])
def test_an_image_may_be_named_by_its_digest(target):
    image = f"registry.example:5000/a/b@sha256:{'0' * 64}"
    assert image in render(flights(image=image), target).text()
