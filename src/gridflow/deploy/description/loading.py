"""Reads a `Job` from ``job.yaml``; the dataclasses define the types, errors have path and line."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
import types
import typing
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from gridflow.deploy.description import description, parts, rules, services
from gridflow.deploy.description.description import Job
from gridflow.deploy.description.problems import JobError, Problem
from gridflow.deploy.description.tree import Node, Places, assign, parse, plain_value
from gridflow.errors import InvalidArgument, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["load_job", "parse_job"]


#: Fields whose checks need other fields. If those can't be read, the checks are skipped.
_COMPARED: Final = {
    "gang": ("roles",),
    "roles": ("command",),
    "serve": ("volumes",),
    "tensorboard": ("volumes",),
}
_REPLICAS: Final = re.compile(r"roles\.[^.]+\.replicas")
#: Why the number of a role's tasks isn't a range.
_IS_FIXED: Final = (
    " The programs of a job file form groups of TensorFlow's, which can't change. Workers come and "
    "go with TensorflowDistributor(num_workers=(least, most)), on Spark or on this machine."
)


class _Bad(Exception):
    """The value can't be built; its problems are recorded already."""


def load_job(path: str | Path, assignments: Iterable[str] = ()) -> Job:
    """Read a job from a file.

    Parameters
    ----------
    path : str or Path
        Path of a ``job.yaml``.
    assignments : iterable of str
        Changes to the file's content, such as ``roles.worker.replicas=3``.

    Raises
    ------
    JobError
        Lists every problem, each with its path in the job and its line.
    """
    return load_with_places(path, assignments)[0]


def load_with_places(path: str | Path, assignments: Iterable[str] = ()) -> tuple[Job, Places]:
    """Read a job and the positions of its fields from a file; see `load_job`."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise JobError([Problem("", f"can't be read: {error}", str(path))]) from error
    return _read(text, str(path), assignments)


def parse_job(text: str, *, source: str = "job.yaml", assignments: Iterable[str] = ()) -> Job:
    """Read a job from YAML text; see `load_job`."""
    return _read(text, source, assignments)[0]


def _read(text: str, source: str, assignments: Iterable[str]) -> tuple[Job, Places]:
    documents = parse(text, source)
    if len(documents) != 1:
        reason = f"must contain exactly one YAML document, found {len(documents)}."
        raise JobError([Problem("", reason, source)])
    for assignment in assignments:
        assign(documents[0], assignment)
    places = Places(documents[0])
    reader = _Reader(places)
    job = None
    with contextlib.suppress(_Bad):
        job = reader.build(Job, documents[0], "")
    if reader.problems:
        raise JobError(sorted(reader.problems, key=_line_and_column))
    return typing.cast("Job", job), places


def _line_and_column(problem: Problem) -> tuple[float, int]:
    """Return a key that sorts problems by position in the file; those of ``--set`` come last."""
    found = re.search(r":(\d+):(\d+)\Z", problem.where)
    return (int(found[1]), int(found[2])) if found else (math.inf, 0)


@cache
def _hints(cls: type) -> dict[str, Any]:
    names = {"Mapping": Mapping}
    for module in (parts, services, description):
        names.update(vars(module))
    names["Mapping"] = Mapping
    return typing.get_type_hints(cls, localns=names, include_extras=True)


class _Reader:
    def __init__(self, places: Places) -> None:
        self.problems: list[Problem] = []
        self.places = places

    def refuse(self, path: str, reason: str, where: str) -> typing.NoReturn:
        self.problems.append(Problem(path, reason, where))
        raise _Bad

    def build(self, wanted: Any, node: Node, path: str) -> Any:
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
        bad = set()
        for key, child in node.value.items():
            below = f"{path}.{key}" if path else key
            if key not in fields:
                reason = f"unknown key {key!r}.{_nearest(key, fields, path)}"
                self.problems.append(Problem(below, reason, child.key or child.where))
                continue
            default = fields[key].default_factory is not dataclasses.MISSING
            if child.null and (default or isinstance(fields[key].default, tuple)):
                continue
            try:
                values[key] = self.build(hints[key], child, below)
            except _Bad:
                bad.add(key)
        for name, info in fields.items():
            if name not in node.value and _required(info):
                below = f"{path}.{name}" if path else name
                self.problems.append(Problem(below, "is missing.", node.where))
                bad.add(name)
        if bad and cls is Job:
            self._check_rest(values, bad)
        if bad:
            raise _Bad
        return self._make(cls, values, node, path)

    def _make(self, cls: type, values: dict[str, Any], node: Node, path: str) -> Any:
        try:
            return cls(**values)
        except JobError as error:
            for problem in error.problems:
                moved = problem.below(path) if path else problem
                self.problems.append(self.places.located(moved))
        except InvalidArgument as error:
            self.problems.append(Problem(path, str(error), node.where))
        raise _Bad

    def _check_rest(self, values: dict[str, Any], bad: set[str]) -> None:
        """Check the fields that could be read, if others couldn't."""
        try:
            Job(**{"name": "unreadable", **values})
        except JobError as error:
            for problem in error.problems:
                top = problem.path.partition(".")[0].partition("[")[0]
                if bad.isdisjoint({top, *_COMPARED.get(top, ())}):
                    self.problems.append(self.places.located(problem))

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
            hint = "" if node.null or not _REPLICAS.fullmatch(path) else _IS_FIXED
            self.refuse(path, f"must be {_article(wanted)}, got {node.kind()}.{hint}", node.where)
        text: str = node.value
        if wanted is str:
            if node.null and text:
                self.refuse(path, f"must be a string, got {text}; write it in quotes.", node.where)
            return text
        value = plain_value(Node(text, plain=True))
        if type(value) is not wanted:
            self.refuse(path, f"must be {_article(wanted)}, got {text!r}.", node.where)
        return value

    def _seconds(self, node: Node, path: str) -> int:
        if isinstance(node.value, (dict, list)):
            self.refuse(path, f"must be a duration, got {node.kind()}.", node.where)
        try:
            return rules.seconds(node.value)
        except InvalidArgument as error:
            self.refuse(path, str(error), node.where)


def _nearest(key: str, fields: Iterable[str], path: str) -> str:
    """Return a hint for an unknown key below a path."""
    snake = re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", key).lower()
    if hint := did_you_mean(snake, fields):
        return hint
    elsewhere = [each for each in _paths(Job, "") if each.rpartition(".")[2] == snake]
    top = path.partition(".")[0].partition("[")[0]
    closer = [each for each in elsewhere if top and each.startswith(top)] or elsewhere
    if closer:
        return f" It belongs under {' or '.join(each.rpartition('.')[0] for each in closer)}."
    return f" The fields are {', '.join(fields)}."


@cache
def _paths(cls: type, above: str) -> list[str]:
    """Return the paths of all fields, such as ``roles.ROLE.resources.gpu``."""
    found = []
    for name, wanted in _hints(cls).items():
        found.append(f"{above}{name}")
        for each in (wanted, *typing.get_args(wanted)):
            if dataclasses.is_dataclass(each):
                key = {"roles": ".ROLE", "env": ".NAME"}.get(name, "")
                key = "[]" if typing.get_origin(wanted) is tuple else key
                found += _paths(typing.cast("type", each), f"{above}{name}{key}.")
    return found


def _required(info: dataclasses.Field[Any]) -> bool:
    missing = dataclasses.MISSING
    return info.default is missing and info.default_factory is missing


def _article(wanted: type) -> str:
    return {int: "a whole number", bool: "true or false", str: "a string"}[wanted]
