"""A target of another package: a batch service in the style of Azure Batch.

A job is a JSON document for ``POST /jobs``, and its tasks another one for
``POST /jobs/ID/addtaskcollection``. To use it, install a package with this module and with

    [project.entry-points."gridflow.targets"]
    azure-batch = "azure_batch:AzureBatchTarget"

The service's address is in ``BATCH_URL``. Left out: authentication, container registries, and the
names by which nodes of a pool find each other; here, tasks have the names of their pool's DNS zone.
"""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.request
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, ClassVar, TextIO

from gridflow.deploy import Document, JobError, Problem, Target
from gridflow.deploy.drivers.base import AlreadyThere, Patience, TaskStatus, say, verdict
from gridflow.deploy.lint.cluster import check_cluster
from gridflow.deploy.lint.report import LintReport, shapes
from gridflow.deploy.targets.base import merge
from gridflow.deploy.task_start import (
    addresses,
    news,
    program_words,
    start_variables,
    start_words,
    tasks,
)
from gridflow.errors import GridflowError, InvalidArgument, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gridflow.deploy import Job, Rendering
    from gridflow.deploy.drivers.base import Driver

LONGEST_ID = 64
NO_VOLUMES = "a pool mounts file systems, not a task; use a bucket"


class AzureBatchTarget(Target):
    """A job of Azure Batch, with a task for each of gridflow's, on the nodes of one pool."""

    name = "azure-batch"
    title = "Azure Batch: a job with a task for each task, on one pool"
    form = "azure-batch"
    cannot: ClassVar = {
        "namespace": "a Batch account has no namespaces",
        "gang": "a pool starts tasks one by one; tasks wait for their peers up to start_timeout",
        "volumes": NO_VOLUMES,
        "secrets": "tasks get secrets from a key vault, by the identity of their pool",
        "credentials": "tasks reach storage by the identity of their pool",
        "tensorboard": "a job has only tasks that end",
        "tolerations": "nodes have no taints",
        "affinity": "nodes have no labels",
        "priority_class": "Batch has no priority classes",
        "service_account": "tasks have the identity of their pool",
        "run_as_user": "tasks run as the pool's automatic user",
        "shared_memory": NO_VOLUMES,
        "labels": "jobs and tasks have no labels",
        "annotations": "jobs and tasks have no annotations",
        "clean_up": "Batch keeps tasks until the job is deleted",
    }
    shapes = shapes(
        Job="id constraints displayName onAllTasksComplete poolInfo priority usesTaskDependencies",
        Tasks="value",
        Task="""
            commandLine constraints containerSettings dependsOn displayName environmentSettings
            exitConditions id requiredSlots resourceFiles
        """,
    )
    schema = "azure-batch.json"

    def cannot_together(self, job: Job) -> Iterable[Problem]:
        """Tell of a job that doesn't name its pool."""
        if set(job.node_selector) != {"pool"}:
            given = dict(job.node_selector)
            yield Problem("node_selector", f"it must be {{pool: NAME}}, got {given}")

    def render(self, job: Job) -> list[Document]:
        """Return the job, and the collection of its tasks."""

        def host(role: str, index: int) -> str:
            return f"{role}-{index}.{job.name}.batch"

        cluster = addresses(job, host, lambda *_: job.port)
        heard = news(job, host, lambda *_: job.port + 1)
        words = start_words(job, restarts=True, deadline=True)
        collection = []
        for role, index in tasks(job):
            # Batch tells each task its id, which ends with the index.
            env = {"GRIDFLOW_TASK_FROM": "AZ_BATCH_TASK_ID"}
            env |= start_variables(role, None, cluster, heard) | job.env_of(role)
            collection.append(
                {
                    "id": f"{role}-{index}",
                    "commandLine": json.dumps([*words, *program_words(job, role)]),
                    "containerSettings": {"imageName": job.image},
                    "environmentSettings": [{"name": n, "value": v} for n, v in env.items()],
                    "constraints": {"maxTaskRetryCount": 0},  # gridflow launch restarts
                }
            )
        about = {"id": job.name, "poolInfo": {"poolId": job.node_selector["pool"]}}
        return [Document("job.json", about), Document("tasks.json", {"value": collection})]

    def override(self, documents: list[Document], tree: Mapping[str, Any]) -> list[Document]:
        """Merge ``{job: …, tasks: {value: […]}}`` into the documents."""
        known = [document.name.removesuffix(".json") for document in documents]
        problems = [
            Problem(
                f"overrides.{self.name}.{key}",
                f"must be one of {', '.join(known)}.{did_you_mean(key, known)}",
            )
            for key in tree
            if key not in known
        ]
        if problems:
            raise JobError(problems)
        return [
            Document(document.name, merge(document.content, tree.get(key, {})))
            for key, document in zip(known, documents, strict=True)
        ]

    def heading(self, document: Any) -> str:
        """Return which of the two documents it is."""
        return "tasks" if isinstance(document, dict) and "value" in document else "job"

    def check(self, report: LintReport, document: dict[str, Any]) -> None:
        """Check a job, or a collection of tasks."""
        if self.heading(document) == "job":
            report.mapping("", document, "Job")
            pool = report.mapping("poolInfo", document.get("poolInfo"))
            report.add("poolInfo.poolId", None if pool.get("poolId") else "is missing.")
            return
        report.mapping("", document, "Tasks")
        seen = []
        for index, item in enumerate(report.listing("value", document.get("value"))):
            path = f"value[{index}]"
            task = report.mapping(path, item, "Task")
            name = report.text(f"{path}.id", task.get("id")) or ""
            if not name or len(name) > LONGEST_ID:
                report.add(f"{path}.id", f"must have 1 to {LONGEST_ID} characters, got {name!r}.")
            report.add(f"{path}.id", f"{name!r} is defined twice." if name in seen else None)
            seen.append(name)
            place = f"{path}.environmentSettings"
            settings = [
                report.mapping(f"{place}[{at}]", each)
                for at, each in enumerate(report.listing(place, task.get("environmentSettings")))
            ]
            env = {str(each.get("name")): str(each.get("value", "")) for each in settings}
            check_cluster(report, place, env)

    def drive(self, job: Job, rendering: Rendering) -> Driver:
        """Return the driver with the service's REST API."""
        return AzureBatchDriver(job, rendering)


