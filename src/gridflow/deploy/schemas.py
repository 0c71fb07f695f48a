"""Schemas for documents: Kubernetes' own from ``kubernetes-validate``, others from a folder.

The folder contains ``GROUP_VERSION_KIND.json`` with a CRD's ``openAPIV3Schema``, and for targets
without Kubernetes the file that each names as its ``schema``.
"""

from __future__ import annotations

import json
import os
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

#: The variable that names the folder if no option does.
VARIABLE: Final = "GRIDFLOW_SCHEMAS"


def folder(given: str | Path | None = None) -> Path | None:
    """Return the folder of schemas: the given one, or the variable's."""
    place = given or os.environ.get(VARIABLE)
    return Path(place) if place else None


def violations(validator: Any, document: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the path and reason of each schema violation in a document."""
    return (
        (_path(error.absolute_path), _reason(error)) for error in validator.iter_errors(document)
    )


def object_validator(document: dict[str, Any], place: Path | None) -> Any:
    """Return the validator for a Kubernetes object's kind, None if there is no schema."""
    kind, version = str(document.get("kind")), str(document.get("apiVersion"))
    group, _, short = version.rpartition("/")
    file = place / f"{group}_{short}_{kind}.json" if place else None
    return validator_of(file, custom=True) if file and file.exists() else _core(kind, group, short)


@cache
def validator_of(file: Path, *, custom: bool = False) -> Any:
    """Return the validator of a JSON schema, or of a custom kind's ``openAPIV3Schema``."""
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
