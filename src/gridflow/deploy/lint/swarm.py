"""Rules for stack files of ``docker stack deploy`` that their schema lacks."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from gridflow.deploy.lint.compose import check_services
from gridflow.deploy.lint.fields import FIELDS

if TYPE_CHECKING:
    from gridflow.deploy.lint.report import LintReport

_VERSION: Final = re.compile(r"3(\.\d+)?\Z")
_JOBS: Final = ("replicated-job", "global-job")
_MODES: Final = ("replicated", "global", *_JOBS)
#: The names allowed in placeholders (moby/swarmkit, template/context.go).
_PLACEHOLDER: Final = re.compile(r"\{\{-?\s*(\.[A-Za-z.]+)")
_KNOWN: Final = re.compile(
    r"\.(Service\.(ID|Name|Labels(\..+)?)|Task\.(ID|Name|Slot)"
    r"|Node\.(ID|Hostname|Platform\.(OS|Architecture)))\Z"
)
#: moby/swarmkit, manager/constraint/constraint.go.
_CONSTRAINT: Final = re.compile(
    r"\s*[a-z_][a-z0-9\-_.]+\s*(==|!=)\s*[a-z0-9:\-_\s.*()?+\[\]\\^$|/]+\Z", re.IGNORECASE
)
#: Names of secrets and configs (moby/swarmkit, manager/controlapi/secret.go).
_NAME: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9_.-]*[a-zA-Z0-9])?\Z")
_MOST_OF_NAME: Final = 64


def check_stack(report: LintReport, document: dict[str, Any]) -> None:
    """Check a stack file: ignored fields, modes, restarts, placement, placeholders, names."""
    report.mapping("", document, "Stack")
    version = document.get("version")
    if version is not None and not _VERSION.match(str(version)):
        report.add("version", f"must be 3 or 3.N for 'docker stack deploy', got {version!r}.")
    for path, service in check_services(report, document, "StackService"):
        for key in sorted(FIELDS["IgnoredInStacks"] & set(service)):
            report.add(f"{path}.{key}", "is ignored by 'docker stack deploy'.")
        _deploy(report, path, service)
        texts = {"hostname": service.get("hostname")}
        environment = service.get("environment")
        texts |= {
            f"environment.{key}": value
            for key, value in (environment if isinstance(environment, dict) else {}).items()
        }
        for place, text in texts.items():
            for name in _PLACEHOLDER.findall(text if isinstance(text, str) else ""):
                if not _KNOWN.match(name):
                    report.add(f"{path}.{place}", f"unknown placeholder {{{{{name}}}}}.")
    for group in ("secrets", "configs"):
        for key, value in report.mapping(group, document.get(group)).items():
            _named(report, f"{group}.{key}", key, report.mapping(f"{group}.{key}", value))


def _deploy(report: LintReport, path: str, service: dict[str, Any]) -> None:
    place = f"{path}.deploy"
    deploy = report.mapping(place, service.get("deploy"))
    mode = deploy.get("mode")
    report.one_of(f"{place}.mode", mode, _MODES)
    report.integer(f"{place}.replicas", deploy.get("replicas"), 0)
    endpoint = deploy.get("endpoint_mode")
    report.one_of(f"{place}.endpoint_mode", endpoint, ("vip", "dnsrr"))
    if endpoint == "dnsrr" and any(_is_ingress(port) for port in service.get("ports") or ()):
        report.add(
            f"{place}.endpoint_mode", "with dnsrr, ports can only be published in host mode."
        )
    policy = report.mapping(f"{place}.restart_policy", deploy.get("restart_policy"))
    conditions = ("none", "on-failure") if mode in _JOBS else ("none", "on-failure", "any")
    report.one_of(f"{place}.restart_policy.condition", policy.get("condition"), conditions)
    if mode in _JOBS and ".Task.Slot" in str(service.get("hostname", "")):
        reason = f"slots of a {mode} count from 0, and slot 0 is replaced by the node's id."
        report.add(f"{path}.hostname", reason)
    placement = report.mapping(f"{place}.placement", deploy.get("placement"))
    at = f"{place}.placement.constraints"
    for index, text in enumerate(report.listing(at, placement.get("constraints"))):
        if not _CONSTRAINT.match(str(text)):
            reason = f"invalid constraint {text!r}: use NAME==VALUE or NAME!=VALUE, without '/'."
            report.add(f"{at}[{index}]", reason)


def _is_ingress(port: Any) -> bool:
    return not isinstance(port, dict) or port.get("mode", "ingress") == "ingress"


def _named(report: LintReport, path: str, key: Any, value: dict[str, Any]) -> None:
    if not any(value.get(each) for each in ("file", "external", "driver")):
        report.add(path, "has neither file nor external.")
    name = str(value.get("name", key))
    if len(name) > _MOST_OF_NAME or not _NAME.match(name):
        report.add(
            path,
            f"invalid name of a secret or config: {name!r}. Use letters, digits, '-', '_' and '.', "
            f"at most {_MOST_OF_NAME} characters.",
        )
