"""What all targets with Kubernetes objects have in common."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar

from gridflow.deploy.description.problems import Problem, refuse
from gridflow.deploy.lint.fields import FIELDS
from gridflow.deploy.lint.kinds import KINDS
from gridflow.deploy.lint.report import Finding, LintReport
from gridflow.deploy.pods import BEGAN
from gridflow.deploy.schemas import object_validator, violations
from gridflow.deploy.targets.base import Document, Target, merge
from gridflow.errors import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from gridflow.deploy.description.description import Job
    from gridflow.deploy.drivers.base import Driver
    from gridflow.deploy.targets.base import Rendering


class KubernetesTarget(Target):
    """A target that renders Kubernetes objects.

    `restarts_pods`: Whether it restarts pods without telling them when the job first started.
    """

    form = "kubernetes"
    shapes = FIELDS
    restarts_pods: ClassVar[bool] = False

    def override(self, documents: list[Document], tree: Mapping[str, Any]) -> list[Document]:
        """Merge trees into the objects, which are selected by ``Kind`` or ``Kind/name``."""
        path = f"overrides.{self.name}"
        selectors: dict[str, list[int]] = {}
        for index, document in enumerate(documents):
            for key in (document.content["kind"], self.heading(document.content)):
                selectors.setdefault(key, []).append(index)
        changed = list(documents)
        problems = []
        for key, change in tree.items():
            if key not in selectors:
                known = ", ".join(selectors)
                reason = f"the target {self.name} doesn't render {key!r}; it renders {known}."
                problems.append(Problem(f"{path}.{key}", reason + did_you_mean(key, selectors)))
            elif not isinstance(change, dict):
                reason = f"must be a tree of fields, got {change!r}; null removes only fields."
                problems.append(Problem(f"{path}.{key}", reason))
                continue
            for index in selectors.get(key, ()):
                changed[index] = Document(
                    changed[index].name, merge(changed[index].content, change)
                )
        refuse(problems)
        return changed

    def heading(self, document: Any) -> str:
        """Return an object's ``Kind/name``, or an empty string for other documents."""
        if not isinstance(document, dict) or "kind" not in document:
            return ""
        meta = document.get("metadata")
        name = meta.get("name", "") if isinstance(meta, dict) else ""
        return f"{document['kind']}/{name}"

    def check(self, report: LintReport, document: dict[str, Any]) -> None:
        """Check an object by the rules of its kind."""
        kind, version = document.get("kind"), document.get("apiVersion")
        if not isinstance(kind, str) or not isinstance(version, str):
            report.add("", "an object needs the strings apiVersion and kind.")
            return
        group = version.rpartition("/")[0]
        check = KINDS.get((kind, group))
        if check is None:
            known = sorted({name for name, _ in KINDS})
            groups = sorted(g or "v1" for name, g in KINDS if name == kind)
            hint = f" A {kind} has the group {' or '.join(groups)}." if groups else ""
            hint = hint or did_you_mean(kind, known)
            report.add(
                "kind", f"unknown kind {version} {kind}; supported: {', '.join(known)}.{hint}"
            )
            return
        check(report, document)

    def findings(self, documents: list[Any]) -> list[Finding]:
        """Return what is wrong with the objects, and between them."""
        report = LintReport(self.shapes, findings=super().findings(documents))
        self._check_between(report, [d if isinstance(d, dict) else {} for d in documents])
        return report.findings

    def _check_between(self, report: LintReport, documents: list[dict[str, Any]]) -> None:
        """Check relations between documents: selectors, runtimes, duplicate names."""
        seen: list[tuple[str, str, str]] = []
        pods = [labels for document in documents for labels in _pod_labels(document)]
        runtimes = [
            self.heading(d) for d in documents if str(d.get("kind", "")).endswith("TrainingRuntime")
        ]
        for report.document, document in enumerate(documents):
            mark = (str(document.get("apiVersion")), self.heading(document), _namespace(document))
            if mark in seen:
                report.add("metadata.name", f"{mark[1]} is defined twice.")
            seen.append(mark)
            spec = document.get("spec") if isinstance(document.get("spec"), dict) else {}
            assert isinstance(spec, dict)
            selector: Any = spec.get("selector")
            selects = (
                document.get("kind") == "Service" and isinstance(selector, dict) and bool(pods)
            )
            if selects and not any(selector.items() <= labels.items() for labels in pods):
                report.add("spec.selector", f"selects no pods here: {selector}.")
            if document.get("kind") == "TrainJob" and runtimes:
                reference = spec.get("runtimeRef")
                reference = reference if isinstance(reference, dict) else {}
                wanted = (
                    f"{reference.get('kind', 'ClusterTrainingRuntime')}/{reference.get('name')}"
                )
                if wanted not in runtimes:
                    reason = f"there is no {wanted} here, only {', '.join(runtimes)}."
                    report.add("spec.runtimeRef.name", reason)

    def schema_problems(
        self, document: dict[str, Any], folder: Path | None
    ) -> Iterable[tuple[str, str]] | None:
        """Return what violates the schema of an object's kind: the folder's, or Kubernetes' own."""
        validator = object_validator(document, folder)
        return violations(validator, document) if validator else None

    def drive(self, job: Job, rendering: Rendering) -> Driver:
        """Return the driver with ``kubectl``."""
        from gridflow.deploy.drivers.kubectl import KubectlDriver

        return KubectlDriver(job, rendering)

    def begun(self, job: Job, now: float) -> Job:
        """Return the job with its start recorded, from which the deadline of restarted pods counts.

        A job that waits in a queue hasn't started yet, so its deadline counts from each start.
        """
        waits = job.gang is not None and job.gang.queue is not None
        if not self.restarts_pods or job.deadline is None or waits:
            return job
        return dataclasses.replace(job, annotations={BEGAN: str(int(now)), **job.annotations})


def _namespace(document: dict[str, Any]) -> str:
    meta = document.get("metadata")
    return str(meta.get("namespace", "")) if isinstance(meta, dict) else ""


def _pod_labels(tree: Any) -> list[dict[str, Any]]:
    """Return the labels of every pod template inside a document."""
    found: list[dict[str, Any]] = []
    if isinstance(tree, dict):
        spec, meta = tree.get("spec"), tree.get("metadata")
        if isinstance(spec, dict) and "containers" in spec:
            labels = meta.get("labels") if isinstance(meta, dict) else None
            found.append(labels if isinstance(labels, dict) else {})
        for child in tree.values():
            found += _pod_labels(child)
    elif isinstance(tree, list):
        for child in tree:
            found += _pod_labels(child)
    return found
