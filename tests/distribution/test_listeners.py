"""Who waits for a peer's port before the backend looks for it."""

from __future__ import annotations

import socket
import threading

import pytest

from gridflow._training.groups import base
from suite.waiting import patience


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_it_returns_once_everybody_listens(host):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as first, socket.socket(family) as late:
        for each in (first, late):
            each.bind((host.strip("[]"), 0))
        first.listen()
        addresses = [f"{host}:{each.getsockname()[1]}" for each in (first, late)]
        events = []

        def wait():
            base.await_listeners(addresses, patience())
            events.append("it returns")

        waiting = threading.Thread(target=wait)
        waiting.start()
        first.accept()[0].close()  # it looks
        events.append("all listen")
        late.listen()
        waiting.join(patience())
        assert events == ["all listen", "it returns"]


def test_who_never_listens_is_left_to_the_backend():
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        base.await_listeners([f"127.0.0.1:{nobody.getsockname()[1]}"] * 3, 0.05)
