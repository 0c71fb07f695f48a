"""Targets and the documents they render."""

from __future__ import annotations

import contextlib
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from gridflow._files.replacing import replacing
from gridflow.deploy.description.problems import JobError, Problem
from gridflow.deploy.emit import to_json, to_yaml
from gridflow.errors import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from gridflow.deploy.description.description import Job

Form = Literal["kubernetes", "compose", "swarm", "marathon", "script"]


@dataclass(frozen=True)
class Document:
    """One document of a rendering.

    Attributes
    ----------
    name : str
        The file name.
    content : dict or str
        A tree for YAML and JSON, otherwise the text itself.
    is_added : bool
        Whether to keep an existing file and only add missing lines.
    """

    name: str
    content: Any
    is_added: bool = False

    def text(self) -> str:
        """Return the file's content."""
        if isinstance(self.content, str):
            return self.content
        return to_json(self.content) if self.name.endswith(".json") else to_yaml([self.content])

    def write(self, directory: Path) -> None:
        """Write the file to a directory."""
        write_all([self], directory)

    def text_in(self, directory: Path) -> str:
        """Return the file's content in a directory that may have an older version of it."""
        path, text = directory / self.name, self.text()
        if self.is_added and path.exists():
            old = path.read_text(encoding="utf-8")
            lacking = [line for line in text.splitlines() if line not in old.splitlines()]
            text = "\n".join([*old.splitlines(), *lacking]) + "\n"
        return text

    def shell(self) -> str:
        """Return the shell commands that write the file to the working directory."""
        end = f"<<'GRIDFLOW_END'\n{self.text()}GRIDFLOW_END\n"
        if not self.is_added:
            return f"cat >{self.name} {end}"
        first = shlex.quote(self.text().split("\n", 1)[0])
        return f"grep -qxF {first} {self.name} 2>/dev/null || {{ echo; cat; }} >>{self.name} {end}"


def write_all(documents: Iterable[Document], directory: Path) -> None:
    """Write all documents to a directory, or none of them. Creates the directory if necessary.

    Raises `OSError`: If the files can't be written, for example without disk space or permission.
        Existing files are unchanged.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as opened:
        for document in documents:
            beside = opened.enter_context(replacing(directory / document.name))
            beside.write_text(document.text_in(directory), encoding="utf-8")


@dataclass(frozen=True)
class Target:
    """A place where a job can run.

    Attributes
    ----------
    name, title : str
    form : {"kubernetes", "compose", "swarm", "marathon", "script"}
        Form of the documents, which determines the lint.
    render : callable
        Turns a job into its documents; a pure function.
    cannot : mapping of str to str
        Features (`gridflow.deploy.capabilities.FEATURES`) that it can't express, with the reason.
    leaves : mapping of str to str
        Features, or their first parts, that other targets handle, with the names of those targets.
    needs : tuple of str
        Fields that a job must have.
    cannot_together : callable
        Returns problems with a job as a whole, where the target can express each part alone.
    """

    name: str
    title: str
    form: Form
    render: Callable[[Job], list[Document]]
    cannot: Mapping[str, str] = field(default_factory=dict)
    leaves: Mapping[str, str] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    cannot_together: Callable[[Job], Iterable[Problem]] = lambda _: ()

    def left_to(self, feature: str) -> str | None:
        """Return which targets handle a feature, None if this one does."""
        for prefix, owner in self.leaves.items():
            if feature == prefix or feature.startswith((prefix + ".", prefix + "=")):
                return owner
        return None


def object_document(content: Any) -> Document:
    """Return a Kubernetes object as a document, named by kind and name."""
    tree: dict[str, Any] = content
    name = f"{tree['kind'].lower()}-{tree['metadata']['name']}.yaml"
    return Document(name, tree)


def merge(base: Any, change: Any) -> Any:
    """Merge a tree into another.

    Mappings are merged key by key, and null removes a key. Lists of mappings are merged by ``name``
    (``id`` for Marathon's apps) if all items have it. Scalars and other lists are replaced, and an
    empty list replaces any list.
    """
    if isinstance(base, dict) and isinstance(change, dict):
        merged = dict(base)
        for key, value in change.items():
            if value is None:
                merged.pop(key, None)
            else:
                merged[key] = merge(merged[key], value) if key in merged else value
        return merged
    key = _list_key(base, change)
    if key is None:
        return change
    merged_list = {item[key]: item for item in base}
    for item in change:
        old = merged_list.get(item[key])
        merged_list[item[key]] = item if old is None else merge(old, item)
    return list(merged_list.values())


def _list_key(base: Any, change: Any) -> str | None:
    if not (isinstance(base, list) and isinstance(change, list) and change):
        return None
    items = [*base, *change]
    if not all(isinstance(item, dict) for item in items):
        return None
    keys = ("name", "id")
    return next((k for k in keys if all(isinstance(item.get(k), str) for item in items)), None)


def override(target: Target, documents: list[Document], tree: Mapping[str, Any]) -> list[Document]:
    """Merge ``overrides.TARGET`` into a target's documents.

    For Kubernetes-based targets its keys are ``Kind`` or ``Kind/name``. For Compose, Swarm and
    Marathon the tree is merged into the main document, and additional files stay unchanged.
    """
    path = f"overrides.{target.name}"
    if target.form == "script":
        reason = f"the target {target.name} renders scripts, which have no fields to override."
        raise JobError([Problem(path, reason)])
    if target.form != "kubernetes":
        return [
            d if isinstance(d.content, str) else Document(d.name, merge(d.content, dict(tree)))
            for d in documents
        ]
    selectors: dict[str, list[int]] = {}
    for index, document in enumerate(documents):
        kind = document.content["kind"]
        selectors.setdefault(kind, []).append(index)
        selectors.setdefault(f"{kind}/{document.content['metadata']['name']}", []).append(index)
    changed = list(documents)
    problems = []
    for key, change in tree.items():
        if key not in selectors:
            known = ", ".join(selectors)
            reason = f"the target {target.name} doesn't render {key!r}; it renders {known}."
            problems.append(Problem(f"{path}.{key}", reason + did_you_mean(key, selectors)))
        elif not isinstance(change, dict):
            reason = f"must be a tree of fields, got {change!r}; null removes only fields."
            problems.append(Problem(f"{path}.{key}", reason))
            continue
        for index in selectors.get(key, ()):
            changed[index] = Document(changed[index].name, merge(changed[index].content, change))
    if problems:
        raise JobError(problems)
    return changed
