"""Rules for Compose files that the schema lacks; most also apply to services in stack files."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from gridflow.deploy.description import rules
from gridflow.deploy.description.plain_secrets import holds_secret, is_secret
from gridflow.deploy.lint.cluster import check_cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gridflow.deploy.lint.report import LintReport

_PROJECT: Final = re.compile(r"[a-z0-9][a-z0-9_-]*\Z")
_LONE_DOLLAR: Final = re.compile(r"(?<!\$)(?:\$\$)*\$(?![\${A-Za-z_])")


def check_compose(report: LintReport, document: dict[str, Any]) -> None:
    """Check a Compose file: references, ports, restarts, the cluster spec."""
    report.mapping("", document, "Compose")
    if "version" in document:
        report.add("version", "is obsolete; leave it out.")
    name = document.get("name")
    if name is not None and not _PROJECT.match(str(name)):
        report.add("name", f"{name!r} is not a project name: a-z, 0-9, '-', '_'.")
    for path, service in check_services(report, document, "ComposeService"):
        allowed = ("no", "always", "on-failure", "unless-stopped")
        restart = service.get("restart")
        plain = str(restart).partition(":")[0] if restart is not None else None
        report.one_of(f"{path}.restart", plain, allowed)


def check_services(
    report: LintReport, document: dict[str, Any], shape: str
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Check the rules for all services in Compose and stack files; yield each with its path."""
    services = report.mapping("services", document.get("services"))
    if not services:
        report.add("services", "is missing or empty.")
    for key, value in services.items():
        path = f"services.{key}"
        service = report.mapping(path, value, shape)
        report.add(path, rules.dns_label(str(key)))
        if "image" not in service and "build" not in service:
            report.add(path, "has neither image nor build.")
        if (image := report.text(f"{path}.image", service.get("image"))) is not None:
            report.add(f"{path}.image", rules.image(image))
        env = report.mapping(f"{path}.environment", service.get("environment"))
        _env(report, f"{path}.environment", env)
        _references(report, path, service, document)
        for other in _words(service.get("depends_on")):
            if other not in services:
                report.add(f"{path}.depends_on", f"there is no service {other!r}.")
        for index, port in enumerate(report.listing(f"{path}.ports", service.get("ports"))):
            numbers = str(port).partition("/")[0].split(":")[-2:] if isinstance(port, str) else []
            for number in numbers:
                if number.isdecimal():  # of many digits the first ones tell enough
                    report.add(f"{path}.ports[{index}]", rules.port_number(int(number[:9])))
        yield path, service


def _words(value: Any) -> list[str]:
    return [str(item) for item in value] if isinstance(value, (list, dict)) else []


def _env(report: LintReport, path: str, env: dict[str, Any]) -> None:
    for name, value in env.items():
        report.add(f"{path}.{name}", rules.env_name(str(name)))
        text = value if isinstance(value, str) else ""
        is_plain = text and not text.startswith("${")
        if is_plain and (holds_secret(str(name)) or is_secret(text)):
            reason = (
                f"{name} looks like a secret in plain text; take it from the shell: ${{{name}}}."
            )
            report.add(f"{path}.{name}", reason)
        if _LONE_DOLLAR.search(text):
            report.add(f"{path}.{name}", "has a single '$'; Compose needs '$$' for a '$'.")
    plain = {key: str(value).replace("$$", "$") for key, value in env.items() if value is not None}
    check_cluster(report, path, plain)


def _references(
    report: LintReport, path: str, service: dict[str, Any], document: dict[str, Any]
) -> None:
    for group in ("secrets", "configs"):
        known = report.mapping(group, document.get(group))
        for index, item in enumerate(report.listing(f"{path}.{group}", service.get(group))):
            source = item.get("source") if isinstance(item, dict) else item
            if source not in known:
                place = f"{path}.{group}[{index}]"
                report.add(place, f"there is no {source!r} under {group}.")
    known = report.mapping("volumes", document.get("volumes"))
    targets: list[str] = []
    for index, item in enumerate(report.listing(f"{path}.volumes", service.get("volumes"))):
        if not isinstance(item, dict):
            continue
        place = f"{path}.volumes[{index}]"
        if item.get("type") == "volume" and "source" in item and item["source"] not in known:
            report.add(f"{place}.source", f"there is no {item['source']!r} under volumes.")
        if item.get("target") in targets:
            report.add(f"{place}.target", f"{item['target']!r} is mounted twice.")
        targets.append(str(item.get("target")))
