"""What a message is: a frozen dataclass with a kind, and one way to and from plain data.

`gridflow.wire.commands`, `reports` and `child` say which messages there are. Whatever arrives is
checked against its dataclass before anybody looks at it.
"""

from __future__ import annotations

from dataclasses import dataclass
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


M = TypeVar("M", bound=Message)


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
        unknown = fields.keys() - known.__dataclass_fields__.keys()
        if unknown:
            raise WireError(
                f"{self._sender} sent {kind!r} with {', '.join(sorted(unknown))}, which this "
                "version of gridflow doesn't know."
            )
        try:
            return msgspec.convert(fields, known)
        except (msgspec.ValidationError, TypeError) as error:
            raise WireError(f"{self._sender} sent an ill-formed {kind!r}: {error}") from error
