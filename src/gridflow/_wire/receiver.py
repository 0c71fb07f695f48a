"""An agent's own port: an Arrow Flight server to which rows are pushed, with mutual TLS.

It is opened only if the function reads such rows. Rows travel as record batches, each with the
number of its first row, or as the path of a file on the agent's own host. Each batch is
acknowledged once it is on the agent's disk.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, Protocol

import pyarrow as pa
from pyarrow import flight

from gridflow._wire import arrow_flight
from gridflow._wire.arrow_flight import telling_why
from gridflow._wire.identity import AGENT_NAME
from gridflow._wire.messages import read
from gridflow.errors import WireError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gridflow._wire.identity import Identity

__all__ = ["A_FEEDER", "REFUSED", "UNWANTED", "Receiver", "ReceiverClient", "ReceiverHandler"]

#: Prefix of errors that say why rows were refused.
REFUSED: Final = "rows refused: "
#: Why rows were refused, or aren't answered, that nobody needs any more.
UNWANTED: Final = "the function takes no more rows"
#: The sender of rows, for error messages.
A_FEEDER: Final = "a feeder"
_MOST_ROWS: Final = 2**62
#: An agent may take its time to store rows, so there is no time limit. A cut of the network is
#: noticed after two minutes while rows are on their way, else after up to eight: servers close
#: connections that ask more often than every five minutes.
_WATCH: Final = {
    "grpc.keepalive_time_ms": 330_000,
    "grpc.keepalive_timeout_ms": 120_000,
    "grpc.http2.max_pings_without_data": 0,
}


class ReceiverHandler(Protocol):
    """Takes the rows. The server calls it from any thread."""

    def begin_partition(self, header: dict[str, Any]) -> dict[str, Any]:
        """Let a feeder begin."""
        ...

    def put(self, header: dict[str, Any], told: Any, batch: pa.RecordBatch) -> dict[str, Any]:
        """Take rows once there is room; `told` is the number of the first one, or their file."""
        ...

    def settle(self, header: dict[str, Any]) -> dict[str, Any]:
        """Wait until the function has read what has arrived of a partition."""
        ...

    def ask(self, header: dict[str, Any], first: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the function's answers to rows."""
        ...


class Receiver(arrow_flight.JobServer):
    """Serve one agent on one interface, on any free port.

    `host`: The address to bind.
    `identity`: The agents'.
    """

    def __init__(self, host: str, identity: Identity, handler: ReceiverHandler) -> None:
        super().__init__(host, 0, identity)
        self._handler = handler

    def do_action(self, context: Any, action: flight.Action) -> Iterator[flight.Result]:
        """Answer ``begin`` and ``settle``."""
        self.heard(context)
        if action.type not in {"begin", "settle"}:
            raise flight.FlightServerError(
                f"unknown action {action.type!r}; supported: 'begin', 'settle'"
            )
        with telling_why():
            header = read(A_FEEDER, action.body.to_pybytes())
            is_first = action.type == "begin"
            answer = (self._handler.begin_partition if is_first else self._handler.settle)(header)
        yield flight.Result(pa.py_buffer(json.dumps(answer).encode()))

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Take rows, batch by batch."""
        self.heard(context)
        with telling_why():
            header = read(A_FEEDER, descriptor.command)
            for chunk in reader:
                answer = self._handler.put(header, _told(chunk), chunk.data)
                writer.write(pa.py_buffer(json.dumps(answer).encode()))

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Answer rows, batch by batch."""
        self.heard(context)
        has_begun = False
        with telling_why():
            header = read(A_FEEDER, descriptor.command)
            for chunk in reader:
                answer = self._handler.ask(header, place_of(_told(chunk)), chunk.data)
                if not has_begun:
                    writer.begin(answer.schema)
                    has_begun = True
                writer.write_batch(answer)

    # Everything else that Flight offers is refused by the base class: NotImplementedError.


def place_of(told: Any) -> int:
    """Check that a value is the number of a row in its partition, and return it."""
    if type(told) is int and 0 <= told < _MOST_ROWS:
        return told
    raise WireError(f"{A_FEEDER} sent {told!r} instead of a row number.")


def _told(chunk: Any) -> Any:
    """Return a chunk's metadata: the number of its first row, or its file."""
    if chunk.data is None or chunk.app_metadata is None:
        raise WireError(f"{A_FEEDER} sent rows without a row number, or a row number without rows.")
    try:
        return json.loads(chunk.app_metadata.to_pybytes())
    except (ValueError, RecursionError) as error:
        raise WireError(f"{A_FEEDER} sent something that isn't JSON: {error}") from error


class ReceiverClient:
    """A connection to one agent's receiver.

    `address`: ``host:port``.
    """

    def __init__(self, address: str, identity: Identity) -> None:
        self.address = address
        self._client = arrow_flight.connect(address, identity, AGENT_NAME, _WATCH.items())

    def begin(self, header: dict[str, Any], timeout: float) -> dict[str, Any]:
        """Announce a partition; return what the agent knows about it."""
        return arrow_flight.call(self._client, "begin", header, timeout)

    def settle(self, header: dict[str, Any]) -> dict[str, Any]:
        """Wait until the function has read a partition's rows; the agent limits the time."""
        return arrow_flight.call(self._client, "settle", header, None)

    def put(self, header: dict[str, Any], schema: pa.Schema) -> tuple[Any, Any]:
        """Open a stream of rows; return its writer and the reader of acknowledgements."""
        descriptor = flight.FlightDescriptor.for_command(json.dumps(header))
        writer, reader = self._client.do_put(descriptor, schema)
        return writer, reader

    def exchange(self, header: dict[str, Any]) -> tuple[Any, Any]:
        """Open a stream of rows that are answered by rows."""
        descriptor = flight.FlightDescriptor.for_command(json.dumps(header))
        writer, reader = self._client.do_exchange(descriptor)
        return writer, reader

    def close(self) -> None:
        self._client.close()
