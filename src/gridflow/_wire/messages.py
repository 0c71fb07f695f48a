"""What a message is: a frozen dataclass with a kind, and one way to and from plain data.

`gridflow._wire.commands`, `reports` and `child` say which messages there are. Whatever arrives is
checked against its dataclass before anybody looks at it.
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

    #: What it is called on the wire.
    kind: ClassVar[str]


class Report(Message):
    """Something that happened to the task."""


@dataclass(frozen=True)
class OfTraining(Report):
    """What a training process said; ``generation`` is added by its agent."""

    generation: int = field(default=0, kw_only=True)


M = TypeVar("M", bound=Message)
T = TypeVar("T")


def read(sender: str, data: Any) -> dict[str, Any]:
    """Return the JSON object that some bytes hold.

    Raises
    ------
    WireError
        They hold none.
    """
    try:
        found = json.loads(data)
    except (ValueError, TypeError, RecursionError, MemoryError) as error:
        raise WireError(f"{sender} sent something that isn't JSON: {error}") from error
    if not isinstance(found, dict):
        raise WireError(f"{sender} sent {type(found).__name__} where a JSON object is expected.")
    return found


def parse(sender: str, what: str, fields: Mapping[str, Any], kind: type[T]) -> T:
    """Return the object of a dataclass whose fields came in, each of the type that it has there.

    Raises
    ------
    WireError
        A field is missing, unknown, or of another type.
    """
    unknown = fields.keys() - kind.__dataclass_fields__.keys()  # type: ignore[attr-defined]
    if unknown:
        raise WireError(
            f"{sender} sent {what} with {', '.join(sorted(unknown))}, which this version of "
            "gridflow doesn't know."
        )
    try:
        return msgspec.convert(fields, kind)
    except (msgspec.ValidationError, TypeError, RecursionError) as error:
        raise WireError(f"{sender} sent an ill-formed {what}: {error}") from error


class Family(Generic[M]):
    """The messages that one side sends to another.

    Parameters
    ----------
    sender : str
        Who sends them, for errors.
    *types : type
    """

    def __init__(self, sender: str, *types: type[M]) -> None:
        self._sender = sender
        self._types: dict[str, type[M]] = {each.kind: each for each in types}

    def encode(self, message: M) -> dict[str, Any]:
        """Return plain data that JSON can hold."""
        if self._types.get(message.kind) is not type(message):
            raise WireError(f"{self._sender} sends no {type(message).__name__}.")
        return {"kind": message.kind, **msgspec.to_builtins(message)}

    def read(self, data: Any) -> M:
        """Return the message that some bytes of JSON hold.

        Raises
        ------
        WireError
            They hold none.
        """
        return self.decode(read(self._sender, data))

    def decode(self, data: Mapping[str, Any]) -> M:
        """Return the message that `encode` made these data of.

        Raises
        ------
        WireError
            It is none that this gridflow knows, or isn't formed as it has to be.
        """
        fields = dict(data)
        kind = fields.pop("kind", None)
        known = self._types.get(kind) if isinstance(kind, str) else None
        if known is None:
            raise WireError(
                f"{self._sender} sent the message {kind!r}, which this version of gridflow doesn't "
                f"know; it knows {', '.join(sorted(self._types))}."
            )
        return parse(self._sender, repr(kind), fields, known)
