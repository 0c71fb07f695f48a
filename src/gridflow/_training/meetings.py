"""Where the ranks wait for one another, and tell one another values: through the driver.

So it works under every strategy and backend, whatever is imported and wherever the ranks stand in
their collectives; and who never comes is known by name.
"""

from __future__ import annotations

import base64
import threading
from typing import TYPE_CHECKING, Any, Final

from gridflow._spec.options import seconds
from gridflow._wire import commands, ranks, values
from gridflow.errors import BarrierTimeout, BrokenBarrier, GridflowError

if TYPE_CHECKING:
    from gridflow._training.process import TaskProcess

#: For the driver to say who has not come.
_ANSWER_SECONDS: Final = 10.0


class MeetingClient:
    """The meetings of this process.

    Parameters
    ----------
    process : TaskProcess
    """

    def __init__(self, process: TaskProcess) -> None:
        self._process, self._members = process, process.members
        self._changed = threading.Condition()
        self._held: dict[int, commands.Met] = {}
        self._number = 0
        #: Whether the process waits in one.
        self.is_waiting = False
        process.inbox.listen(commands.Met, self._take)
        process.inbox.meets = lambda: self.is_waiting

    def hold(self, operation: str, value: Any, timeout: float | None) -> list[Any]:
        """Wait for the ranks, and return what was told: each rank's value, or the chief's alone.

        Raises
        ------
        BrokenBarrier
            A rank will never come, or is elsewhere.
        BarrierTimeout
            One didn't come in time.
        """
        if not self._members:
            raise GridflowError(
                f"ctx.{operation}() is for the tasks that train by the function; this is "
                f"{self._process.task}."
            )
        limit = self._process.spec.deadlines.step or None
        if timeout is not None:
            limit = seconds("timeout", timeout)
        most = min(values.MOST_BYTES, values.MOST_TOGETHER // self._members)
        packed = values.pack(value, most if operation == "all_gather" else values.MOST_BYTES)
        if self._members == 1:
            return [values.unpack(packed)]
        self._number += 1
        told = self._wait(operation, packed, limit)
        return [values.unpack(base64.b64decode(each)) for each in told.values]

    def _wait(self, operation: str, packed: bytes, limit: float | None) -> commands.Met:
        number, channel = self._number, self._process.channel
        is_late = False
        self.is_waiting = True
        try:
            channel.send(ranks.Meet(number, operation, base64.b64encode(packed).decode()))
            told = self._told(number, limit)
            if told is None:
                is_late = True
                channel.send(ranks.MeetingGivenUp(number))
                told = self._told(number, _ANSWER_SECONDS)
        finally:
            self.is_waiting = False
        if told is not None and not told.problem:
            return told
        problem = "the driver doesn't answer" if told is None else told.problem
        words = f"ctx.{operation}(), the {_ordinal(number)} meeting of this rank"
        if is_late:
            raise BarrierTimeout(f"{words}, was not held in {limit:g} seconds: {problem}.")
        raise BrokenBarrier(f"{words}, can't be held: {problem}.")

    def _told(self, number: int, limit: float | None) -> commands.Met | None:
        with self._changed:
            self._changed.wait_for(lambda: number in self._held, limit)
            return self._held.pop(number, None)

    def _take(self, told: commands.Met) -> None:
        with self._changed:
            self._held[told.number] = told
            self._changed.notify_all()


def _ordinal(number: int) -> str:
    endings = {1: "st", 2: "nd", 3: "rd"}
    teens = range(11, 14)
    return f"{number}{'th' if number % 100 in teens else endings.get(number % 10, 'th')}"
