"""What the driver's other threads ask of the streams of a running job."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Final

from gridflow._feed.push import STREAM
from gridflow._feed.push.sender import Destination
from gridflow._wire.clock import Clock
from gridflow.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable

    from gridflow._coordinator.rpc_handler import RpcHandler
    from gridflow._features.checkpoints.store import CheckpointStore
    from gridflow._wire.identity import Identity

_SECTION_SECONDS: Final = 0.02
#: After the feeders are done, for the agents to say how many rows they have.
_ROWS_SECONDS: Final = 10.0


class StreamControl:
    """What those ask the coordinator of a job who push rows into it; from any thread.

    `identity`: That of the agents, once the job has begun.
    """

    def __init__(self, handler: RpcHandler, checkpoints: CheckpointStore) -> None:
        self._handler, self._checkpoints = handler, checkpoints
        self.identity: Identity | None = None

    def destination(self, stream: str) -> Destination | None:
        """Return where rows of a stream can be pushed to; None while some rank isn't ready.

        Without receivers once the stream has ended.
        """
        receivers = self._handler.receivers(stream)
        if receivers is None or self.identity is None:
            return None
        return Destination(stream, uuid.uuid4().hex, receivers, self.identity)

    def is_awaited(self, stream: str) -> bool:
        """Return whether all ranks have asked for rows of a stream."""
        return self._handler.receivers(stream) is not None

    def silent_tasks(self, stream: str) -> list[str]:
        """Return the tasks that take no rows of a stream so far."""
        return self._handler.silent_tasks(stream)

    def part_streams(self) -> str | None:
        """Let rows come in sections; return the label of the last one that a checkpoint covers."""
        self._handler.part_streams()
        return self._checkpoints.label

    def end_section(self, label: str, give_up: Callable[[], bool]) -> bool:
        """Wait until the rows that have come are trained on, and a checkpoint covers them."""
        self._handler.end_section(label)
        clock = Clock()
        give_up_rows = clock.now() + _ROWS_SECONDS
        while not self._handler.has_section(label):
            lacking = self._handler.tasks_without_rows(STREAM)
            if clock.now() > give_up_rows and lacking:
                raise DataError(
                    f"the first micro-batch had no row for {', '.join(lacking)}, which can't begin "
                    "without one. Let it have more rows than there are workers."
                )
            if give_up() or self._handler.receivers(STREAM) == ():
                return False
            time.sleep(_SECTION_SECONDS)
        return True

    def end_streams(self) -> None:
        """Let no more rows be pushed."""
        self._handler.end_streams()

    @property
    def rows_pushed(self) -> int:
        """Rows that have come to the agents."""
        counts = self._handler.notes.ledger.counts
        return sum(each.rows_in for (name, _), each in counts.items() if name == STREAM)
