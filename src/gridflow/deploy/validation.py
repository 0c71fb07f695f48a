"""Checks existing documents against schemas and our own lint; each problem has its line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gridflow.deploy.description.problems import JobError, Problem
from gridflow.deploy.description.tree import Places, parse, plain_value
from gridflow.deploy.schemas import VARIABLE, folder
from gridflow.deploy.targets.registry import get_target

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class Validation:
    """The result of `validate`.

    Attributes
    ----------
    documents : int
        The number of documents checked.
    problems : tuple of Problem
        Empty if there are none.
    notes : tuple of str
        Documents without a schema, which were only linted.
    """

    documents: int
    problems: tuple[Problem, ...]
    notes: tuple[str, ...] = ()


def validate(
    target: str, text: str, *, source: str = "<text>", schemas: str | Path | None = None
) -> Validation:
    """Check a target's documents.

    Parameters
    ----------
    target : str
        One of `gridflow.deploy.TARGETS` that renders YAML or JSON.
    text : str
        YAML documents, or JSON.
    source : str
        The file's name, for messages.
    schemas : str or Path, optional
        A folder of schemas (`gridflow.deploy.schemas`). Default: the variable
        ``GRIDFLOW_SCHEMAS``.

    Raises
    ------
    InvalidArgument
        If there is no such target.
    JobError
        If the target renders scripts.
    """
    place = get_target(target)
    if not place.has_fields:
        raise JobError([Problem("", f"the target {target} renders scripts; nothing to validate.")])
    try:
        nodes = parse(text, source)
    except JobError as error:
        return Validation(0, error.problems)
    if not nodes:
        return Validation(0, (Problem("", "contains no document.", source),))
    documents = [plain_value(node) for node in nodes]
    places = [Places(node) for node in nodes]
    problems: list[Problem] = []
    notes = []

    def problem(index: int, path: str, reason: str) -> Problem:
        heading = place.heading(documents[index])
        return Problem(f"{heading} {path}".strip(), reason, places[index].of(path))

    for index, document in enumerate(documents):
        if not isinstance(document, dict):
            continue
        found = place.schema_problems(document, folder(schemas))
        if found is None:
            name = place.heading(document) or place.form
            notes.append(
                f"no schema for {name}; it was only linted. Pass --schemas DIR or set {VARIABLE}, "
                "and install 'gridflow[validate]' for Kubernetes' own kinds."
            )
            continue
        problems += [problem(index, path, why) for path, why in found]
    schema_paths = {each.path for each in problems}
    for item in place.findings(documents):
        linted = problem(item.document, item.path, item.reason)
        if linted.path not in schema_paths:
            problems.append(linted)
    return Validation(len(documents), tuple(problems), tuple(notes))
