"""Arrow Flight with mutual TLS: both sides of a job's connections authenticate."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import resource
import socket
import stat
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from pyarrow import flight

from gridflow._spec.network import host_and_port
from gridflow._wire.acceptor import source_of
from gridflow.errors import GridflowError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gridflow._wire.identity import Identity

#: Bytes of an error's text. It travels in gRPC's headers, which have room for 8 KiB, twice.
_LONGEST_ERROR: Final = 2_000


def server_options(host: str, port: int, identity: Identity) -> dict[str, Any]:
    """Return the arguments of a Flight server that accepts only the job's own peers."""
    return {
        "location": f"grpc+tls://{host_and_port(host, port)}",
        "tls_certificates": [(identity.certificate, identity.key)],
        "verify_client": True,
        "root_certificates": identity.authority,
    }


class JobServer(flight.FlightServerBase):  # type: ignore[misc]
    """A Flight server for the job's own peers. Strangers can't exhaust it or this process.

    `host`: The address to bind.
    `port`: 0: any free port.
    """

    def __init__(self, host: str, port: int, identity: Identity) -> None:
        super().__init__(**server_options(host, port, identity))
        try:
            self._doorkeeper = Doorkeeper(self.port)
        except BaseException:
            super().shutdown()
            raise

    def heard(self, context: flight.ServerCallContext) -> None:
        """Note that a peer has called: it may stay."""
        self._doorkeeper.heard(context.peer())

    def shutdown(self) -> None:
        """Stop serving."""
        self._doorkeeper.close()
        super().shutdown()


def connect(
    address: str, identity: Identity, name: str, options: Iterable[tuple[str, int]] = ()
) -> flight.FlightClient:
    """Return a connection to ``host:port``; the server's certificate must have this name.

    `options`: More options of gRPC's.
    """
    return flight.connect(
        f"grpc+tls://{address}",
        tls_root_certs=identity.authority,
        cert_chain=identity.certificate,
        private_key=identity.key,
        override_hostname=name,
        # gRPC takes a proxy from the environment, which seldom reaches executors. `past_proxies` is
        # for channels that aren't gridflow's own.
        generic_options=[("grpc.enable_http_proxy", 0), *options],
    )


def call(
    client: flight.FlightClient, action: str, message: dict[str, Any], timeout: float | None
) -> dict[str, Any]:
    """Send a message and return the answer, within `timeout` seconds if there is a limit."""
    options = flight.FlightCallOptions(timeout=timeout)
    body = json.dumps(message).encode()
    (answer,) = client.do_action(flight.Action(action, body), options)
    return dict(json.loads(answer.body.to_pybytes()))


@contextlib.contextmanager
def telling_why() -> Iterator[None]:
    """Send the error's message to the peer; Flight itself would send only where it was raised."""
    try:
        yield
    except (GridflowError, OSError, UnicodeEncodeError, flight.FlightServerError) as error:
        words = str(error)
        if len(words.encode("utf-8", "replace")) > _LONGEST_ERROR:
            words = f"{words[: _LONGEST_ERROR // 4]}…"
        elif isinstance(error, flight.FlightServerError):
            raise
        raise flight.FlightServerError(words) from error


# Closes strangers' connections to a Flight server, which itself would keep them for two minutes.
#
# gRPC runs the handshakes and doesn't report unfinished ones, but it reports who makes a call. So
# the connections to the server's port are checked regularly. A peer that has made a call may stay.
# Any other has a few seconds, and all of them together may use only part of this process's
# descriptors.

_log = logging.getLogger(__name__)

#: Between two checks, and when there are many strangers.
_LOOK_SECONDS: Final = 1.0
_BUSY_SECONDS: Final = 0.1
#: Time for a peer to make a call. Time during which this process stood still doesn't count.
_PATIENCE: Final = 10.0
#: All strangers together have half of the descriptors: a job's peers come all at once.
_PART: Final = 2
_MOST_DESCRIPTORS: Final = 1 << 16
_LOG_SECONDS: Final = 60.0

Peer = tuple[str, int]


