"""Rules for Marathon groups that their types lack."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from gridflow.deploy.description import rules
from gridflow.deploy.description.plain_secrets import holds_secret, is_secret
from gridflow.deploy.lint.cluster import check_cluster

if TYPE_CHECKING:
    from gridflow.deploy.lint.report import LintReport

_SEGMENT: Final = re.compile(
    r"(([a-z0-9]|[a-z0-9][a-z0-9-]*[a-z0-9])\.)*([a-z0-9]|[a-z0-9][a-z0-9-]*[a-z0-9])\Z"
)
_OPERATORS: Final = ("UNIQUE", "CLUSTER", "GROUP_BY", "LIKE", "UNLIKE", "MAX_PER", "IS")
_LONELY: Final = frozenset({"UNIQUE"})


def check_group(report: LintReport, document: dict[str, Any]) -> None:
    """Check a group or a single app."""
    if "apps" not in document and "groups" not in document:
        _app(report, "", document, {}, [])
        return
    report.mapping("", document, "MarathonGroup")
    _id(report, "id", document.get("id"))
    ports: dict[int, str] = {}
    ids: list[str] = []
    for index, item in enumerate(report.listing("apps", document.get("apps"))):
        path = f"apps[{index}]"
        app = report.mapping(path, item, "MarathonApp")
        _app(report, path, app, ports, ids)
        whole = str(document.get("id", "")).rstrip("/") + "/"
        own = str(app.get("id", ""))
        if own.startswith("/") and not own.startswith(whole):
            report.add(f"{path}.id", f"{own!r} isn't in the group {document.get('id')!r}.")
    for index, item in enumerate(report.listing("apps", document.get("apps"))):
        wanted = item.get("dependencies") if isinstance(item, dict) else None
        for place, other in enumerate(report.listing(f"apps[{index}].dependencies", wanted)):
            if str(other) not in ids:
                report.add(f"apps[{index}].dependencies[{place}]", f"there is no app {other!r}.")


def _id(report: LintReport, path: str, value: Any) -> None:
    text = report.text(path, value)
    if text is None:
        report.add(path, "is missing." if value is None else None)
        return
    for segment in text.strip("/").split("/"):
        if segment not in {"..", "."} and not _SEGMENT.match(segment):
            report.add(
                path, f"{segment!r} in {text!r}: ids contain only a-z, 0-9, '-' and slashes."
            )


def _app(
    report: LintReport, path: str, app: dict[str, Any], ports: dict[int, str], ids: list[str]
) -> None:
    def at(key: str) -> str:
        return f"{path}.{key}" if path else key

    _id(report, at("id"), app.get("id"))
    if app.get("id") in ids:
        report.add(at("id"), f"{app.get('id')!r} is defined twice.")
    ids.append(str(app.get("id")))
    if "cmd" in app and "args" in app:
        report.add(at("cmd"), "cmd and args can't be used together.")
    for key, least in (("cpus", 0.001), ("mem", 32)):
        value = app.get(key)
        if isinstance(value, bool) or (
            value is not None and (not isinstance(value, (int, float)) or value < least)
        ):
            report.add(at(key), f"must be a number of at least {least}, got {value!r}.")
    report.integer(at("gpus"), app.get("gpus"), 0)
    report.integer(at("instances"), app.get("instances"), 0)
    container = report.mapping(at("container"), app.get("container"))
    if "network" in container or "network" in report.mapping("", container.get("docker")):
        report.add(
            at("container"), "'network' was removed in Marathon 1.5; use networks: [{mode: host}]."
        )
    docker = report.mapping(at("container.docker"), container.get("docker"))
    if (image := report.text(at("container.docker.image"), docker.get("image"))) is not None:
        report.add(at("container.docker.image"), rules.image(image))
    _ports(report, at, app, ports)
    env = report.mapping(at("env"), app.get("env"))
    table = report.mapping(at("secrets"), app.get("secrets"))
    for name, value in env.items():
        if isinstance(value, dict):
            if value.get("secret") not in table:
                report.add(at(f"env.{name}"), f"there is no secret {value.get('secret')!r}.")
        elif (text := report.text(at(f"env.{name}"), value)) and (
            holds_secret(str(name)) or is_secret(text)
        ):
            reason = f"{name} looks like a secret in plain text ({len(text)} characters); "
            report.add(at(f"env.{name}"), reason + "use {secret: NAME}.")
    check_cluster(report, at("env"), {k: v for k, v in env.items() if isinstance(v, str)})
    for index, item in enumerate(report.listing(at("constraints"), app.get("constraints"))):
        place = at(f"constraints[{index}]")
        words = report.listing(place, item)
        operator = words[1] if len(words) > 1 else None
        report.one_of(place, operator if operator is not None else "", _OPERATORS)
        if operator in _LONELY and len(words) > len(("field", "operator")):
            report.add(place, f"{operator} takes no value.")


def _ports(report: LintReport, at: Any, app: dict[str, Any], ports: dict[int, str]) -> None:
    definitions = report.listing(at("portDefinitions"), app.get("portDefinitions"))
    modes = [n.get("mode") for n in app.get("networks") or () if isinstance(n, dict)]
    if definitions and any(mode != "host" for mode in modes):
        report.add(at("portDefinitions"), "need networks: [{mode: host}].")
    for index, item in enumerate(definitions):
        place = at(f"portDefinitions[{index}]")
        definition = report.mapping(place, item)
        port = report.integer(f"{place}.port", definition.get("port"), 0)
        if not port:
            continue
        report.add(f"{place}.port", rules.port_number(port))
        if port in ports and app.get("requirePorts"):
            reason = f"{port} is also used by {ports[port]}, and both could run on one host."
            report.add(f"{place}.port", reason)
        ports[port] = str(app.get("id"))
