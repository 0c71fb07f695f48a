"""The agent's side of the coordinator's server."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pyarrow import flight

from gridflow.wire import mutual_tls
from gridflow.wire.identity import SERVER_NAME
from gridflow.wire.transfer import CHUNK_SCHEMA, chunks

if TYPE_CHECKING:
    from pathlib import Path

    from gridflow.wire.identity import Identity


class CoordinatorClient:
    """A connection; safe to use from several threads.

    Parameters
    ----------
    address : str
        ``host:port``.
    identity : Identity
    """

    def __init__(self, address: str, identity: Identity) -> None:
        self._client = mutual_tls.connect(address, identity, SERVER_NAME)

    def call(self, action: str, message: dict[str, Any], timeout: float) -> dict[str, Any]:
        """Send a message and return the answer.

        Raises
        ------
        pyarrow.lib.ArrowException
            When the coordinator can't be reached, or refused.
        """
        return mutual_tls.call(self._client, action, message, timeout)

    def upload(self, path: Path, header: dict[str, Any], offset: int = 0) -> int:
        """Send a file from an offset on; return how many bytes were sent."""
        descriptor = flight.FlightDescriptor.for_command(json.dumps({**header, "offset": offset}))
        writer, _ = self._client.do_put(descriptor, CHUNK_SCHEMA)
        sent = 0
        with writer:
            for batch in chunks(path, offset):
                writer.write_batch(batch)
                sent += len(batch.column(0)[0].as_buffer())
            writer.done_writing()
        return sent

    def download(self, header: dict[str, Any], path: Path) -> None:
        """Fetch a file; it has its name only once it is whole."""
        partial = path.with_name(path.name + ".partial")
        with partial.open("wb") as file:
            for batch in self._client.do_get(flight.Ticket(json.dumps(header))):
                for chunk in batch.data.column(0):
                    file.write(chunk.as_buffer())
        partial.rename(path)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()