class Doorkeeper:
    """Watches the connections to one port of this process."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._called: dict[Peer, float] = {}
        self._ages: dict[Peer, float] = {}
        self._closed = threading.Event()
        self._last_words = -_LOG_SECONDS
        self._nothing = socket.socket(socket.AF_UNIX)
        # A connection is looked at by a second descriptor, as gRPC may close its own at any moment;
        # and by this one, as there may be no other.
        place = os.dup(self._nothing.fileno())
        # The addresses of IPv4 fit into those of IPv6.
        self._spare = socket.socket(socket.AF_INET6, socket.SOCK_STREAM, 0, fileno=place)
        self._thread = threading.Thread(target=self._run, name="gridflow-doorkeeper", daemon=True)
        self._thread.start()

    def heard(self, peer: str) -> None:
        """Note that a peer, such as ``ipv4:10.0.0.1:40000``, has called: it has the certificate."""
        host, _, port = unquote(peer).partition(":")[2].rpartition(":")
        if port.isdigit():
            self._called[_normal(host.strip("[]")), int(port)] = time.monotonic()

    def close(self) -> None:
        """Stop watching."""
        self._closed.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        pause = _LOOK_SECONDS
        while not self._closed.wait(pause):
            try:
                is_busy = self._look(pause)
            except Exception:  # noqa: BLE001 (whatever it is, the next look may be better)
                is_busy = False
            pause = _BUSY_SECONDS if is_busy else _LOOK_SECONDS
        self._spare.close()
        self._nothing.close()

    def _look(self, passed: float) -> bool:
        """Close strangers' connections; return whether there are many of them."""
        began = time.monotonic()
        there = dict(self._connections())
        for peer, heard in list(self._called.items()):
            if peer not in there and heard < began:
                self._called.pop(peer, None)
        strangers = [peer for peer in there if peer not in self._called]
        self._ages = {peer: self._ages.get(peer, 0.0) + passed for peer in strangers}
        most = _descriptors() // _PART
        leaving = [peer for peer in strangers if self._ages[peer] > _PATIENCE]
        staying = [peer for peer in strangers if self._ages[peer] <= _PATIENCE]
        leaving += self._excess(staying, most)
        for peer in leaving:
            self._hang_up(there[peer], peer)
        return len(strangers) > most // 2

    def _excess(self, strangers: list[Peer], most: int) -> Iterable[Peer]:
        """Yield the connections over the limit: the oldest of the source that has the most."""
        counts = Counter(source_of(host) for host, _ in strangers)
        oldest = sorted(strangers, key=lambda peer: -self._ages[peer])
        for _ in range(len(strangers) - most):
            source = max(counts, key=counts.__getitem__)
            counts[source] -= 1
            peer = next(peer for peer in oldest if source_of(peer[0]) == source)
            oldest.remove(peer)
            yield peer

    def _connections(self) -> Iterator[tuple[Peer, int]]:
        for place in _open_descriptors():
            with contextlib.suppress(OSError):
                if stat.S_ISSOCK(os.fstat(place).st_mode) and (peer := self._peer(place)):
                    yield peer, place

    def _peer(self, place: int) -> Peer | None:
        """Return the peer of a descriptor, if it is a connection to the port."""
        if place in {self._spare.fileno(), self._nothing.fileno()}:
            return None
        os.dup2(place, self._spare.fileno(), inheritable=False)
        try:
            mine, theirs = self._spare.getsockname(), self._spare.getpeername()
            is_ours = isinstance(mine, tuple) and len(mine) > 1 and mine[1] == self._port
            return (_normal(theirs[0]), int(theirs[1])) if is_ours else None
        finally:
            os.dup2(self._nothing.fileno(), self._spare.fileno(), inheritable=False)

    def _hang_up(self, place: int, peer: Peer) -> None:
        with contextlib.suppress(OSError):
            os.dup2(place, self._spare.fileno(), inheritable=False)
            host, port = self._spare.getpeername()[:2]
            # By now the descriptor may be another's.
            if (_normal(host), port) == peer and peer not in self._called:
                self._spare.shutdown(socket.SHUT_RDWR)
        os.dup2(self._nothing.fileno(), self._spare.fileno(), inheritable=False)
        if time.monotonic() - self._last_words > _LOG_SECONDS:
            self._last_words = time.monotonic()
            _log.warning("closed a connection from %s without this job's certificate.", peer[0])


def _normal(host: str) -> str:
    return host.partition("%")[0].removeprefix("::ffff:")


def _descriptors() -> int:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST_DESCRIPTORS if limit == resource.RLIM_INFINITY else min(limit, _MOST_DESCRIPTORS)


def _open_descriptors() -> Iterable[int]:
    try:
        return [int(name) for name in os.listdir("/proc/self/fd")]  # noqa: PTH208 (only names)
    except OSError:  # all descriptors are taken, or this isn't Linux
        return range(_descriptors())
