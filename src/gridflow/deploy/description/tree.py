"""YAML as a tree that remembers the position of each value and how it was written.

A field's type determines how its scalar is read, so ``yes``, ``007`` and ``1e3`` stay unchanged in
fields that take strings.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import yaml

from gridflow.deploy.description.plain_secrets import hide
from gridflow.deploy.description.problems import JobError, Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Limits nested aliases, which can expand exponentially ("billion laughs").
_MOST_NODES: Final = 100_000
_DEEPEST: Final = 200
#: Tags of YAML 1.1, those of plain scalars among them: https://yaml.org/type/.
_STANDARD_TAGS: Final = "tag:yaml.org,2002:"
_MERGE: Final = f"{_STANDARD_TAGS}merge"
_TEXT: Final = f"{_STANDARD_TAGS}str"
_RESOLVER: Final[Any] = yaml.SafeLoader("")
_INTEGER: Final = re.compile(r"[-+]?(0|[1-9][0-9]{0,99})\Z")
_INDEX: Final = re.compile(r"[0-9]{1,9}")
_STEP: Final = re.compile(r'(?:"([^"]*)"|([^."=]+))')
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?\Z")


@dataclass
class Node:
    """A mapping (dict of Nodes), a sequence (list of Nodes) or a scalar (its text)."""

    value: Any
    where: str = ""
    plain: bool = False
    #: Position of the key, if this is a value in a mapping.
    key: str = ""

    @property
    def null(self) -> bool:
        """Whether the scalar is an unquoted ``null``, ``~`` or nothing."""
        return self.plain and self.value in {"", "~", "null", "Null", "NULL"}

    def kind(self) -> str:
        """Return the kind of the node, for messages."""
        if isinstance(self.value, dict):
            return "a mapping"
        if isinstance(self.value, list):
            return "a list"
        # Not the string itself, which may be a secret in the wrong place.
        return "nothing" if self.null else "a string"


def parse(text: str, source: str) -> list[Node]:
    """Return the documents of a YAML text.

    Raises
    ------
    JobError
        If it isn't valid YAML, a mapping has a key twice, or a value has a tag of its own.
    """
    try:
        nodes = list(yaml.compose_all(text, Loader=yaml.SafeLoader))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{source}:{mark.line + 1}:{mark.column + 1}" if mark else source
        reason = f"is not valid YAML: {error.problem or error.context}."
        raise JobError([Problem("", reason, where)]) from error
    except yaml.reader.ReaderError as error:  # for a str, only invalid characters cause this
        line = text.count("\n", 0, error.position) + 1
        column = error.position - text.rfind("\n", 0, error.position)
        reason = f"is not valid YAML: it can't contain the character {chr(error.character)!r}."
        raise JobError([Problem("", reason, f"{source}:{line}:{column}")]) from error
    except RecursionError as error:
        raise JobError([Problem("", "is nested too deeply.", source)]) from error
    return [_Tree(source).node(node) for node in nodes if node is not None]


class _Tree:
    """Turns YAML nodes, which form a graph with aliases, into a tree."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.above: set[int] = set()
        self.count = 0

    def node(self, raw: yaml.Node) -> Node:
        where = self._where(raw)
        self.count += 1
        if id(raw) in self.above:
            raise JobError([Problem("", "an alias refers to a value that contains it.", where)])
        if self.count > _MOST_NODES or len(self.above) > _DEEPEST:
            reason = f"is too large: at most {_MOST_NODES} values, nested at most {_DEEPEST} deep."
            raise JobError([Problem("", reason, where)])
        self.above.add(id(raw))
        try:
            return self._node(raw, where)
        finally:
            self.above.remove(id(raw))

    def _node(self, raw: yaml.Node, where: str) -> Node:
        if not raw.tag.startswith(_STANDARD_TAGS):
            raise JobError([Problem("", f"unknown tag {raw.tag!r}.", where)])
        if isinstance(raw, yaml.MappingNode):
            entries: dict[str, Node] = {}
            merged: dict[str, Node] = {}
            for key, value in raw.value:
                at = self._where(key)
                if not isinstance(key, yaml.ScalarNode):
                    raise JobError([Problem("", "a key must be a string.", at)])
                if key.tag == _MERGE:
                    merged = {**self._merged(value, at), **merged}
                    continue
                name = _joined(key.value, at)
                if name in entries:
                    raise JobError([Problem("", f"the key {name!r} is defined twice.", at)])
                child = self.node(value)
                child.key = at
                child.where = at if not isinstance(value, yaml.ScalarNode) else child.where
                entries[name] = child
            return Node({**merged, **entries}, where)
        if isinstance(raw, yaml.SequenceNode):
            return Node([self.node(item) for item in raw.value], where)
        text = _joined(raw.value, where)
        plain = isinstance(raw, yaml.ScalarNode) and raw.style is None
        return Node(text, where, plain=plain and not _is_tagged_as_text(raw))

    def _merged(self, raw: yaml.Node, at: str) -> dict[str, Node]:
        """Return the entries of what the key ``<<`` names; of several mappings the first counts."""
        node = self.node(raw)
        found: dict[str, Node] = {}
        for each in node.value if isinstance(node.value, list) else [node]:
            if not isinstance(each.value, dict):
                reason = f"takes a mapping or a list of mappings, got {each.kind()}."
                raise JobError([Problem("<<", reason, at)])
            found = {**each.value, **found}
        return found

    def _where(self, raw: yaml.Node) -> str:
        return f"{self.source}:{raw.start_mark.line + 1}:{raw.start_mark.column + 1}"


