"""Metadata, pods and containers, wherever they are embedded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gridflow.deploy.description import rules
from gridflow.deploy.description.plain_secrets import holds_secret, is_secret
from gridflow.deploy.lint.cluster import check_cluster
from gridflow.deploy.lint.report import below
from gridflow.errors import InvalidArgument

if TYPE_CHECKING:
    from gridflow.deploy.lint.report import LintReport

_PULL: Final = ("Always", "IfNotPresent", "Never")


def check_metadata(report: LintReport, document: dict[str, Any], *, label: bool) -> None:
    """Check an object's metadata; use ``label`` if its name becomes part of host names."""
    meta = report.mapping("metadata", document.get("metadata"), "ObjectMeta")
    name = report.text("metadata.name", meta.get("name"))
    if name is None:
        report.add("metadata.name", "is missing." if "name" not in meta else None)
    elif label:
        report.add("metadata.name", rules.dns_label(name, letter_first=True))
    else:
        report.add("metadata.name", rules.dns_subdomain(name))
    if (namespace := report.text("metadata.namespace", meta.get("namespace"))) is not None:
        report.add("metadata.namespace", rules.dns_label(namespace))
    check_labels(report, "metadata", meta)


def check_labels(report: LintReport, path: str, meta: dict[str, Any]) -> None:
    """Check the labels and annotations of metadata."""
    for kind in ("labels", "annotations"):
        place = below(path, kind)
        for key, value in report.mapping(place, meta.get(kind)).items():
            text = report.text(f"{place}.{key}", value)
            report.add(f"{place}.{key}", rules.label_key(str(key)))
            if kind == "labels" and text is not None:
                report.add(f"{place}.{key}", rules.label_value(text))


def check_template(
    report: LintReport,
    path: str,
    value: Any,
    *,
    restart: tuple[str, ...] | None,
    container: str | None = None,
) -> dict[str, Any]:
    """Check a pod template and return its pod's spec.

    `value`: The template.
    `restart` (tuple of str or None): The restart policies that the owner allows, default first; an
        owner that doesn't allow ``Always`` needs an explicit value. None if the owner sets the
        policy itself.
    `container`: The name that one container must have.
    """
    template = report.mapping(path, value, "PodTemplateSpec")
    meta = report.mapping(below(path, "metadata"), template.get("metadata"), "ObjectMeta")
    check_labels(report, below(path, "metadata"), meta)
    place = below(path, "spec")
    spec = check_pod(report, place, template.get("spec"))
    policy = spec.get("restartPolicy")
    if restart is not None:
        report.one_of(below(place, "restartPolicy"), policy, restart)
        if policy is None and "Always" not in restart:
            reason = (
                f"is missing; a pod's default, Always, isn't allowed here: {', '.join(restart)}."
            )
            report.add(below(place, "restartPolicy"), reason)
    boxes = [b for b in report.listing("", spec.get("containers")) if isinstance(b, dict)]
    if container and boxes and container not in [box.get("name") for box in boxes]:
        report.add(below(place, "containers"), f"one container must have the name {container!r}.")
    return spec


def check_pod(report: LintReport, path: str, value: Any) -> dict[str, Any]:
    """Check a pod's spec and return it."""
    spec = report.mapping(path, value, "PodSpec")
    volumes = report.listing(below(path, "volumes"), spec.get("volumes"))
    names = []
    for index, item in enumerate(volumes):
        place = f"{path}.volumes[{index}]"
        volume = report.mapping(place, item, "Volume")
        name = report.text(f"{place}.name", volume.get("name")) or ""
        report.add(f"{place}.name", rules.dns_label(name))
        if name in names:
            report.add(f"{place}.name", f"the volume {name!r} is defined twice.")
        names.append(name)
        sources = [key for key in volume if key != "name"]
        if len(sources) != 1:
            report.add(
                place, f"a volume needs exactly one source, got {', '.join(sources) or 'none'}."
            )
        for key in ("emptyDir", "ephemeral"):
            source = report.mapping(f"{place}.{key}", volume.get(key))
            if "sizeLimit" in source:
                _quantity(report, f"{place}.{key}.sizeLimit", source["sizeLimit"])
    boxes = report.listing(below(path, "containers"), spec.get("containers"))
    if not boxes:
        report.add(below(path, "containers"), "a pod needs at least one container.")
    seen: list[str] = []
    for group in ("initContainers", "containers"):
        for index, item in enumerate(report.listing(below(path, group), spec.get(group))):
            check_container(report, f"{path}.{group}[{index}]", item, names, seen)
    if (host := spec.get("subdomain")) is not None:
        report.add(below(path, "subdomain"), rules.dns_label(str(host)))
    for key, text in report.mapping(below(path, "nodeSelector"), spec.get("nodeSelector")).items():
        report.add(f"{path}.nodeSelector.{key}", rules.label_key(str(key)))
        report.add(f"{path}.nodeSelector.{key}", rules.label_value(str(text)))
    for index, item in enumerate(report.listing(f"{path}.tolerations", spec.get("tolerations"))):
        place = f"{path}.tolerations[{index}]"
        toleration = report.mapping(place, item, "Toleration")
        for key, rule in (("key", rules.label_key), ("value", rules.label_value)):
            if text := report.text(f"{place}.{key}", toleration.get(key)):
                report.add(f"{place}.{key}", rule(text))
    return spec


