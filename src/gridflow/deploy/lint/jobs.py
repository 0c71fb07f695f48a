"""Rules for the spec of a ``batch/v1`` Job, which is also part of other kinds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gridflow.deploy.lint.cluster import check_pod_host
from gridflow.deploy.lint.pods import check_template
from gridflow.deploy.lint.report import below

if TYPE_CHECKING:
    from gridflow.deploy.lint.report import LintReport

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