class NotFound(GridflowError):
    """The service answered 404."""


class AzureBatchDriver:
    """Starts, follows and removes a rendered job."""

    def __init__(self, job: Job, rendering: Rendering, poll: float = 1.0) -> None:
        self._url = os.environ.get("BATCH_URL", "").rstrip("/")
        if not self._url.startswith(("http://", "https://")):
            raise InvalidArgument(f"BATCH_URL must be Batch's address; got {self._url!r}.")
        self._job, self._poll = job, poll
        self._about, self._tasks = (document.content for document in rendering.documents)

    def start(self, *, replace: bool = False, follows: bool = True) -> None:
        """Create the job and its tasks."""
        del follows
        if self.is_there():
            if not replace:
                raise AlreadyThere(self._job.name, f"the job {self._job.name} already exists")
            self.cancel()
        self._call("POST", "/jobs", self._about)
        self._call("POST", f"/jobs/{self._job.name}/addtaskcollection", self._tasks)
        say(f"started {self._job.tasks} tasks")

    def follow(self, output: TextIO) -> int:
        """Wait until all tasks have ended, and print their output."""
        patience = Patience(self._job.name, self._job.start_timeout, self._job.deadline)
        while True:
            found = self._all()
            ended = [task for task in found if task["state"] == "completed"]
            if len(ended) == len(found):
                break
            runs = [task for task in found if task["state"] == "running"]
            code = patience.verdict(
                has_begun=bool(runs or ended), is_running=bool(runs), is_queued=False, reasons=()
            )
            if code is not None:
                return code
            time.sleep(self._poll)
        self._print(output)
        codes = {task["id"]: task["executionInfo"]["exitCode"] for task in found}
        return verdict({name: code for name, code in codes.items() if code})

    def status(self) -> list[TaskStatus]:
        """Return the tasks."""
        return [
            TaskStatus(
                task["id"],
                task["state"],
                f"exit code {code}" if (code := task["executionInfo"].get("exitCode")) else "",
            )
            for task in (self._all() if self.is_there() else ())
        ]

    def is_there(self) -> bool:
        """Return whether the job exists."""
        try:
            self._call("GET", f"/jobs/{self._job.name}")
        except NotFound:
            return False
        return True

    def logs(self, *, follow: bool) -> int:
        """Print the output of the tasks."""
        del follow
        self._print(None)
        return 0

    def cancel(self) -> None:
        """Delete the job with its tasks."""
        self._call("DELETE", f"/jobs/{self._job.name}")
        say(f"removed {self._job.name}")

    def _print(self, output: TextIO | None) -> None:
        for task in self._all():
            text = self._call("GET", f"/jobs/{self._job.name}/tasks/{task['id']}/files/stdout.txt")
            print(text["text"], end="", file=output)

    def _all(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._call("GET", f"/jobs/{self._job.name}/tasks")["value"]
        return found

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        request = urllib.request.Request(
            self._url + path,
            json.dumps(body).encode() if body is not None else None,
            {"Content-Type": "application/json"},
            method=method,
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return json.loads(answer.read() or b"{}")
        except urllib.error.HTTPError as error:
            said = error.read().decode(errors="replace")
            kind = NotFound if error.code == HTTPStatus.NOT_FOUND else GridflowError
            raise kind(f"Batch answered {error.code} to {method} {path}: {said}") from error