def check_container(
    report: LintReport, path: str, value: Any, volumes: list[str], seen: list[str]
) -> None:
    """Check a container of a pod."""
    box = report.mapping(path, value, "Container")
    name = report.text(f"{path}.name", box.get("name")) or ""
    report.add(f"{path}.name", rules.dns_label(name))
    if name in seen:
        report.add(f"{path}.name", f"the container {name!r} is defined twice.")
    seen.append(name)
    image = report.text(f"{path}.image", box.get("image"))
    report.add(f"{path}.image", rules.image(image) if image else "is missing.")
    report.one_of(f"{path}.imagePullPolicy", box.get("imagePullPolicy"), _PULL)
    for group in ("command", "args"):
        for index, word in enumerate(report.listing(f"{path}.{group}", box.get(group))):
            report.text(f"{path}.{group}[{index}]", word)
    check_env(report, f"{path}.env", box.get("env"))
    _ports(report, path, box)
    check_resources(report, f"{path}.resources", box.get("resources"))
    targets: list[str] = []
    for index, item in enumerate(report.listing(f"{path}.volumeMounts", box.get("volumeMounts"))):
        place = f"{path}.volumeMounts[{index}]"
        mount = report.mapping(place, item, "VolumeMount")
        if mount.get("name") not in volumes:
            known = ", ".join(volumes) or "none"
            reason = f"there is no volume {mount.get('name')!r}; the pod has {known}."
            report.add(f"{place}.name", reason)
        target = report.text(f"{place}.mountPath", mount.get("mountPath")) or ""
        report.add(f"{place}.mountPath", rules.absolute_path(target))
        if target in targets:
            report.add(f"{place}.mountPath", f"{target!r} is mounted twice.")
        targets.append(target)


def check_env(report: LintReport, path: str, value: Any) -> None:
    """Check a list of variables: names, strings, secrets in plain text, the cluster spec."""
    env: dict[str, str] = {}
    for index, item in enumerate(report.listing(path, value)):
        place = f"{path}[{index}]"
        variable = report.mapping(place, item, "EnvVar")
        name = report.text(f"{place}.name", variable.get("name")) or ""
        report.add(f"{place}.name", rules.env_name(name))
        if name in env:
            report.add(f"{place}.name", f"the variable {name} is defined twice.")
        if "value" in variable and "valueFrom" in variable:
            report.add(place, "has both value and valueFrom; only one is allowed.")
        text = report.text(f"{place}.value", variable.get("value"))
        report.mapping(f"{place}.valueFrom", variable.get("valueFrom"), "EnvVarSource")
        if text and (holds_secret(name) or is_secret(text)):
            reason = f"{name} looks like a secret in plain text; use valueFrom.secretKeyRef."
            report.add(f"{place}.value", reason)
        env[name] = text or ""
    check_cluster(report, path, env)


def _ports(report: LintReport, path: str, box: dict[str, Any]) -> None:
    names: list[str] = []
    for index, item in enumerate(report.listing(f"{path}.ports", box.get("ports"))):
        place = f"{path}.ports[{index}]"
        port = report.mapping(place, item, "ContainerPort")
        number = report.integer(f"{place}.containerPort", port.get("containerPort"), 1)
        report.add(f"{place}.containerPort", rules.port_number(number) if number else None)
        if (name := report.text(f"{place}.name", port.get("name"))) is not None:
            report.add(f"{place}.name", rules.port_name(name))
            if name in names:
                report.add(f"{place}.name", f"the port {name!r} is defined twice.")
            names.append(name)


def check_resources(report: LintReport, path: str, value: Any) -> None:
    """Check requests against limits, and that numbers of devices are whole."""
    wanted = report.mapping(path, value, "ResourceRequirements")
    amounts: dict[str, dict[str, Any]] = {}
    for side in ("requests", "limits"):
        amounts[side] = {}
        for key, text in report.mapping(f"{path}.{side}", wanted.get(side)).items():
            place = f"{path}.{side}.{key}"
            amount = _quantity(report, place, text)
            if amount is None:
                continue
            amounts[side][key] = amount
            if "/" in key and amount != int(amount):
                report.add(place, f"devices are counted in whole numbers, got {text!r}.")
    for key, amount in amounts["requests"].items():
        limit = amounts["limits"].get(key)
        place = f"{path}.requests.{key}"
        if limit is not None and amount > limit:
            report.add(place, f"{amount} is more than the limit, {limit}.")
        if "/" in key and limit != amount:
            report.add(place, "for devices, requests and limits must be equal.")


def _quantity(report: LintReport, path: str, value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        report.add(path, f"must be a quantity, got {value!r}.")
        return None
    try:
        return rules.quantity(str(value))
    except InvalidArgument as error:
        report.add(path, str(error))
        return None