def _is_tagged_as_text(raw: yaml.Node) -> bool:
    """Return whether a plain scalar is a string only because of its tag: ``!!str 3``."""
    implied = _RESOLVER.resolve(yaml.ScalarNode, raw.value, (True, False))
    return bool(raw.tag == _TEXT != implied)


def _joined(text: str, where: str) -> str:
    r"""Return a text with each character that JSON writes as two escapes (``\ud83d\ude00``).

    PyYAML makes two surrogates of them, which no encoding can write.
    """
    if text.isascii():
        return text
    try:
        return text.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError as error:
        reason = "contains half of a character, an escape from \\ud800 to \\udfff by itself."
        raise JobError([Problem("", reason, where)]) from error


def plain_value(node: Node) -> Any:
    """Return a node's value by YAML 1.2's core schema, for fields without a type.

    Strings such as ``yes``, ``on`` and ``007`` stay strings.
    """
    if isinstance(node.value, dict):
        return {key: plain_value(child) for key, child in node.value.items()}
    if isinstance(node.value, list):
        return [plain_value(child) for child in node.value]
    text: str = node.value
    if not node.plain:
        return text
    if node.null:
        return None
    if text in {"true", "True", "TRUE", "false", "False", "FALSE"}:
        return text.lower() == "true"
    if _INTEGER.match(text):
        return int(text)
    number = float(text) if _FLOAT.match(text) else math.inf
    return number if math.isfinite(number) else text  # documents can't hold infinity


def assign(root: Node, assignment: str) -> None:
    """Apply an ``a.b.0.c=value`` from the command line to a tree.

    A number is an index in a list, and a key with dots needs double quotes. The value is read as
    YAML, so ``[a, b]`` is a list.
    """
    source = f"--set {hide(assignment)}"
    path, sign, text = _split(assignment)
    if not sign:
        raise JobError([Problem("", "must have the form a.b=value.", source)])
    documents = parse(text, source) if text.strip() else []
    new = documents[0] if documents else Node("", source)
    _stamp(new, source)
    node = root
    for step, following in zip(path, [*path[1:], None], strict=True):
        if isinstance(node.value, list):
            if not _INDEX.fullmatch(step) or int(step) > len(node.value):
                reason = f"{step!r} is not an index into a list of length {len(node.value)}."
                raise JobError([Problem(".".join(path), reason, source)])
            if int(step) == len(node.value):
                node.value.append(Node({}, source))
            if following is None:
                node.value[int(step)] = new
            node = node.value[int(step)]
            continue
        if not isinstance(node.value, dict):
            if not node.null:
                reason = f"{step!r} can't be set below {node.kind()}."
                raise JobError([Problem(".".join(path), reason, source)])
            node.value = {}
        if following is None:
            node.value[step] = new
        else:
            empty: Any = [] if following == "0" else {}
            node = node.value.setdefault(step, Node(empty, source))


def _split(assignment: str) -> tuple[list[str], str, str]:
    steps: list[str] = []
    position = 0
    while match := _STEP.match(assignment, position):
        steps.append(match.group(1) if match.group(1) is not None else match.group(2))
        position = match.end()
        if assignment[position : position + 1] == ".":
            position += 1
            continue
        break
    if assignment[position : position + 1] != "=" or not steps:
        return steps, "", ""
    return steps, "=", assignment[position + 1 :]


def _stamp(node: Node, source: str) -> None:
    node.where, node.key = source, ""
    children = node.value.values() if isinstance(node.value, dict) else node.value
    if not isinstance(children, str):
        for child in children:
            _stamp(child, source)


# Positions of a document's values, for problems that are found after reading it.


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
