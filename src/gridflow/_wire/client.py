"""The agent's client of the coordinator's server."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import flight

from gridflow._wire import arrow_flight
from gridflow._wire.identity import SERVER_NAME
from gridflow._wire.transfer import CHUNK_SCHEMA, chunks, receive

if TYPE_CHECKING:
    from pathlib import Path

    from gridflow._wire.identity import Identity


class CoordinatorClient:
    """A connection to the coordinator. Thread-safe.

    `address`: ``host:port``.
    """

    def __init__(self, address: str, identity: Identity) -> None:
        self._client = arrow_flight.connect(address, identity, SERVER_NAME)

    def call(self, action: str, message: dict[str, Any], timeout: float) -> dict[str, Any]:
        """Send a message and return the answer.

        Raises `pyarrow.lib.ArrowException`: The coordinator can't be reached, or refused the
            message.
        """
        return arrow_flight.call(self._client, action, message, timeout)

    def upload(self, path: Path, header: dict[str, Any], offset: int = 0) -> int:
        """Send a file from an offset on; return how many bytes were sent.

        Raises `OSError`: The file can't be read to its end.
        Raises `pyarrow.lib.ArrowException`: The coordinator can't be reached, or refused the file.
        """
        header = {**header, "offset": offset} if offset else header
        descriptor = flight.FlightDescriptor.for_command(json.dumps(header))
        writer, _ = self._client.do_put(descriptor, CHUNK_SCHEMA)
        sent = 0
        try:
            for batch, told in chunks(path.open("rb"), offset):
                sent += sum(len(chunk.as_buffer()) for chunk in batch.column(0))
                writer.write_with_metadata(batch, told)
            writer.done_writing()
        except pa.ArrowException:
            writer.close()  # it says why
            raise
        except BaseException:
            with contextlib.suppress(pa.ArrowException):  # the incomplete file is refused
                writer.close()
            raise
        writer.close()
        return sent

    def download(self, header: dict[str, Any], path: Path) -> None:
        """Download a file. It gets its name once it is complete.

        Raises `WireError`: It arrived incomplete.
        Raises `pyarrow.lib.ArrowException`: The coordinator can't be reached, or refused the
            request.
        """
        partial = path.with_name(path.name + ".partial")
        try:
            with partial.open("wb") as file:
                receive(self._client.do_get(flight.Ticket(json.dumps(header))), file, "the driver")
            partial.rename(path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise

    def close(self) -> None:
        self._client.close()
