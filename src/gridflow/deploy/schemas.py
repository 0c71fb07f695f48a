"""Schemas for documents: Kubernetes' own from ``kubernetes-validate``, others from a folder.

The folder contains ``GROUP_VERSION_KIND.json`` with a CRD's ``openAPIV3Schema``, and
``compose-spec.json``, ``docker-stack.json`` (docker/cli, config_schema_v3.13.json) and
``marathon_v2_group.json`` for the targets without Kubernetes. For stacks without a schema in the
folder, the ``docker`` command is used, which includes one.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gridflow.deploy.emit import to_yaml

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gridflow.deploy.targets.base import Form

#: The variable that names the folder if no option does.
VARIABLE: Final = "GRIDFLOW_SCHEMAS"
_FILES: Final = {
    "compose": "compose-spec.json",
    "swarm": "docker-stack.json",
    "marathon": "marathon_v2_group.json",
}


def folder(given: str | Path | None = None) -> Path | None:
    """Return the folder of schemas: the given one, or the variable's."""
    place = given or os.environ.get(VARIABLE)
    return Path(place) if place else None


def schema_problems(
    form: Form, document: dict[str, Any], place: Path | None
) -> Iterator[tuple[str, str]] | None:
    """Return the path and reason of each schema violation in a document.

    Returns None if no schema is available.
    """
    validator = _validator(form, document, place)
    if validator is None:
        return _problem_of_stack(document) if form == "swarm" and _has_stack_config() else None
    return (
        (_path(error.absolute_path), _reason(error)) for error in validator.iter_errors(document)
    )


def _validator(form: Form, document: dict[str, Any], place: Path | None) -> Any:
    if form in _FILES:
        file = place / _FILES[form] if place else None
        return _from_file(file, custom=False) if file and file.exists() else None
    kind, version = str(document.get("kind")), str(document.get("apiVersion"))
    group, _, short = version.rpartition("/")
    if place:
        file = place / f"{group}_{short}_{kind}.json"
        if file.exists():
            return _from_file(file, custom=True)
    return _core(kind, group, short)


@cache
def _has_stack_config() -> bool:
    """Return whether a ``docker`` command that checks stacks is installed; it needs no engine."""
    return shutil.which("docker") is not None and "stack config" in _docker("--help").stdout


def _problem_of_stack(document: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the problem that Docker finds in a stack; it reports one at a time."""
    done = _docker("--compose-file=-", to_yaml([document]))
    if done.returncode:
        path, _, reason = done.stderr.strip().partition(" ")
        if path.partition(".")[0] in document:
            yield re.sub(r"\.(\d+)(?=\.|$)", r"[\1]", path), reason
        else:
            yield "", done.stderr.strip()


def _docker(option: str, text: str = "") -> subprocess.CompletedProcess[str]:
    words = [shutil.which("docker") or "docker", "stack", "config", option]
    return subprocess.run(words, input=text, capture_output=True, text=True, check=False)


@cache
def _from_file(file: Path, *, custom: bool) -> Any:
    from jsonschema.validators import Draft7Validator

    schema = json.loads(file.read_text(encoding="utf-8"))
    return Draft7Validator(_strict(schema, top=True) if custom else schema)


@cache
def _core(kind: str, group: str, version: str) -> Any:
    """Return the validator for one of Kubernetes' own kinds, None for all others."""
    # File names contain only a group's first word, and scheduling.volcano.sh also has PodGroups.
    if "." in group and not group.endswith(".k8s.io"):
        return None
    try:
        root = resources.files("kubernetes_validate") / "kubernetes-json-schema"
        from jsonschema.validators import Draft202012Validator
    except ImportError:
        return None
    from referencing import Registry, Resource

    newest = max(
        (entry.name for entry in root.iterdir() if entry.name.endswith("-local-strict")),
        key=lambda name: [int(part) for part in name.lstrip("v").split("-")[0].split(".")],
    )
    prefix = f"{group.partition('.')[0]}-" if group else ""
    file = root / newest / f"{kind.lower()}-{prefix}{version}.json"
    if not file.is_file():
        return None
    schema = json.loads(file.read_text(encoding="utf-8"))
    shared = _definitions(newest)
    registry: Any = Registry()
    registry = Resource.from_contents(schema) @ registry
    registry = Resource.from_contents(shared) @ registry
    return Draft202012Validator(schema, registry=registry)


@cache
def _definitions(release: str) -> Any:
    root = resources.files("kubernetes_validate") / "kubernetes-json-schema"
    return json.loads((root / release / "_definitions.json").read_text(encoding="utf-8"))


def _strict(schema: Any, *, top: bool = False) -> Any:
    """Turn a Kubernetes schema into JSON Schema that rejects unknown fields, as its server does."""
    if isinstance(schema, list):
        return [_strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: _strict(value) if key != "properties" else value for key, value in schema.items()}
    if "properties" in schema:
        made["properties"] = {key: _strict(value) for key, value in schema["properties"].items()}
        keeps = schema.get("x-kubernetes-preserve-unknown-fields")
        if not keeps and "additionalProperties" not in schema:
            made["additionalProperties"] = False
    if top:
        made["properties"] = {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            **made["properties"],
        }
    if schema.get("x-kubernetes-int-or-string"):
        made = {"type": ["integer", "string"]}
    if schema.get("nullable") and "type" in made:
        kinds = made["type"] if isinstance(made["type"], list) else [made["type"]]
        made["type"] = [*kinds, "null"]
    return made


def _path(steps: Any) -> str:
    path = ""
    for step in steps:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else str(step)
    return path


def _reason(error: Any) -> str:
    best = error
    if error.context:
        best = max(error.context, key=lambda inner: len(inner.absolute_path))
    text = str(best.message)
    longest = 300
    return text if len(text) <= longest else text[:longest] + " …"
