"""The lint's findings, and helpers for its checks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gridflow.errors import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


@dataclass(frozen=True)
class Finding:
    """A problem in one of the documents."""

    document: int
    path: str
    reason: str


@dataclass
class LintReport:
    """Collects findings; ``document`` is the one being looked at.

    `shapes`: The fields of the documents' parts, by the names that `mapping` takes.
    """

    shapes: Mapping[str, frozenset[str]]
    document: int = 0
    findings: list[Finding] = field(default_factory=list)

    def add(self, path: str, reason: str | None) -> None:
        """Record a finding, if there is a reason."""
        if reason:
            finding = Finding(self.document, path, reason)
            if finding not in self.findings:
                self.findings.append(finding)

    def mapping(self, path: str, value: Any, shape: str | None = None) -> dict[str, Any]:
        """Return a mapping; report other values, and fields that the shape doesn't have."""
        if value is None:
            return {}
        if not isinstance(value, dict):
            self.add(path, f"must be a mapping, got {value!r}.")
            return {}
        if shape:
            for key in value:
                if key not in self.shapes[shape] and not str(key).startswith("x-"):
                    hint = did_you_mean(str(key), self.shapes[shape])
                    self.add(below(path, key), f"{shape} has no field {key!r}.{hint}")
        return value

    def listing(self, path: str, value: Any) -> list[Any]:
        """Return a list; report other values."""
        if value is None:
            return []
        if not isinstance(value, list):
            self.add(path, f"must be a list, got {value!r}.")
            return []
        return value

    def text(self, path: str, value: Any) -> str | None:
        """Return a string; report other values."""
        if isinstance(value, str):
            return value
        if value is not None:
            self.add(path, f"must be a string, got {value!r}; write it in quotes.")
        return None

    def integer(self, path: str, value: Any, least: int) -> int | None:
        """Return a whole number of at least ``least``; report other values."""
        if value is None:
            return None
        if type(value) is not int or value < least:
            self.add(path, f"must be a whole number of at least {least}, got {value!r}.")
            return None
        return value

    def one_of(self, path: str, value: Any, allowed: Iterable[str], why: str = "") -> None:
        """Report a value that is neither allowed nor None."""
        allowed = tuple(allowed)
        if value is not None and value not in allowed:
            reason = f"must be one of {', '.join(map(repr, allowed))}, got {value!r}."
            hint = did_you_mean(str(value), allowed)
            self.add(path, reason + (f" {why}" if why else "") + hint)


def shapes(**names: str) -> dict[str, frozenset[str]]:
    """Return the fields of parts of documents by the parts' names, from texts with blanks."""
    return {shape: frozenset(fields.split()) for shape, fields in names.items()}


def below(path: str, key: Any) -> str:
    """Return the path of a field."""
    return f"{path}.{key}" if path else str(key)
