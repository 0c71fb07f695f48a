"""A node's port, reserved until the program listens on it."""

from __future__ import annotations

import functools
import os
import socket
from typing import Any

from gridflow.errors import InvalidArgument


class Port:
    """A node's port: the value of ``TENSORFLOW_PORT``, or a free port that is held open.

    TensorFlow's server can listen on the held port because both sockets set ``SO_REUSEPORT``; other
    servers can't.

    `holder`: The socket that holds the port.
    """

    def __init__(self) -> None:
        named = os.environ.get("TENSORFLOW_PORT", "")
        if named and not named.isdigit():
            raise InvalidArgument(f"TENSORFLOW_PORT must be a port such as 2222; it is {named!r}.")
        self.holder: socket.socket | None = None
        self.number = int(named or "0")
        if not named:
            self.holder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            self.holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            self.holder.bind(("", 0))
            self.number = int(self.holder.getsockname()[1])

    def release_when_bound(self) -> None:
        """Release the port as soon as Python code in this process binds it."""
        bind = socket.socket.bind
        number, holder = self.number, self.holder

        @functools.wraps(bind)
        def bind_there(sock: socket.socket, address: Any) -> None:
            if holder is not None and isinstance(address, tuple) and address[1:2] == (number,):
                holder.close()
            bind(sock, address)

        socket.socket.bind = bind_there  # type: ignore[method-assign, assignment]
