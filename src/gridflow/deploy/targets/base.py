"""Targets and the documents they render."""

from __future__ import annotations

import contextlib
import shlex
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from gridflow._files.local import replacing
from gridflow.deploy.description.description import SIDES
from gridflow.deploy.description.problems import JobError, Problem
from gridflow.deploy.emit import to_json, to_yaml
from gridflow.deploy.lint.report import Finding, LintReport
from gridflow.deploy.schemas import validator_of, violations

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from gridflow.deploy.description.description import Job
    from gridflow.deploy.drivers.base import Driver


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


def sides(*, but: str = "") -> dict[str, str]:
    """Return the sections that a target leaves to others, with their names: all but its own."""
    return {name: side.targets for name, side in SIDES.items() if name != but}


class Target(ABC):
    """A place where a job can run: what it renders, how that is checked, and who starts it.

    Each target is a subclass, and everything that differs between targets is in it. A package adds
    one with an entry point of the group ``gridflow.targets`` that names its class.

    Attributes
    ----------
    name, title : str
    form : str
        What its documents are, such as ``kubernetes`` or ``script``.
    needs : tuple of str, default ("image", "command")
        Fields that a job must have.
    cannot : mapping of str to str
        Features (`gridflow.deploy.capabilities.FEATURES`) that it can't express, with the reason.
    leaves : mapping of str to str
        Features, or their first parts, that other targets handle, with the names of those targets;
        by default the sections of a job that aren't about training.
    shapes : mapping of str to frozenset of str
        The fields of its documents' parts, for the checks of `check` that pass such a name.
    schema : str
        Name of the JSON schema of its documents in a folder of schemas; empty if there is none.
    has_fields : bool, default True
        Whether its documents have fields, which can be overridden and checked; scripts have none.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    form: ClassVar[str]
    needs: ClassVar[tuple[str, ...]] = ("image", "command")
    cannot: ClassVar[Mapping[str, str]] = {}
    leaves: ClassVar[Mapping[str, str]] = sides()
    shapes: ClassVar[Mapping[str, frozenset[str]]] = {}
    schema: ClassVar[str] = ""
    has_fields: ClassVar[bool] = True

    # What it renders -----------------------------------------------------------------------------

    @abstractmethod
    def render(self, job: Job) -> list[Document]:
        """Return a job's documents, the main one last; a pure function."""

    def cannot_together(self, job: Job) -> Iterable[Problem]:  # noqa: ARG002
        """Return problems with a job as a whole, where the target can express each part alone."""
        return ()

    def has_program(self, job: Job) -> bool:
        """Whether the tasks of a job without ``command`` have programs all the same."""
        return all(job.command_of(name) for name, _ in job.role_items() if name not in job.servers)

    @property
    def trains(self) -> bool:
        """Whether its jobs train, or are a data service for those that do."""
        return "command" in self.needs

    def left_to(self, feature: str) -> str | None:
        """Return which targets handle a feature, None if this one does."""
        for prefix, owner in self.leaves.items():
            if feature == prefix or feature.startswith((prefix + ".", prefix + "=")):
                return owner
        return None

    def text(self, documents: tuple[Document, ...]) -> str:
        """Return all documents that have fields as one text, for a pipe."""
        return "---\n".join(d.text() for d in documents if not isinstance(d.content, str))

    def override(self, documents: list[Document], tree: Mapping[str, Any]) -> list[Document]:
        """Merge ``overrides.TARGET`` into the documents; by default, into the main one."""
        *beside, main = documents
        return [*beside, Document(main.name, merge(main.content, dict(tree)))]

    # How that is checked -------------------------------------------------------------------------

    def check(self, report: LintReport, document: dict[str, Any]) -> None:  # noqa: B027
        """Report what is wrong with a document, rendered or foreign, that its schema lets pass."""

    def heading(self, document: Any) -> str:  # noqa: ARG002
        """Return what messages call a document, before the path of a field."""
        return ""

    def findings(self, documents: list[Any]) -> list[Finding]:
        """Return what is wrong with the documents of a job."""
        report = LintReport(self.shapes)
        for report.document, document in enumerate(documents):
            if isinstance(document, dict):
                self.check(report, document)
            else:
                report.add("", f"must be a mapping, got {document!r}.")
        return report.findings

    def lint(self, documents: list[Document]) -> list[Problem]:
        """Return what is wrong with rendered documents, as errors name it."""
        trees = [d for d in documents if not isinstance(d.content, str)]
        return [
            Problem(
                f"{self.heading(trees[found.document].content)} {found.path}".strip(),
                found.reason,
                trees[found.document].name,
            )
            for found in self.findings([d.content for d in trees])
        ]

    def schema_problems(
        self, document: dict[str, Any], folder: Path | None
    ) -> Iterable[tuple[str, str]] | None:
        """Return path and reason of all that violates a document's schema.

        ``folder`` is the user's folder of schemas. Returns None if there is no schema.
        """
        file = folder / self.schema if folder and self.schema else None
        return violations(validator_of(file), document) if file and file.exists() else None

    # Who starts it -------------------------------------------------------------------------------

    def drive(self, job: Job, rendering: Rendering) -> Driver | None:  # noqa: ARG002
        """Return what starts, follows and cancels a rendered job; None if the user does."""
        return None

    def begun(self, job: Job, now: float) -> Job:  # noqa: ARG002
        """Return the job that is rendered when ``gridflow run`` starts it, at a time in seconds."""
        return job

    def next_step(self, path: str) -> str:
        """Return the command that starts the job in a file."""
        verb = "render" if type(self).drive is Target.drive else "run"
        return f"gridflow {verb} -t {self.name} {path}"


class ScriptTarget(Target):
    """A target that renders a shell script, which the user runs."""

    form = "script"
    has_fields = False

    def text(self, documents: tuple[Document, ...]) -> str:
        """Return the script, which carries the files that it needs."""
        *files, last = documents
        if not files:
            return last.text()
        first, setup, rest = last.text().split("\n", 2)
        return f"{first}\n{setup}\n{''.join(document.shell() for document in files)}{rest}"

    def override(self, documents: list[Document], tree: Mapping[str, Any]) -> list[Document]:
        """Refuse all overrides."""
        del documents, tree
        reason = f"the target {self.name} renders scripts, which have no fields to override."
        raise JobError([Problem(f"overrides.{self.name}", reason)])

    def next_step(self, path: str) -> str:
        """Return the command that runs the script."""
        return f"gridflow render -t {self.name} {path} | sh"


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
        return self.target.text(self.documents)


def merge(base: Any, change: Any) -> Any:
    """Merge a tree into another.

    Mappings are merged key by key, and null removes a key. Lists of mappings are merged by ``name``
    or ``id`` if all items have it. Scalars and other lists are replaced, and an empty list replaces
    any list.
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
