"""Reads the state of a job's Kubernetes objects; pure functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

from gridflow.deploy.pods import COMPONENT, KUEUE_QUEUE

if TYPE_CHECKING:
    from gridflow.deploy.description.description import Job

#: States of success and failure: Job, JobSet, TFJob, TrainJob; Volcano's phases; Spark's states.
GOOD: Final = frozenset({"Complete", "Completed", "Succeeded", "COMPLETED"})
BAD: Final = frozenset({"Failed", "Aborted", "Terminated", "FAILED", "SUBMISSION_FAILED"})
#: Kinds that never end; they are followed until they are ready.
STANDING: Final = ("Deployment", "Notebook", "InferenceService", "Tensorboard")


def resource(content: Any) -> str:
    """Return kubectl's name for an object's kind, with its group, because Volcano also has Jobs."""
    group, slash, version = content["apiVersion"].rpartition("/")
    kind = str(content["kind"]).lower()
    return f"{kind}.{version}.{group}" if slash else kind


def components(tree: Any) -> set[str]:
    """Return the components with which documents label pods."""
    if isinstance(tree, dict):
        own = {tree[COMPONENT]} if isinstance(tree.get(COMPONENT), str) else set()
        return own.union(*map(components, tree.values()))
    return set().union(*map(components, tree)) if isinstance(tree, list) else set()


def state_of(item: Any) -> str:
    """Return an object's state, as its kind names it; one of `GOOD` once it is ready."""
    status = item.get("status") or {}
    if item["kind"] in STANDING:
        return "Complete" if _is_ready(item, status) else "Pending"
    for condition in status.get("conditions") or []:
        if condition.get("status") == "True" and condition.get("type") in GOOD | BAD:
            return str(condition["type"])
    state = status.get("state")
    if isinstance(state, dict):
        return str(state.get("phase", ""))
    return str(status.get("applicationState", {}).get("state", ""))


def reason_of(item: Any) -> tuple[str, str]:
    """Return a reason and a message for an object's failure; both may be empty."""
    status = item.get("status") or {}
    for condition in status.get("conditions") or []:
        if condition.get("status") == "True" and condition.get("type") in BAD:
            return str(condition.get("reason", "")), str(condition.get("message", ""))
    state = status.get("state")
    if isinstance(state, dict):
        return str(state.get("reason", "")), str(state.get("message", ""))
    return "", str(status.get("applicationState", {}).get("errorMessage", ""))


def is_suspended(item: Any) -> bool:
    """Return whether an object waits until a queue, or its owner, lets it run."""
    spec = item.get("spec") or {}
    return bool(spec.get("suspend") or (spec.get("runPolicy") or {}).get("suspend"))


def _is_ready(item: Any, status: Any) -> bool:
    # Kubeflow's controllers don't report the generation of their status.
    silent = 0 if item["kind"] == "Deployment" else item["metadata"].get("generation", 0)
    if status.get("observedGeneration", silent) < item["metadata"].get("generation", 0):
        return False
    conditions = {c["type"]: c["status"] for c in status.get("conditions") or []}
    if "Ready" in conditions:
        return bool(conditions["Ready"] == "True")
    wanted = item.get("spec", {}).get("replicas", 1)
    if item["kind"] != "Deployment":
        return bool(status.get("readyReplicas", 0) >= wanted)
    # Like `kubectl rollout status`: all pods use the newest template, and old ones are gone.
    updated = status.get("updatedReplicas", 0)
    return bool(
        updated >= wanted
        and status.get("replicas", 0) <= updated
        and status.get("availableReplicas", 0) >= updated
    )


@dataclass(frozen=True)
class Pod:
    """The state of a pod, as shown to users.

    `detail`: Why the pod is waiting, or how it ended.
    `restarts`: Number of restarts of its containers.
    `exit_code`: The first nonzero exit code of its containers.
    `has_output`, `has_ended`, `is_leaving`: Whether a container has started, whether the pod has
        ended, and whether it is being removed.
    `has_begun`, `is_placed`: Whether any container has ever started, and whether the pod has a
        node.
    """

    name: str
    uid: str
    phase: str
    detail: str
    restarts: int
    exit_code: int | None
    has_output: bool
    has_ended: bool
    is_leaving: bool
    has_begun: bool
    is_placed: bool

    @classmethod
    def of(cls, item: Any) -> Self:
        """Read a pod from the server's object."""
        status = item.get("status", {})
        phase = status.get("phase", "")
        boxes = status.get("containerStatuses") or []
        first = status.get("initContainerStatuses") or []
        restarts = sum(box.get("restartCount", 0) for box in boxes)
        has_output = _has_started(boxes) or (not boxes and phase not in {"", "Pending"})
        return cls(
            item["metadata"]["name"],
            item["metadata"].get("uid", ""),
            phase,
            _detail(status),
            restarts,
            next((code for box in boxes if (code := _exit_code(box))), None),
            has_output,
            phase in {"Succeeded", "Failed"},
            "deletionTimestamp" in item["metadata"],
            has_output or restarts > 0 or _has_started(first),
            bool(item["spec"].get("nodeName")),
        )


def _has_started(boxes: Any) -> bool:
    return any({"running", "terminated"} & set(box.get("state", {})) for box in boxes)


def _exit_code(box: Any) -> int | None:
    code = box.get("state", {}).get("terminated", {}).get("exitCode")
    return code if isinstance(code, int) else None


def _first_line(message: str | None) -> list[str]:
    """Return the first line of a termination message; the rest is in the pod's logs."""
    return (message or "").strip().splitlines()[:1]


def _detail(status: Any) -> str:
    found = [status.get("reason", ""), status.get("message", "")]
    for box in status.get("containerStatuses") or []:
        for kind, state in box.get("state", {}).items():
            if kind == "waiting":
                found = [state.get("reason", ""), state.get("message", "")]
            elif kind == "terminated" and not found[0]:
                code = state.get("exitCode")
                found = [state.get("reason", ""), f"exit code {code}" if code else ""]
                found += _first_line(state.get("message"))
    if not any(found):
        for condition in status.get("conditions") or []:
            if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
                found = [condition.get("reason", ""), condition.get("message", "")]
    return ": ".join(" ".join(part.split()) for part in found if part)


def is_queued(job: Job, items: dict[str, Any], pods: list[Pod]) -> bool:
    """Return whether a job waits until a queue admits it, by its objects and pods.

    Kueue suspends what waits. Volcano only leaves its pods without a node.
    """
    there = [item for item in items.values() if item]
    if any(map(is_suspended, there)):
        return True
    has_queue = job.gang is not None and job.gang.queue is not None
    is_kueues = any(KUEUE_QUEUE in item.get("metadata", {}).get("labels", {}) for item in there)
    return has_queue and not is_kueues and not any(pod.is_placed for pod in pods)
