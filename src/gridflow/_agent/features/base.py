"""What an agent's features have in common: when they are asked, and what they work with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from gridflow._agent.reporter import Reporter
    from gridflow._agent.uploads import Uploads
    from gridflow._spec.place import Place
    from gridflow._wire.client import CoordinatorClient
    from gridflow._wire.commands import Command
    from gridflow._wire.failures import FailureKind
    from gridflow._wire.messages import Message
    from gridflow._wire.payload import AgentPayload


@dataclass(frozen=True)
class Tools:
    """What a feature works with.

    Attributes
    ----------
    payload : AgentPayload
    rank : int
        The task's place.
    folder : Path
        The agent's own.
    client : CoordinatorClient
    reporter : Reporter
    uploads : Uploads
    tell : callable
        Sends a message to the present training process.
    fail : callable
        Reports a failure of the task: its kind, and one line.
    """

    payload: AgentPayload
    rank: int
    folder: Path
    client: CoordinatorClient
    reporter: Reporter
    uploads: Uploads
    tell: Callable[[Message], None]
    fail: Callable[[FailureKind, str], None]


class Feature:
    """Something that an agent does beside its task. Override what concerns it.

    Parameters
    ----------
    tools : Tools
    """

    def __init__(self, tools: Tools) -> None:
        self.tools = tools

    def begin(self) -> None:
        """Begin: the agent has registered, and its training process is on its way."""

    def obey(self, command: Command) -> bool:  # noqa: ARG002
        """Carry a command out; return False if it is none of this feature's."""
        return False

    def hear(self, message: Message) -> bool:  # noqa: ARG002
        """Take what the training process says; return False if it is none of this feature's."""
        return False

    def arrived(self, dataset: str, rows: int) -> None:
        """Hear that so many rows of a dataset can be read, from the thread that spools them."""

    def read(self, size: int) -> None:
        """Hear that so many bytes of rows were spooled, from the thread that does; it may wait."""

    def forget(self, generation: int, resume: Place | None) -> None:
        """Forget what was for the generation before this one, which goes on from a place."""

    def messages(self) -> Sequence[Message]:
        """Return what a training process that is started again has to be told, too."""
        return ()

    def close(self) -> None:
        """End what was begun."""
