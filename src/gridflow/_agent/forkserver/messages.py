"""The protocol of a fork server: JSON with descriptors, over a Unix socket."""

from __future__ import annotations

import json
import os
import socket
import struct
from typing import Any, Final

#: What a server forks: the processes of tasks, with their guardians...
TRAINING: Final = "training"
#: ...or the agents of a driver's machine.
AGENT: Final = "agent"
_LENGTH: Final = struct.Struct("!I")
#: Output, channel, and the locks of as many GPUs as a host has.
MOST_DESCRIPTORS: Final = 64
#: Arguments and environment of a process are smaller (execve(2)).
_MOST_BYTES: Final = 16 << 20


class Malformed(Exception):
    """Something other than a message arrived."""


def send(connection: socket.socket, message: dict[str, Any], descriptors: list[int] | None) -> None:
    """Send a message, and the right to use some of this process's descriptors.

    Raises `OSError`: The other side is gone.
    """
    data = json.dumps(message).encode()
    data = _LENGTH.pack(len(data)) + data
    sent = 0
    if descriptors:
        sent = socket.send_fds(connection, [data], descriptors)
    connection.sendall(data[sent:])


def receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Return the next message with its descriptors, which the caller closes; None at the end.

    Raises `Malformed`: It isn't a JSON object, or ends in the middle.
    Raises `OSError`: The other side is gone, or silent for longer than the socket's timeout.
    """
    descriptors: list[int] = []
    try:
        data, descriptors, _, _ = socket.recv_fds(connection, _LENGTH.size, MOST_DESCRIPTORS)
        if not data and not descriptors:
            return None
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
        data += _exactly(connection, _LENGTH.size - len(data))
        message = _decode(connection, *_LENGTH.unpack(data))
    except BaseException:
        for descriptor in descriptors:
            os.close(descriptor)
        raise
    return message, descriptors


def _decode(connection: socket.socket, length: int) -> dict[str, Any]:
    if length > _MOST_BYTES:
        raise Malformed(f"bad message length: {length} bytes")
    try:
        message = json.loads(_exactly(connection, length))
    except (ValueError, RecursionError, MemoryError) as error:
        raise Malformed(str(error)) from error
    if not isinstance(message, dict):
        raise Malformed(f"expected a JSON object; got {type(message).__name__}")
    return message


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        chunk = connection.recv(count - len(data))
        if not chunk:
            raise Malformed("incomplete message")
        data += chunk
    return data
