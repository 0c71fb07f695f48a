"""Jobs on Kubernetes, through the real ``kubectl`` with its current context."""

from __future__ import annotations

import json
import subprocess
import time
from typing import TYPE_CHECKING, Any, Final, TextIO

from gridflow.deploy.drivers.base import TaskStatus, call, say, tool

if TYPE_CHECKING:
    from gridflow.deploy.description.description import Job
    from gridflow.deploy.rendering import Rendering

_POLL: Final = 2.0
_LAST_WORDS: Final = 10.0
#: What ends well and badly: Job, JobSet, TFJob, TrainJob; Volcano's phases; Spark's states.
_GOOD: Final = {"Complete", "Completed", "Succeeded", "COMPLETED"}
_BAD: Final = {"Failed", "Aborted", "Terminated", "FAILED", "SUBMISSION_FAILED"}
#: Kinds that carry on: they are followed until they are ready.
_STANDING: Final = ("Deployment", "Notebook", "InferenceService", "Tensorboard")
_ONGOING: Final = ("kubernetes", "jobset", "tfjob", "trainjob", "volcano", "sparkapplication")


class KubectlDriver:
    """Start, follow and remove a rendered job."""

    def __init__(self, job: Job, rendering: Rendering, *, poll: float = _POLL) -> None:
        self._kubectl = tool("kubectl", "Install it, or pipe 'gridflow render' to where it is.")
        self._job = job
        self._rendering = rendering
        self._poll = poll
        self._seen: dict[str, str] = {}
        self._streams: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """Apply the documents."""
        # They have passed the lint, and not every server has the schemas that kubectl wants.
        words = ("apply", "--filename=-", "--validate=false")
        for line in self._call(*words, text=self._rendering.text()).splitlines():
            say(line)

    def follow(self, output: TextIO) -> int:
        """Show pods and their output until the job has ended, or its service is ready."""
        try:
            while True:
                for task in self.status():
                    self._show(task, output)
                states = [self._state(item) for item in self._watched()]
                if any(state in _BAD for state in states):
                    say(f"{self._job.name} failed; 'gridflow cancel' removes it")
                    return 1
                if all(state in _GOOD for state in states):
                    say(f"{self._job.name} succeeded")
                    return 0
                time.sleep(self._poll)
        finally:
            for pod, stream in self._streams.items():
                # The output of an ended pod comes to its end by itself.
                ended = self._seen[pod].startswith(("Succeeded", "Failed"))
                try:
                    stream.wait(timeout=_LAST_WORDS if ended else 0)
                except subprocess.TimeoutExpired:
                    stream.terminate()
                    stream.wait()

    def status(self) -> list[TaskStatus]:
        """Return the job's pods."""
        listing = json.loads(self._call("get", "pods", *self._labels(), "--output=json"))
        found = []
        for pod in listing["items"]:
            status = pod.get("status", {})
            detail = status.get("reason", "")
            for box in status.get("containerStatuses", []):
                for state in box.get("state", {}).values():
                    detail = state.get("reason", detail) if state else detail
            found.append(TaskStatus(pod["metadata"]["name"], status.get("phase", ""), detail))
        return found

    def logs(self, *, follow: bool) -> int:
        """Print the output of all pods, each line with its pod."""
        words = ["logs", *self._labels(), "--prefix", "--tail=-1", "--max-log-requests=100"]
        words += ["--follow"] if follow else []
        return subprocess.run([self._kubectl, *self._namespace(), *words], check=False).returncode

    def cancel(self) -> None:
        """Delete the documents' objects, claims of notebooks excepted."""
        kept = [
            d for d in self._rendering.documents if d.content["kind"] != "PersistentVolumeClaim"
        ]
        names = [f"{resource(d.content)}/{d.content['metadata']['name']}" for d in kept]
        words = ("delete", *names, "--ignore-not-found", "--wait=false")
        for line in self._call(*words).splitlines():
            say(line)

    def _watched(self) -> list[Any]:
        """Return the objects whose state is the job's, as the server has them."""
        wanted = []
        for document in self._rendering.documents:
            content = document.content
            training = self._rendering.target.name in _ONGOING
            kind = content["kind"]
            servers = {f"{self._job.name}-{role}" for role in self._job.servers}
            if kind in {"Service", "ConfigMap", "PersistentVolumeClaim", "PodGroup"}:
                continue
            if kind == "TrainingRuntime" or (training and kind in _STANDING):
                continue
            if content["metadata"]["name"] in servers:
                continue
            wanted.append(f"{resource(content)}/{content['metadata']['name']}")
        return [json.loads(self._call("get", name, "--output=json")) for name in wanted]

    def _state(self, item: Any) -> str:
        status = item.get("status") or {}
        if item["kind"] in _STANDING:
            ready = status.get("readyReplicas", 0) >= item.get("spec", {}).get("replicas", 1)
            conditions = {c["type"]: c["status"] for c in status.get("conditions", [])}
            is_ready = conditions.get("Ready") == "True" if "Ready" in conditions else ready
            return "Complete" if is_ready else "Pending"
        for condition in status.get("conditions") or []:
            if condition.get("status") == "True" and condition.get("type") in _GOOD | _BAD:
                return str(condition["type"])
        state = status.get("state")
        if isinstance(state, dict):
            return str(state.get("phase", ""))
        return str(status.get("applicationState", {}).get("state", ""))

    def _show(self, task: TaskStatus, output: TextIO) -> None:
        line = f"{task.state} {task.detail}".strip()
        if self._seen.get(task.task) != line:
            self._seen[task.task] = line
            say(f"{task.task}: {line}")
        if task.state != "Pending" and task.task not in self._streams:
            words = ["logs", f"pod/{task.task}", "--follow", "--prefix"]
            command = [self._kubectl, *self._namespace(), *words]
            self._streams[task.task] = subprocess.Popen(command, stdout=output)

    def _labels(self) -> list[str]:
        return [f"--selector=app.kubernetes.io/name={self._job.name}"]

    def _namespace(self) -> list[str]:
        return [f"--namespace={self._job.namespace}"]

    def _call(self, *words: str, text: str | None = None) -> str:
        return call([self._kubectl, *self._namespace(), *words], text)


def resource(content: Any) -> str:
    """Return how kubectl calls an object's kind, with its group: Volcano has Jobs, too."""
    group, slash, version = content["apiVersion"].rpartition("/")
    kind = str(content["kind"]).lower()
    return f"{kind}.{version}.{group}" if slash else kind
