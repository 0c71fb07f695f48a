"""Spark Connect: the coordinator runs in a client, whose address Spark's executors don't know."""

from __future__ import annotations

import socket
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from gridflow._launch.spark import errors
from gridflow._launch.spark.session import (
    cancel,
    classic_context,
    forget_tag,
    tag_this_thread,
)
from gridflow._spec.network import local_address
from gridflow.errors import ClientUnreachable, InvalidArgument, JobCancelled, StartTimeout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

#: Time for a task to connect to the coordinator.
_KNOCK_SECONDS: Final = 5.0
_LOOK_SECONDS: Final = 0.5


def is_connect(spark: SparkSession) -> bool:
    """Return whether it is a Spark Connect client, without its own SparkContext."""
    return classic_context(spark) is None


def client_address(spark: SparkSession) -> str:
    """Return the client's address at which executors may reach it.

    This is the address on the route to the server. For a server on this machine that would be the
    loopback address, which executors elsewhere can't use. Then it is the address of the server's
    own driver, if that is an address of this machine.
    """
    client: Any = spark.client  # type: ignore[operator,unused-ignore]
    address = local_address(f"{client.host}:1")
    drivers = str(spark.conf.get("spark.driver.host", "") or "")
    if drivers and address in {"127.0.0.1", "::1"}:
        return _address_here(drivers) or address
    return address


def _address_here(host: str) -> str | None:
    """Return the address of a name if it can be bound on this machine, otherwise None."""
    try:
        family, _, _, _, place = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, socket.SOCK_STREAM) as tried:
            tried.bind(place)
    except OSError:
        return None
    return str(place[0])


def refuse_unreachable(spark: SparkSession, coordinator: str, num_tasks: int) -> None:
    """Refuse a coordinator that executors can't connect to, before any agent tries.

    A Spark job with the same number of tasks tries to connect; it needs no gridflow there.

    Raises `ClientUnreachable`: With the executors' hosts, and how to fix it.
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
        raise ClientUnreachable(
            f"the coordinator runs in this Spark Connect client, and executors can't connect to "
            f"it at {coordinator} ({'; '.join(problems)}). Set Network(advertise=…) to a name or "
            "address at which they can reach this machine (host= or interface= sets what is "
            "bound, port= the ports that a firewall must allow), or run the program where they "
            "can reach it: beside the server."
        )


def refuse_streams(spark: SparkSession) -> None:
    """Refuse to push a streaming DataFrame.

    Raises `InvalidArgument`: The session is a Spark Connect session.
    """
    if is_connect(spark):
        raise InvalidArgument(
            "a streaming DataFrame can't be fed over Spark Connect: its micro-batches are handled "
            "in the server, which doesn't know the job in this client. Feed batch DataFrames, "
            "or run the program with a classic session, beside the server."
        )


class WholeJob:
    """A job that is one Spark job, including the coordinator; its rows are the job's files.

    `start_timeout`: Seconds without a running task after which it is ended.
    `has_data`: Whether Spark computes the user's rows.
    """

    def __init__(
        self,
        spark: SparkSession,
        tag: str,
        start_timeout: float,
        num_tasks: int,
        *,
        has_data: bool,
    ) -> None:
        self._has_data, self._num_tasks = has_data, num_tasks
        self._spark, self._tag, self._limit = spark, tag, start_timeout
        self._alive = time.monotonic()
        self._ended = threading.Event()
        self._is_cancelled = self._is_late = False

    def rows(self, make_frame: Callable[[], DataFrame]) -> Iterator[Any]:
        """Yield the rows of a DataFrame, in a job that can be cancelled.

        Raises `GridflowError`: Spark failed.
        Raises `StartTimeout`: Its tasks don't start.
        Raises `JobCancelled`: After `cancel`.
        """
        watcher = threading.Thread(target=self._watch, name=f"{self._tag}-watch", daemon=True)
        handler: Any = self._take_note  # Spark takes functions, though its types name a class
        self._spark.registerProgressHandler(handler)
        tag_this_thread(self._spark, self._tag)
        watcher.start()
        try:
            yield from make_frame().toLocalIterator()
        except Exception as caught:
            _, _, error = errors.explain(
                caught,
                self._num_tasks,
                has_data=self._has_data,
                was_cancelled=self._was_ended,
                agents_ran=False,
            )
            if self._is_late:
                raise StartTimeout(
                    f"no task of the job ran for {self._limit:g} seconds (start_timeout). All of "
                    f"them must run at the same time. The server's Spark UI shows what uses "
                    f"the slots."
                ) from caught
            if error is None:
                raise JobCancelled(f"{self._tag} was cancelled.") from caught
            raise error from caught
        finally:
            self._ended.set()
            forget_tag(self._spark, self._tag)
            self._spark.removeProgressHandler(handler)
            watcher.join()

    @property
    def _was_ended(self) -> bool:
        return self._is_cancelled or self._is_late

    def cancel(self) -> None:
        """End it; return at once."""
        self._is_cancelled = True

    def _take_note(
        self,
        stages: object = None,  # noqa: ARG002 (what pyspark calls it with)
        inflight_tasks: int = 0,
        operation_id: object = None,  # noqa: ARG002
        done: bool = False,  # noqa: ARG002
    ) -> None:
        if inflight_tasks:
            self._alive = time.monotonic()

    def _watch(self) -> None:
        while not self._ended.wait(_LOOK_SECONDS):
            self._is_late = self._is_late or time.monotonic() - self._alive > self._limit
            if self._was_ended:  # again, until it is: the job may not have been there
                cancel(self._spark, self._tag)
