"""Renders a job into a target's documents and checks them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gridflow._spec.cluster import ROLES
from gridflow.deploy.capabilities import FEATURES, uses
from gridflow.deploy.description.problems import JobError, Problem
from gridflow.deploy.targets.base import Rendering, Target
from gridflow.deploy.targets.registry import get_target, names
from gridflow.errors import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Collection

    from gridflow.deploy.description.description import Job


def render(job: Job, target: str, *, lossy: bool = False) -> Rendering:
    """Render a job for a target. Works offline, and always gives the same bytes.

    Parameters
    ----------
    job : Job
    target : str
        One of `gridflow.deploy.TARGETS`, or of another package.
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
    known = names() if job.overrides else ()
    problems = [
        Problem(f"overrides.{name}", f"unknown target {name!r}.{did_you_mean(name, known)}")
        for name in job.overrides
        if name not in known
    ]
    problems += [
        Problem(field, f"the target {target} requires it.")
        for field in place.needs
        if not getattr(job, field) and not (field == "command" and place.has_program(job))
    ]
    lost = inexpressible(job, place)
    # Without one of its roles it would be another job, so roles are never left out.
    roles = [problem for problem in lost if problem.path in {f"roles.{name}" for name in ROLES}]
    if refused := [*problems, *(roles if lossy else lost)]:
        raise JobError(refused)
    documents = place.render(job)
    if tree := job.overrides.get(target):
        documents = place.override(documents, tree)
    if found := place.lint(documents):
        raise JobError(found)
    return Rendering(place, tuple(documents), tuple(lost))


def inexpressible(
    job: Job, target: Target, *, name: str = "", but: Collection[str] = ()
) -> list[Problem]:
    """Return the fields in use that a target can't express, with the reason.

    `name`: What messages call the target, if not by its own name.
    `but`: Features that it can express all the same.
    """
    name = name or target.name
    found = []
    for use in uses(job):
        prefixes = [use.feature, use.feature.partition("=")[0], use.feature.partition(".")[0]]
        why = (target.cannot[key] for key in prefixes if key in target.cannot and key not in but)
        if (reason := next(why, None)) and not target.left_to(use.feature):
            text = f"the target {name} can't express it: {reason}."
            found.append(Problem(use.path, text))
    for problem in target.cannot_together(job):
        text = f"the target {name} can't express it: {problem.reason}."
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
        elif reason or (feature == "overrides" and not place.has_fields):
            rows.append(Explanation(feature, title, "no", reason or "scripts have no fields"))
        else:
            rows.append(Explanation(feature, title, "yes"))
    return rows
