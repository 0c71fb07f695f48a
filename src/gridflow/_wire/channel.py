"""The channel between an agent and its training process: JSON lines over a pair of sockets.

The agent creates the pair and the child inherits one end. It needs no port and no name in a file
system, and it closes by itself when either side dies.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from typing import TYPE_CHECKING, Final

from gridflow._wire.child import FROM_CHILD, TO_CHILD

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gridflow._wire.messages import Family, Message

#: Tells the child which of its file descriptors is the channel.
CHANNEL_VARIABLE: Final = "GRIDFLOW_CHANNEL_FD"

#: Tells the training process which agent supervises it: a forked one has another parent.
AGENT_VARIABLE: Final = "GRIDFLOW_AGENT_PID"

#: Set where TensorFlow will certainly be used: its import then overlaps the wait for the others.
PRELOAD_VARIABLE: Final = "GRIDFLOW_PRELOAD"


class Channel:
    """One end of the channel.

    `end`: A connected stream socket. This object owns it.
    `sends`, `receives`: The messages that this end sends and receives.
    """

    def __init__(
        self, end: socket.socket, sends: Family[Message], receives: Family[Message]
    ) -> None:
        self._socket, self._sends, self._receives = end, sends, receives
        self._lock = threading.Lock()

    @classmethod
    def pair(cls) -> tuple[Channel, socket.socket]:
        """Return the agent's end, and the socket that the child is to inherit."""
        ours, theirs = socket.socketpair()
        return cls(ours, TO_CHILD, FROM_CHILD), theirs

    @classmethod
    def inherited(cls, descriptor: int) -> Channel:
        """Return the child's end."""
        end = socket.socket(fileno=descriptor)
        end.set_inheritable(False)  # not for what the training function starts
        return cls(end, FROM_CHILD, TO_CHILD)

    def send(self, message: Message) -> bool:
        """Send a message; return False if the other side has closed the channel."""
        line = json.dumps(self._sends.encode(message)).encode() + b"\n"
        try:
            with self._lock:
                self._socket.sendall(line)
        except OSError:
            return False
        return True

    def receive(self) -> Iterator[Message]:
        """Yield messages until the other side closes the channel.

        Raises `WireError`: Something other than a message came in.
        """
        try:
            with self._socket.makefile("rb") as file:
                for line in file:
                    if line.endswith(b"\n"):  # else the sender died in the middle of it
                        yield self._receives.read(line)
        except OSError:
            return

    def close(self) -> None:
        """Close this end; a thread in `receive` returns."""
        with contextlib.suppress(OSError):  # the other side was faster
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
