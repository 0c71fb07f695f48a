"""The interface of an agent's features, and their tools."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from gridflow._agent.reporter import Reporter
    from gridflow._agent.uploads import Uploads
    from gridflow._features.checkpoints.agent import Checkpoints
    from gridflow._spec.place import Place
    from gridflow._wire.client import CoordinatorClient
    from gridflow._wire.commands import Command
    from gridflow._wire.failures import FailureKind
    from gridflow._wire.messages import Message
    from gridflow._wire.payload import AgentPayload


@dataclass(frozen=True)
class Tools:
    """What a feature works with.

    `rank`: The task's rank.
    `folder`: The agent's own folder.
    `tell`: Sends a message to the current training process.
    `fail`: Reports a failure of the task: its kind, and one line.
    """

    payload: AgentPayload
    rank: int
    folder: Path
    client: CoordinatorClient
    reporter: Reporter
    checkpoints: Checkpoints
    uploads: Uploads
    tell: Callable[[Message], None]
    fail: Callable[[FailureKind, str], None]


class Feature:
    """Something that an agent does beside its task. Override what it needs."""

    def __init__(self, tools: Tools) -> None:
        self.tools = tools

    def begin(self) -> None:
        """Start: the agent has registered, and its training process is starting."""

    def obey(self, command: Command) -> bool:  # noqa: ARG002
        """Carry out a command; return False if it isn't for this feature."""
        return False

    def hear(self, message: Message) -> bool:  # noqa: ARG002
        """Handle a message of the training process; return False if it isn't for this feature."""
        return False

    def arrived(self, dataset: str, rows: int) -> None:
        """Note how many rows of a dataset can be read. Called from the spooling thread."""

    def read(self, size: int) -> None:
        """Note that bytes of rows were spooled. Called from the spooling thread; it may wait."""

    def forget(self, generation: int, resume: Place | None) -> None:
        """Forget the previous generation; the new one resumes from a place."""

    def messages(self) -> Sequence[Message]:
        """Return the messages for a restarted training process."""
        return ()

    def close(self) -> None: ...
