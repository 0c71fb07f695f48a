"""Ports for servers that tests start: none that a connection may get before the server binds it."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import re
import socket
from functools import cache
from pathlib import Path
from typing import Final

_LOWEST: Final = 10_000
_EPHEMERAL: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
#: Test processes that run at the same time never choose the same port, up to this number.
_SLICES: Final = 8


def free_ports(count):
    """Return this many ports that nobody uses.

    The system gives connections, and servers that ask for port 0, ports of its ephemeral range. A
    port chosen there may be gone once the server that it was chosen for has started.
    """
    return list(itertools.islice(filter(_is_free, _own()), count))


@cache
def _own():
    end = int(_EPHEMERAL.read_text().split()[0]) if _EPHEMERAL.exists() else 32_768
    worker = re.sub(r"\D", "", os.environ.get("PYTEST_XDIST_WORKER", "")) or "0"
    ports = list(range(_LOWEST + int(worker) % _SLICES, end, _SLICES))
    random.shuffle(ports)  # another run on this machine has an order of its own
    return itertools.cycle(ports)


def _is_free(port):
    with contextlib.suppress(OSError), socket.create_server(("", port)):
        return True
    return False
