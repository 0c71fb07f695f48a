"""What is wrong with a description or a document, each with its path and reason."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gridflow.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["JobError", "Problem", "refuse"]


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong.

    Attributes
    ----------
    path : str
        The field, like ``roles.worker.resources.memory``; empty for the whole.
    reason : str
        What was given, what is allowed and what to do.
    where : str
        ``file:line:column``; the document's name if a target would reject it; empty when the
        description was made in Python.
    """

    path: str
    reason: str
    where: str = ""

    def __str__(self) -> str:
        return ": ".join(part for part in (self.where, self.path, self.reason) if part)

    def below(self, prefix: str) -> Problem:
        """Return the same problem seen from the object that holds the field ``prefix``."""
        joint = "" if not self.path or self.path.startswith("[") else "."
        return replace(self, path=f"{prefix}{joint}{self.path}")


class JobError(InvalidArgument):
    """A job description, or a document made from one, that can't be used.

    Attributes
    ----------
    problems : tuple of Problem
        Everything found in one pass, in the order of the fields.
    """

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))

    def __reduce__(self) -> tuple[Callable[..., JobError], tuple[object, ...]]:
        return type(self), (self.problems,)


def refuse(problems: list[Problem]) -> None:
    """Raise `JobError` when there are problems."""
    if problems:
        raise JobError(problems)
