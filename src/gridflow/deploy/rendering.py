"""Renders a job into a target's documents and checks them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gridflow._spec.roles import ROLES
from gridflow.deploy.capabilities import FEATURES, uses
from gridflow.deploy.description.problems import JobError, Problem
from gridflow.deploy.emit import to_yaml
from gridflow.deploy.lint import lint
from gridflow.deploy.targets.base import Document, Target, override
from gridflow.deploy.targets.registry import TARGETS, get_target
from gridflow.errors import did_you_mean

if TYPE_CHECKING:
    from gridflow.deploy.description.description import Job


@dataclass(frozen=True)
class Rendering:
    """A job rendered for a target.

    Attributes
    ----------
    target : Target
    documents : tuple of Document
    warnings : tuple of Problem
        The features left out with ``lossy``.
    """

    target: Target
    documents: tuple[Document, ...]
    warnings: tuple[Problem, ...] = ()

    def text(self) -> str:
        """Return all documents as one text, for a pipe.

        Kubernetes objects become one YAML stream, and a script includes the files it needs. A stack
        file only refers to its config files; `Document.write` writes those next to it.
        """
        if self.target.form == "kubernetes":
            return to_yaml([document.content for document in self.documents])
        *files, last = self.documents
        if not files or self.target.form != "script":
            return last.text()
        first, rest = last.text().split("\n", 1)
        setup, rest = rest.split("\n", 1)
        carried = "".join(document.shell() for document in files)
        return f"{first}\n{setup}\n{carried}{rest}"


def render(job: Job, target: str, *, lossy: bool = False) -> Rendering:
    """Render a job for a target. Works offline, and always gives the same bytes.

    Parameters
    ----------
    job : Job
    target : str
        One of `gridflow.deploy.TARGETS`.
    lossy : bool
        Leave out features that the target can't express, and list them in ``warnings``. By default
        they are an error. Roles are never left out.

    Raises
    ------
    InvalidArgument
        If there is no such target.
    JobError
        If the target can't express the job, or would reject the documents.
    """
    place = get_target(target)
    problems = [
        Problem(f"overrides.{name}", f"unknown target {name!r}.{did_you_mean(name, TARGETS)}")
        for name in job.overrides
        if name not in TARGETS
    ]
    problems += [
        Problem(field, f"the target {target} requires it.")
        for field in place.needs
        if not getattr(job, field) and not _own_program(job, target, field)
    ]
    lost = inexpressible(job, place)
    # Without one of its roles it would be another job, so roles are never left out.
    roles = [problem for problem in lost if problem.path in {f"roles.{name}" for name in ROLES}]
    if refused := [*problems, *(roles if lossy else lost)]:
        raise JobError(refused)
    documents = place.render(job)
    if tree := job.overrides.get(target):
        documents = override(place, documents, tree)
    if found := lint(place.form, documents):
        raise JobError(found)
    return Rendering(place, tuple(documents), tuple(lost))


def _own_program(job: Job, target: str, field: str) -> bool:
    if field != "command":
        return False
    if "spark" in target:
        return bool(job.spark and job.spark.application)
    return all(job.command_of(name) for name, _ in job.role_items() if name not in job.servers)


def inexpressible(job: Job, target: Target) -> list[Problem]:
    """Return the fields in use that a target can't express, with the reason."""
    found = []
    for use in uses(job):
        prefixes = [use.feature, use.feature.partition("=")[0], use.feature.partition(".")[0]]
        reason = next((target.cannot[key] for key in prefixes if key in target.cannot), None)
        if reason and not target.left_to(use.feature):
            text = f"the target {target.name} can't express it: {reason}."
            found.append(Problem(use.path, text))
    for problem in target.cannot_together(job):
        text = f"the target {target.name} can't express it: {problem.reason}."
        found.append(Problem(problem.path, text))
    return found


@dataclass(frozen=True)
class Explanation:
    """How a target handles one feature of the description.

    ``how`` is ``"yes"``, ``"no"`` (not supported) or ``"other"`` (handled by another target).
    """

    feature: str
    title: str
    how: str
    reason: str = ""


def explain(target: str) -> list[Explanation]:
    """Return how a target handles each feature of the description."""
    place = get_target(target)
    rows = []
    for feature, title in FEATURES.items():
        prefixes = [feature, feature.partition("=")[0], feature.partition(".")[0]]
        reason = next((place.cannot[key] for key in prefixes if key in place.cannot), None)
        if owner := place.left_to(feature):
            rows.append(Explanation(feature, title, "other", owner))
        elif reason or (feature == "overrides" and place.form == "script"):
            rows.append(Explanation(feature, title, "no", reason or "scripts have no fields"))
        else:
            rows.append(Explanation(feature, title, "yes"))
    return rows
