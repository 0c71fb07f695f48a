"""How both sides of a job's connections show who they are: Arrow Flight with mutual TLS."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pyarrow import flight

from gridflow.spec.network import host_and_port
from gridflow.wire.doorkeeper import Doorkeeper

if TYPE_CHECKING:
    from gridflow.wire.identity import Identity


def server_options(host: str, port: int, identity: Identity) -> dict[str, Any]:
    """Return what a Flight server is made with that listens to the job's own peers alone."""
    return {
        "location": f"grpc+tls://{host_and_port(host, port)}",
        "tls_certificates": [(identity.certificate, identity.key)],
        "verify_client": True,
        "root_certificates": identity.authority,
    }


class JobServer(flight.FlightServerBase):  # type: ignore[misc]
    """A Flight server for the job's own peers; strangers neither fill it nor this process.

    Parameters
    ----------
    host : str
        The address to bind.
    port : int
        0: any free one.
    identity : Identity
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
        """Serve no more."""
        self._doorkeeper.close()
        super().shutdown()


def connect(address: str, identity: Identity, name: str) -> flight.FlightClient:
    """Return a connection to ``host:port``, if the server's certificate has this name."""
    return flight.connect(
        f"grpc+tls://{address}",
        tls_root_certs=identity.authority,
        cert_chain=identity.certificate,
        private_key=identity.key,
        override_hostname=name,
    )


def call(
    client: flight.FlightClient, action: str, message: dict[str, Any], timeout: float
) -> dict[str, Any]:
    """Send a message within some seconds, and return the answer."""
    options = flight.FlightCallOptions(timeout=timeout)
    body = json.dumps(message).encode()
    (answer,) = client.do_action(flight.Action(action, body), options)
    return dict(json.loads(answer.body.to_pybytes()))
