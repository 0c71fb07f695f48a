"""From ``job.yaml`` to `Job`: types come from the dataclasses, errors name path and line."""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from gridflow.deploy.description import description, parts, rules, services
from gridflow.deploy.description.description import Job
from gridflow.deploy.description.problems import JobError, Problem
from gridflow.deploy.description.tree import Node, assign, parse, plain_value
from gridflow.errors import InvalidArgument, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["load_job", "parse_job"]


class _Bad(Exception):
    """The value can't be built; its problems are noted already."""


def load_job(path: str | Path, assignments: Iterable[str] = ()) -> Job:
    """Read a job from a file.

    Parameters
    ----------
    path : str or Path
        Of a ``job.yaml``.
    assignments : iterable of str
        Like ``roles.worker.replicas=3``; each changes the file's content.

    Raises
    ------
    JobError
        With every problem, each with its path in the job and its line.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise JobError([Problem("", f"can't be read: {error}", str(path))]) from error
    return parse_job(text, source=str(path), assignments=assignments)


def parse_job(text: str, *, source: str = "job.yaml", assignments: Iterable[str] = ()) -> Job:
    """Read a job from YAML text; see `load_job`."""
    documents = parse(text, source)
    if len(documents) != 1:
        reason = f"must hold one job in one YAML document, found {len(documents)} documents."
        raise JobError([Problem("", reason, source)])
    for assignment in assignments:
        assign(documents[0], assignment)
    reader = _Reader(source)
    try:
        job: Job = reader.build(Job, documents[0], "")
    except _Bad:
        raise JobError(reader.problems) from None
    return job


@cache
def _hints(cls: type) -> dict[str, Any]:
    names = {"Mapping": Mapping}
    for module in (parts, services, description):
        names.update(vars(module))
    names["Mapping"] = Mapping
    return typing.get_type_hints(cls, localns=names, include_extras=True)


class _Reader:
    def __init__(self, source: str) -> None:
        self.source = source
        self.problems: list[Problem] = []
        self.places: dict[str, str] = {}

    def refuse(self, path: str, reason: str, where: str) -> typing.NoReturn:
        self.problems.append(Problem(path, reason, where))
        raise _Bad

    def build(self, wanted: Any, node: Node, path: str) -> Any:
        self.places[path] = node.where
        origin = typing.get_origin(wanted)
        if origin in {typing.Union, types.UnionType}:
            if node.null:
                return None
            wanted = next(a for a in typing.get_args(wanted) if a is not type(None))
            return self.build(wanted, node, path)
        if origin is Annotated:
            return self._seconds(node, path)
        if dataclasses.is_dataclass(wanted):
            return self._object(typing.cast("type", wanted), node, path)
        if origin is tuple:
            return self._list(typing.get_args(wanted)[0], node, path)
        if origin is Mapping:
            return self._mapping(typing.get_args(wanted)[1], node, path)
        if wanted is Any:
            return plain_value(node)
        return self._scalar(wanted, node, path)

    def _object(self, cls: type, node: Node, path: str) -> Any:
        if not isinstance(node.value, dict):
            self.refuse(path, f"must be a mapping of fields, got {node.kind()}.", node.where)
        hints = _hints(cls)
        fields = {f.name: f for f in dataclasses.fields(cls)}
        values: dict[str, Any] = {}
        bad = False
        for key, child in node.value.items():
            below = f"{path}.{key}" if path else key
            if key not in fields:
                snake = re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", key).lower()
                hint = did_you_mean(snake, fields) or f" The fields are {', '.join(fields)}."
                self.problems.append(Problem(below, f"unknown key {key!r}.{hint}", child.where))
                bad = True
                continue
            default = fields[key].default_factory is not dataclasses.MISSING
            if child.null and (default or isinstance(fields[key].default, tuple)):
                continue
            try:
                values[key] = self.build(hints[key], child, below)
            except _Bad:
                bad = True
        for name, info in fields.items():
            if name not in node.value and _required(info):
                below = f"{path}.{name}" if path else name
                self.problems.append(Problem(below, "is missing.", node.where))
                bad = True
        if bad:
            raise _Bad
        return self._make(cls, values, node, path)

    def _make(self, cls: type, values: dict[str, Any], node: Node, path: str) -> Any:
        try:
            return cls(**values)
        except JobError as error:
            for problem in error.problems:
                moved = problem.below(path) if path else problem
                place = dataclasses.replace(moved, where=self._place(moved.path))
                self.problems.append(place)
        except InvalidArgument as error:
            self.problems.append(Problem(path, str(error), node.where))
        raise _Bad

    def _place(self, path: str) -> str:
        while path and path not in self.places:
            path = re.sub(r"(\.[^.\[]*|\[[^\[]*|^[^.\[]*)\Z", "", path)
        return self.places.get(path, self.source)

    def _list(self, wanted: Any, node: Node, path: str) -> tuple[Any, ...]:
        if not isinstance(node.value, list):
            hint = " Write it as a list: [word, word]." if wanted is str else ""
            self.refuse(path, f"must be a list, got {node.kind()}.{hint}", node.where)
        return tuple(self._each(wanted, [(f"{path}[{i}]", n) for i, n in enumerate(node.value)]))

    def _mapping(self, wanted: Any, node: Node, path: str) -> dict[str, Any]:
        if not isinstance(node.value, dict):
            self.refuse(path, f"must be a mapping, got {node.kind()}.", node.where)
        children = [(f"{path}.{key}", child) for key, child in node.value.items()]
        return dict(zip(node.value, self._each(wanted, children), strict=True))

    def _each(self, wanted: Any, children: list[tuple[str, Node]]) -> list[Any]:
        built = []
        bad = False
        for below, child in children:
            empty_object = child.null and dataclasses.is_dataclass(wanted)
            try:
                usable = Node({}, child.where) if empty_object else child
                built.append(self.build(wanted, usable, below))
            except _Bad:
                bad = True
        if bad:
            raise _Bad
        return built

    def _scalar(self, wanted: type, node: Node, path: str) -> Any:
        if isinstance(node.value, (dict, list)) or (node.null and wanted is not str):
            self.refuse(path, f"is {_article(wanted)}, got {node.kind()}.", node.where)
        text: str = node.value
        if wanted is str:
            if node.null and text:
                self.refuse(path, f"must be a string, got {text}; write it in quotes.", node.where)
            return text
        value = plain_value(Node(text, plain=True))
        if type(value) is not wanted:
            self.refuse(path, f"is {_article(wanted)}, got {text!r}.", node.where)
        return value

    def _seconds(self, node: Node, path: str) -> int:
        if isinstance(node.value, (dict, list)):
            self.refuse(path, f"must be a duration, got {node.kind()}.", node.where)
        try:
            return rules.seconds(node.value)
        except InvalidArgument as error:
            self.refuse(path, str(error), node.where)


def _required(info: dataclasses.Field[Any]) -> bool:
    missing = dataclasses.MISSING
    return info.default is missing and info.default_factory is missing


def _article(wanted: type) -> str:
    return {int: "a whole number", bool: "true or false", str: "a text"}[wanted]
