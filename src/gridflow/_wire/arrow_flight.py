"""Arrow Flight with mutual TLS: both sides of a job's connections authenticate."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any, Final

from pyarrow import flight

from gridflow._spec.network import host_and_port
from gridflow._wire.doorkeeper import Doorkeeper
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
