"""The agent's messages to the training process, received in a separate thread."""

from __future__ import annotations

import sys
import threading
import traceback
from typing import TYPE_CHECKING, Any, TypeVar, cast

from gridflow._keras.patches.private_parts import COLLECTIVE_FILE, WAITING_FILES
from gridflow._training import output
from gridflow._wire.child import Leave
from gridflow._wire.commands import Inspect
from gridflow._wire.messages import Message
from gridflow._wire.reports import Stack
from gridflow.errors import WireError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from gridflow._keras.due import Due
    from gridflow._wire.channel import Channel

M = TypeVar("M", bound=Message)


class Inbox:
    """The agent's messages by kind. It answers inspections by itself."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._messages: dict[type[Message], Message] = {}
        self._changed = threading.Condition()
        #: Whether the process exits as soon as it is told to leave, whatever its main thread does:
        #: a server's ``join`` never returns.
        self.leaves_at_once = False
        #: Whether the process is waiting for the other ranks, outside of any step.
        self.meets: Callable[[], bool] = lambda: False
        #: The steps that are due, if this task runs any.
        self.due: Due | None = None
        self._listeners: dict[type[Message], Callable[[Any], None]] = {}
        self._main = threading.main_thread().ident
        threading.Thread(target=self._read, name="gridflow-inbox", daemon=True).start()

    def listen(self, kind: type[M], listener: Callable[[M], None]) -> None:
        """Call a listener for each message of a kind, in the thread that reads them.

        If one has come already, the last one, at once.
        """
        with self._changed:
            self._listeners[kind] = listener
            missed = self._messages.pop(kind, None)
        if missed is not None:
            listener(cast("M", missed))

    def wait(self, kind: type[M]) -> M:
        """Wait for a message; if none will come, the agent ends this process."""
        with self._changed:
            self._changed.wait_for(lambda: kind in self._messages)
            return cast("M", self._messages[kind])

    def latest(self, kind: type[M]) -> M | None:
        """Return the last message of a kind, or None."""
        with self._changed:
            return cast("M | None", self._messages.get(kind))

    def wait_for(self, condition: Callable[[], bool], seconds: float | None = None) -> bool:
        """Wait for messages until a condition holds; return False if it times out."""
        with self._changed:
            return self._changed.wait_for(condition, seconds)

    def look_again(self) -> None:
        """Let those who wait for a condition check it: it isn't about messages alone."""
        with self._changed:
            self._changed.notify_all()

    def take(self, kind: type[M]) -> M | None:
        """Return and remove a message, or return None."""
        with self._changed:
            return cast("M | None", self._messages.pop(kind, None))

    def wait_for_one_of(self, kinds: tuple[type[Message], ...]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: any(kind in self._messages for kind in kinds))

    def _read(self) -> None:
        try:
            for message in self._channel.receive():
                if isinstance(message, Inspect) and not message.profile:
                    self._inspect()
                    continue
                if isinstance(message, Leave) and self.leaves_at_once:
                    output.leave(0)
                with self._changed:
                    listener = self._listeners.get(type(message))
                    if listener is None:
                        self._messages[type(message)] = message
                        self._changed.notify_all()
                if listener is not None:
                    listener(message)
        except WireError as error:
            output.write("stderr", f"gridflow: {error}\n")
        output.leave(1)  # without the agent, nobody can use a result

    def _inspect(self) -> None:
        frames = sys._current_frames()  # noqa: SLF001 (as debuggers do)
        frame: FrameType | None = frames.pop(self._main or 0, None)
        stack = "".join(traceback.format_stack(frame)) if frame is not None else ""
        frames.pop(threading.get_ident())
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        threads = {
            f"{names.get(thread, 'not of Python')} ({thread})": "".join(traceback.format_stack(its))
            for thread, its in frames.items()
        }
        innermost = frame.f_code.co_filename if frame is not None else ""
        in_collective = COLLECTIVE_FILE in stack
        waiting = any(part in innermost for part in WAITING_FILES) or in_collective or self.meets()
        in_step, idle = (False, None) if self.due is None else (self.due.in_step, self.due.idle)
        self._channel.send(Stack(stack, waiting, in_step or in_collective, idle, threads))
