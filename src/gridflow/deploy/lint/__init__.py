"""Checks that schemas lack: names, quantities, ports, restart policies, selectors, secrets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gridflow.deploy.description.problems import Problem
from gridflow.deploy.lint.kinds import KINDS
from gridflow.deploy.lint.report import Finding, LintReport
from gridflow.deploy.targets.compose import check_compose
from gridflow.deploy.targets.marathon import check_group
from gridflow.deploy.targets.swarm import check_stack
from gridflow.errors import did_you_mean

if TYPE_CHECKING:
    from gridflow.deploy.targets.base import Document, Form

__all__ = ["Finding", "findings", "lint", "title"]


def lint(form: Form, documents: list[Document]) -> list[Problem]:
    """Return the problems in documents, each with its document, object and path."""
    trees = [d for d in documents if not isinstance(d.content, str)]
    return [
        Problem(
            f"{title(trees[f.document].content)} {f.path}".strip(),
            f.reason,
            trees[f.document].name,
        )
        for f in findings(form, [d.content for d in trees])
    ]


def title(document: Any) -> str:
    """Return an object's ``Kind/name``, or an empty string for other documents."""
    if not isinstance(document, dict) or "kind" not in document:
        return ""
    meta = document.get("metadata")
    name = meta.get("name", "") if isinstance(meta, dict) else ""
    return f"{document['kind']}/{name}"


def findings(form: Form, documents: list[Any]) -> list[Finding]:
    """Return the problems in documents, with the documents' indices."""
    report = LintReport()
    if form == "script":
        return []
    for index, document in enumerate(documents):
        report.document = index
        if not isinstance(document, dict):
            report.add("", f"must be a mapping, got {document!r}.")
        elif form == "compose":
            check_compose(report, document)
        elif form == "swarm":
            check_stack(report, document)
        elif form == "marathon":
            check_group(report, document)
        else:
            _object(report, document)
    if form == "kubernetes":
        _between(report, [d if isinstance(d, dict) else {} for d in documents])
    return report.findings


def _object(report: LintReport, document: dict[str, Any]) -> None:
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
        report.add("kind", f"unknown kind {version} {kind}; supported: {', '.join(known)}.{hint}")
        return
    check(report, document)


def _between(report: LintReport, documents: list[dict[str, Any]]) -> None:
    """Check relations between documents: selectors, runtimes, duplicate names."""
    seen: list[tuple[str, str, str]] = []
    pods = [labels for document in documents for labels in _pod_labels(document)]
    runtimes = [title(d) for d in documents if str(d.get("kind", "")).endswith("TrainingRuntime")]
    for index, document in enumerate(documents):
        report.document = index
        mark = (str(document.get("apiVersion")), title(document), _namespace(document))
        if mark in seen:
            report.add("metadata.name", f"{mark[1]} is defined twice.")
        seen.append(mark)
        spec = document.get("spec") if isinstance(document.get("spec"), dict) else {}
        assert isinstance(spec, dict)
        selector: Any = spec.get("selector")
        selects = document.get("kind") == "Service" and isinstance(selector, dict) and bool(pods)
        if selects and not any(selector.items() <= labels.items() for labels in pods):
            report.add("spec.selector", f"selects no pods here: {selector}.")
        if document.get("kind") == "TrainJob" and runtimes:
            reference = spec.get("runtimeRef")
            reference = reference if isinstance(reference, dict) else {}
            wanted = f"{reference.get('kind', 'ClusterTrainingRuntime')}/{reference.get('name')}"
            if wanted not in runtimes:
                reason = f"there is no {wanted} here, only {', '.join(runtimes)}."
                report.add("spec.runtimeRef.name", reason)


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
