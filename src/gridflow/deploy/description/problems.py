"""Problems of descriptions and documents, each with its path and reason."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gridflow.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["JobError", "Problem", "refuse"]


@dataclass(frozen=True)
class Problem:
    """A problem.

    Attributes
    ----------
    path : str
        The field, such as ``roles.worker.resources.memory``; empty for the whole document.
    reason : str
        What was given, what is allowed and what to do.
    where : str
        ``file:line:column``; the document's name if a target would reject it; empty if the
        description was created in Python.
    """

    path: str
    reason: str
    where: str = ""

    def __str__(self) -> str:
        return ": ".join(part for part in (self.where, self.path, self.reason) if part)

    def below(self, prefix: str) -> Problem:
        """Return the problem with a path relative to the object that has the field ``prefix``."""
        joint = "" if not self.path or self.path.startswith("[") else "."
        return replace(self, path=f"{prefix}{joint}{self.path}")


class JobError(InvalidArgument):
    """A job description, or a document made from one, is invalid.

    Attributes
    ----------
    problems : tuple of Problem
        All problems found, in the order of the fields.
    """

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))

    def __reduce__(self) -> tuple[Callable[..., JobError], tuple[object, ...]]:
        return type(self), (self.problems,)


def refuse(problems: list[Problem]) -> None:
    """Raise `JobError` if there are problems."""
    if problems:
        raise JobError(problems)
