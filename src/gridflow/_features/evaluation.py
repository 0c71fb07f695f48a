"""Fetches each committed checkpoint for an evaluator."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from gridflow._features.base import Feature, Tools
from gridflow._wire import child, commands
from gridflow.errors import WireError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gridflow._spec.place import Place
    from gridflow._wire.commands import Command
    from gridflow._wire.messages import Message


class EvaluationNews(Feature):
    """Fetches checkpoints and tells the training process about the newest."""

    def __init__(self, tools: Tools) -> None:
        super().__init__(tools)
        self._newest: child.NewCheckpoint | None = None
        self._end: commands.EndEvaluation | None = None

    def obey(self, command: Command) -> bool:
        """Carry out `Fetch` and `EndEvaluation`."""
        match command:
            case commands.Fetch():
                self._fetch(command)
            case commands.EndEvaluation():
                self._end = command
                self.tools.tell(command)
            case _:
                return False
        return True

    def forget(self, generation: int, resume: Place | None) -> None:  # noqa: ARG002
        """Forget checkpoints of the previous generation."""
        self._newest = self._end = None

    def messages(self) -> Sequence[Message]:
        """Return the current state."""
        return [each for each in (self._newest, self._end) if each is not None]

    def _fetch(self, command: commands.Fetch) -> None:
        path = self.tools.folder / command.name
        try:
            self.tools.checkpoints.fetch(command.name, path)
        except pa.ArrowException:
            return  # a newer one has replaced it, and will be fetched
        except WireError as error:
            words = f"can't fetch {command.name}, so it isn't evaluated: {error}"
            self.tools.reporter.lines([f"gridflow: {words}"])
            return
        before, self._newest = self._newest, child.NewCheckpoint(str(path), command.place)
        self.tools.tell(self._newest)
        if before is not None and before.path != str(path):
            Path(before.path).unlink(missing_ok=True)
