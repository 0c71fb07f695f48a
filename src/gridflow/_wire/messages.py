"""Messages: frozen dataclasses with a kind, converted to and from plain data.

`gridflow._wire.commands`, `reports` and `child` define them. What arrives is checked against its
dataclass before anything else reads it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import msgspec

from gridflow.errors import WireError

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Message:
    """The base of all messages."""

    #: Its name on the wire.
    kind: ClassVar[str]


class Report(Message):
    """Something that happened to the task."""


@dataclass(frozen=True)
class OfTraining(Report):
    """A report of a training process; its agent adds the ``generation``."""

    generation: int = field(default=0, kw_only=True)


M = TypeVar("M", bound=Message)
T = TypeVar("T")


def read(sender: str, data: Any) -> dict[str, Any]:
    """Return the JSON object in some bytes.

    Raises `WireError`: They aren't a JSON object.
    """
    try:
        found = json.loads(data)
    except (ValueError, TypeError, RecursionError, MemoryError) as error:
        raise WireError(f"{sender} sent something that isn't JSON: {error}") from error
    if not isinstance(found, dict):
        raise WireError(f"{sender} sent {type(found).__name__} instead of a JSON object.")
    return found


def parse(sender: str, what: str, fields: Mapping[str, Any], kind: type[T]) -> T:
    """Return an object of a dataclass from its fields, and check their types.

    Raises `WireError`: A field is missing, unknown, or has the wrong type.
    """
    unknown = fields.keys() - kind.__dataclass_fields__.keys()  # type: ignore[attr-defined]
    if unknown:
        raise WireError(
            f"{sender} sent {what} with unknown fields: {', '.join(sorted(unknown))}. "
            "Is it another version of gridflow?"
        )
    try:
        return msgspec.convert(fields, kind)
    except (msgspec.ValidationError, TypeError, RecursionError) as error:
        raise WireError(f"{sender} sent an ill-formed {what}: {error}") from error


class Family(Generic[M]):
    """The messages that one side sends to another.

    `sender`: Who sends them, for error messages.
    """

    def __init__(self, sender: str, *types: type[M]) -> None:
        self._sender = sender
        self._types: dict[str, type[M]] = {each.kind: each for each in types}

    def encode(self, message: M) -> dict[str, Any]:
        """Return plain data that JSON can hold."""
        if self._types.get(message.kind) is not type(message):
            raise WireError(f"{self._sender} can't send a {type(message).__name__}.")
        return {"kind": message.kind, **msgspec.to_builtins(message)}

    def read(self, data: Any) -> M:
        """Return the message in some bytes of JSON.

        Raises `WireError`: They aren't a message.
        """
        return self.decode(read(self._sender, data))

    def decode(self, data: Mapping[str, Any]) -> M:
        """Return the message from the data that `encode` made of it.

        Raises `WireError`: The message is unknown or malformed.
        """
        fields = dict(data)
        kind = fields.pop("kind", None)
        known = self._types.get(kind) if isinstance(kind, str) else None
        if known is None:
            raise WireError(
                f"{self._sender} sent an unknown message: {kind!r}; known: "
                f"{', '.join(sorted(self._types))}. Is it another version of gridflow?"
            )
        return parse(self._sender, repr(kind), fields, known)
