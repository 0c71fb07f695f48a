"""Positions of a document's values, for problems that are found after reading it."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING

from gridflow.deploy.description.problems import JobError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gridflow.deploy.description.problems import Problem
    from gridflow.deploy.description.tree import Node


class Places:
    """The positions of a document's values, as ``file:line:column``, by path."""

    def __init__(self, root: Node) -> None:
        self._all: dict[str, str] = {}
        self._note(root, "")

    def _note(self, node: Node, path: str) -> None:
        self._all[path] = node.where
        if isinstance(node.value, dict):
            for key, child in node.value.items():
                self._note(child, f"{path}.{key}" if path else key)
        elif isinstance(node.value, list):
            for index, child in enumerate(node.value):
                self._note(child, f"{path}[{index}]")

    def of(self, path: str) -> str:
        """Return the position of a value, or of its nearest existing ancestor."""
        while path not in self._all:
            cut = max(path.rfind("."), path.rfind("["))
            path = path[:cut] if cut > 0 else ""
        return self._all[path]

    def located(self, problem: Problem) -> Problem:
        """Return a problem with its position, unless it has one."""
        return dataclasses.replace(problem, where=problem.where or self.of(problem.path))

    @contextlib.contextmanager
    def named(self) -> Iterator[None]:
        """Add positions to the problems of a `JobError` that is raised inside."""
        try:
            yield
        except JobError as error:
            raise JobError(map(self.located, error.problems)) from error
