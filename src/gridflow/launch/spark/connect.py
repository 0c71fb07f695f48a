"""Spark Connect: the coordinator runs in a client that Spark's executors know nothing of."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any, Final

from gridflow.agent.environment import local_address
from gridflow.errors import InvalidArgument, NetworkError
from gridflow.launch.spark.session import classic_context

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa
    from pyspark.sql import SparkSession

#: For a task to open a connection to the coordinator.
_KNOCK_SECONDS: Final = 5.0


def is_connect(spark: SparkSession) -> bool:
    """Return whether it is a client of Spark Connect, without a SparkContext of its own."""
    return classic_context(spark) is None


def client_address(spark: SparkSession) -> str:
    """Return the client's address by which executors may reach it.

    It is the one on the way to the server. To a server on this machine that leads over the loopback
    interface, which executors elsewhere know nothing of: then it is the address of that server's
    own driver, if it really is one of this machine.
    """
    client: Any = spark.client  # type: ignore[operator,unused-ignore]
    address = local_address(f"{client.host}:1")
    drivers = str(spark.conf.get("spark.driver.host", "") or "")
    if drivers and address in {"127.0.0.1", "::1"}:
        return _address_here(drivers) or address
    return address


def _address_here(host: str) -> str | None:
    """Return the address of a name, None unless it can be bound on this machine."""
    try:
        family, _, _, _, place = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, socket.SOCK_STREAM) as tried:
            tried.bind(place)
    except OSError:
        return None
    return str(place[0])


def refuse_unreachable(spark: SparkSession, coordinator: str, num_tasks: int) -> None:
    """Refuse a coordinator that the executors can't connect to, before any agent tries.

    A Spark job of as many tasks as the job has tries it; it needs no gridflow there.

    Raises
    ------
    NetworkError
        With the executors' hosts, and the ways out.
    """
    host, _, port = coordinator.rpartition(":")
    place, seconds = (host.strip("[]"), int(port)), _KNOCK_SECONDS

    def knock(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import socket

        import pyarrow as pa

        problem = ""
        for _ in batches:
            try:
                socket.create_connection(place, seconds).close()
            except OSError as error:
                problem = f"{socket.gethostname()}: {error}"
        yield pa.RecordBatch.from_pydict({"problem": [problem]})

    tried = spark.range(0, num_tasks, 1, num_tasks).mapInArrow(knock, "problem string").collect()
    problems = sorted({row.problem for row in tried} - {""})
    if problems:
        raise NetworkError(
            f"the coordinator runs in this client of Spark Connect, and executors can't connect to "
            f"it at {coordinator} ({'; '.join(problems)}). Say by advertise= by which name or "
            "address they reach this machine (host= or interface=: what is bound, port=: which "
            "ports a firewall lets in), or run the program where they reach it: beside the server."
        )


def refuse_streams(spark: SparkSession) -> None:
    """Refuse to push a streaming DataFrame.

    Raises
    ------
    InvalidArgument
        The session is one of Spark Connect.
    """
    if is_connect(spark):
        raise InvalidArgument(
            "a streaming DataFrame can't be fed over Spark Connect: its micro-batches are handled "
            "in the server, which knows nothing of the job in this client. Feed DataFrames that "
            "end, or run the program with a classic session, beside the server."
        )
