"""How many rows the rank has while more arrive, for a function that already trains on them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from gridflow._features.base import Feature
from gridflow._wire import child, commands, reports

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gridflow._features.base import Tools
    from gridflow._wire.commands import Command
    from gridflow._wire.messages import Message


class StepGrants(Feature):
    """Announces the rank's first rows, later ones if needed, and passes on what all ranks have."""

    def __init__(self, tools: Tools) -> None:
        super().__init__(tools)
        self._lock = threading.Lock()
        self._rows = dict.fromkeys(tools.payload.datasets, 0)
        self._announces = False
        self._newest: commands.Arrived | None = None

    def arrived(self, dataset: str, rows: int) -> None:
        """Note how many rows of a dataset can be read. Called from the spooling thread."""
        with self._lock:
            is_first, self._rows[dataset] = not self._rows[dataset], rows
            if is_first or self._announces:
                self.tools.reporter.report(reports.Arriving(dict(self._rows)))

    def hear(self, message: Message) -> bool:
        """Announce rows from now on, if the function trains on them; others hear of it, too."""
        if isinstance(message, child.RowsAwaited) and message.early:
            with self._lock:
                self._announces = True
                self.tools.reporter.report(reports.Arriving(dict(self._rows)))
        return False

    def obey(self, command: Command) -> bool:
        """Pass on what all ranks have."""
        if not isinstance(command, commands.Arrived):
            return False
        self._newest = command
        self.tools.tell(command)
        return True

    def messages(self) -> Sequence[Message]:
        """Return the current state; rows outlive a process."""
        return [] if self._newest is None else [self._newest]
