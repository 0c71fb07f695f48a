"""Who can connect to whom: the driver, and tasks that run at the same time.

All connections are gridflow's own (`gridflow._wire.mutual_tls`), so what a firewall or a proxy does
to them is what it would do to a job's. Nothing waits without an end.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Mapping  # noqa: TC003  (msgspec reads the fields' types)
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import AuthenticationError
from typing import Any, Final, Self

from gridflow._doctor.host import within
from gridflow._spec.network import host_and_port, local_address
from gridflow._wire.mutual_tls import Connection, Door, knock, listen

#: How long the first task waits for the last one.
GATHER_SECONDS: Final = 30.0
_CONNECT_SECONDS: Final = 10.0
#: For an answer to a message.
_ANSWER_SECONDS: Final = 5.0
_MOST_BYTES: Final = 1 << 20
_AT_ONCE: Final = 16
_READINGS: Final = 5
_KEY_BYTES: Final = 32


@dataclass(frozen=True, kw_only=True)
class Attendance:
    """What a task found out about its connections.

    `executor`: Spark's id of its executor.
    `address`: ``host:port``, where it listened for other tasks.
    `driver`: Why it can't connect to the driver; empty if it can.
    `ahead`, `unsure`: Seconds by which its clock is ahead of the driver's, and how far off that may
        be.
    `met`: Tasks that ran at the same time as this one.
    `peers`: The addresses of other executors, each with why it can't be connected to; empty if it
        can.
    """

    task: int
    executor: str
    address: str = ""
    driver: str = ""
    ahead: float | None = None
    unsure: float | None = None
    met: int = 0
    peers: Mapping[str, str] = field(default_factory=dict)


class Meeting:
    """Where the tasks meet, in the driver.

    `host`: The address to bind.
    `ports`: Those that may be used; 0 is any.
    Raises `OSError`: No port is free, or the address isn't this host's.
    """

    def __init__(self, host: str, ports: range | tuple[int, ...], tasks: int) -> None:
        self.key = secrets.token_bytes(_KEY_BYTES)
        self._tasks = tasks
        self._changed = threading.Condition()
        self._there: dict[int, tuple[str, str]] = {}
        self._left = 0
        self._over: float | None = None
        listener = listen(host, list(ports))
        self.port = int(listener.getsockname()[1])
        self._door = Door(listener, self.key, self._serve)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._door.close()

    def _serve(self, there: Connection) -> None:
        for _ in range(_READINGS):
            _receive(there, _CONNECT_SECONDS)
            _send(there, time.time())
        mine = _receive(there, _CONNECT_SECONDS)
        present = self._join(mine["task"], mine["executor"], mine["address"])
        _send(there, present)
        patience = _patience(len(present))
        _receive(there, patience)
        if present:
            with self._changed:
                self._left += 1
                self._changed.notify_all()
                # Whoever leaves closes its door, to which others may still be on their way.
                self._changed.wait_for(lambda: self._left >= len(present), patience)
        _send(there, None)

    def _join(self, task: int, executor: str, address: str) -> list[tuple[int, str, str]]:
        """Return who is there, once all are or time is up; nobody for one that comes later."""
        with self._changed:
            now = time.monotonic()
            self._over = now + GATHER_SECONDS if self._over is None else self._over
            if now > self._over:
                return []
            self._there[task] = executor, address
            self._changed.notify_all()
            self._changed.wait_for(lambda: len(self._there) == self._tasks, self._over - now)
            self._over = min(self._over, time.monotonic())
            return sorted((number, *place) for number, place in self._there.items())


def attend(host: str, port: int, key: bytes, task: int, executor: str) -> Attendance:
    """Meet the other tasks, in a task.

    `host`, `port`: Of the driver's `Meeting`.
    """
    try:
        # Looking up a name has no time limit of its own.
        there = within(2 * _CONNECT_SECONDS, lambda: knock((host, port), key, _CONNECT_SECONDS))
    except (OSError, AuthenticationError) as error:
        return Attendance(task=task, executor=executor, driver=str(error))
    try:
        ahead, unsure = _compare_clocks(there)
        own = local_address(host_and_port(host, port))
        listener = listen(own)
        address = host_and_port(own, int(listener.getsockname()[1]))
        door = Door(listener, key, _answer)
        try:
            _send(there, {"task": task, "executor": executor, "address": address})
            everyone = _receive(there, GATHER_SECONDS + _ANSWER_SECONDS)
            peers = _others(everyone, task, executor)
            with ThreadPoolExecutor(_AT_ONCE, "gridflow-doctor") as pool:
                tried = dict(zip(peers, pool.map(lambda peer: _try(peer, key), peers), strict=True))
            _send(there, None)
            _receive(there, 2 * _patience(len(everyone)))
        finally:
            door.close()
    except (OSError, EOFError) as error:
        return Attendance(task=task, executor=executor, driver=f"the connection broke: {error}")
    finally:
        there.close()
    return Attendance(
        task=task,
        executor=executor,
        address=address,
        ahead=ahead,
        unsure=unsure,
        met=len(everyone),
        peers=tried,
    )


def _patience(tasks: int) -> float:
    """Return how long a task may take to try all others."""
    return _CONNECT_SECONDS * (2 + tasks // _AT_ONCE)


def _others(everyone: list[tuple[int, str, str]], task: int, executor: str) -> list[str]:
    """Return an address in each other executor, for one task of each executor."""
    first: dict[str, tuple[int, str]] = {}
    for number, name, address in everyone:
        first.setdefault(name, (number, address))
    if first.get(executor, (None,))[0] != task:
        return []
    return [address for name, (_, address) in first.items() if name != executor]


def _compare_clocks(there: Connection) -> tuple[float, float]:
    """Return how far this clock is ahead of the driver's, and half of the fastest round trip."""
    readings = []
    for _ in range(_READINGS):
        before = time.time()
        _send(there, None)
        theirs = float(_receive(there, _ANSWER_SECONDS))
        after = time.time()
        readings.append(((after - before) / 2, (before + after) / 2 - theirs))
    unsure, ahead = min(readings)
    return ahead, unsure


def _try(address: str, key: bytes) -> str:
    host, _, port = address.rpartition(":")
    try:
        there = knock((host.strip("[]"), int(port)), key, _CONNECT_SECONDS)
    except (OSError, AuthenticationError) as error:
        return str(error)
    try:
        _send(there, None)
        _receive(there, _ANSWER_SECONDS)
    except (OSError, EOFError) as error:
        return str(error)
    finally:
        there.close()
    return ""


def _answer(there: Connection) -> None:
    _send(there, _receive(there, _ANSWER_SECONDS))


def _send(there: Connection, message: Any) -> None:
    there.send_bytes(json.dumps(message).encode())


def _receive(there: Connection, seconds: float) -> Any:
    if not there.poll(seconds):
        raise TimeoutError(f"no answer within {seconds:g} s")
    return json.loads(there.recv_bytes(_MOST_BYTES))
