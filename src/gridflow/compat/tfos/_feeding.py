"""The feeders: Spark tasks that send rows to nodes by way of their agents, and receive results.

A feeder is a task of a separate Spark job. Its rows go the way of `gridflow.JobHandle.feed`
(`gridflow._feed.push`), which also sees to it that no row of a retried task arrives twice, provided
that a partition has the same order each time. All rows of a partition go to one node. If too many
rows wait there, feeders wait, and they end once the program has read what they have sent.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import time
from multiprocessing import AuthenticationError
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyarrow import flight

from gridflow._feed.push.answers import InferenceClient
from gridflow._feed.push.sender import Destination, PartitionSender
from gridflow._wire.receiver import REFUSED, UNWANTED
from gridflow.compat.tfos import _queues, reservation
from gridflow.errors import DataError, GridflowError, RunTimeout, TaskLost

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from gridflow._feed.push.exactly_once import PartitionAttempt

#: A partition is answered as a whole, up to this size.
_ANSWERED_BYTES: Final = 64 << 20
#: What `Superseded` says of an attempt that isn't the newest.
_LATER: Final = re.compile(r"attempt \d+ is over")
_LOOK_SECONDS: Final = 0.2
#: How long a feeder waits for the driver to report why a node is gone.
_EXPLAIN_SECONDS: Final = 20.0


class Feeder:
    """Sends one partition.

    `nodes`: The cluster's nodes; those with an address are fed.
    `feed_timeout`: Feeding fails after this many seconds without progress.
    `qname`: Name of the queue.
    `attempt`: The attempt to send it.
    """

    def __init__(
        self,
        nodes: Sequence[Mapping[str, Any]],
        feed_timeout: float,
        qname: str,
        attempt: PartitionAttempt,
    ) -> None:
        fed = [node for node in nodes if node.get("addr")]
        addresses = tuple(node["addr"] for node in fed)
        self._destination = Destination(
            qname,
            f"{attempt.stage}",
            addresses,
            fed[0]["identity"],
            is_whole=True,
            timeout=feed_timeout,
        )
        self._partition, self._attempt = attempt.partition, attempt.number
        self._patience = feed_timeout
        self._server = nodes[0]["server_addr"], nodes[0]["authkey"]
        self.unwanted = False

    def train(self, batches: Iterable[pa.RecordBatch]) -> int:
        """Send rows until all are read or no more are wanted; return how many nodes have taken."""
        source = _Source(batches)
        with self._explained(source):
            sender = PartitionSender(self._destination, self._partition, self._attempt)
            try:
                if not sender.has_ended:
                    for batch in source:
                        if not sender.send(batch):
                            break
                count = sender.close()
                self.unwanted = sender.has_ended
            finally:
                sender.abort()
            return count
        self.unwanted = True
        return 0

    def infer(self, rows: Iterable[Any]) -> Iterator[Any]:
        """Send rows, and yield a result for each."""
        source = _Source(rows)
        batches = _queues.batches(source, _ANSWERED_BYTES, is_prompt=False)
        first = next(batches, None)
        if first is None:
            return
        got = sent = 0
        with self._explained(source):
            client = self._client()
            try:
                for batch in itertools.chain([first], batches):
                    sent += batch.num_rows
                    answered = client.answered(batch, batch.schema.names, _queues.OBJECTS)
                    got = sent
                    yield from _queues.objects(answered.columns[-1])
                client.finish()
            finally:
                client.close()
            return
        if not got:
            raise GridflowError(
                f"partition {self._partition}: the cluster accepts no more rows: its program has "
                "ended, or called terminate() before it had returned all results."
            )
        raise GridflowError(
            f"partition {self._partition}: the program ended after {got} results for {sent} rows."
        )

    def _client(self) -> InferenceClient:
        try:
            return InferenceClient(
                self._destination, self._partition, self._attempt, self._patience
            )
        except DataError as error:
            raise error.__cause__ or flight.FlightServerError(UNWANTED) from error

    @contextlib.contextmanager
    def _explained(self, source: _Source) -> Iterator[None]:
        """Explain errors of the connection, unless the cluster has ended or wants no more rows."""
        try:
            yield
        except GridflowError:
            raise  # RunTimeout is an OSError, too
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            if source.error is error:
                raise  # from reading the rows
            text = str(error)
            if REFUSED in text:
                raise self._refusal(error, text) from error
            if _LATER.search(text):
                raise TaskLost(
                    f"a later attempt of the same task feeds partition {self._partition}."
                ) from error
            if UNWANTED not in text:
                self._explain(error)

    def _refusal(self, error: BaseException, text: str) -> GridflowError:
        """Return an agent's reason for refusing rows as an error."""
        words = text.partition(REFUSED)[2].partition(" Detail:")[0].rstrip(". ")
        if not isinstance(error, flight.FlightTimedOutError):
            return DataError(f"partition {self._partition}: {words}.")
        what = "read no row" if "read no row" in words else "returned only some results, no more"
        return RunTimeout(
            f"Timeout while feeding partition {self._partition}: the program {what} for "
            f"{self._patience:g} seconds (feed_timeout)."
        )

    def _explain(self, error: BaseException) -> None:
        """Raise the cluster's error, unless it ended without one."""
        give_up = time.monotonic() + _EXPLAIN_SECONDS
        while time.monotonic() < give_up:
            state = _state_of(*self._server)
            if state is None:
                break
            if state["failure"]:
                raise GridflowError(f"the cluster failed:\n{state['failure']}") from error
            if state["finished"]:
                return
            time.sleep(_LOOK_SECONDS)
        raise TaskLost(
            f"partition {self._partition}: the connection to a node of the cluster broke: "
            f"{error or type(error).__name__}"
        ) from error


class _Source:
    """Iterates over rows, and remembers the error if reading fails."""

    def __init__(self, rows: Iterable[Any]) -> None:
        self._rows = iter(rows)
        self.error: BaseException | None = None

    def __iter__(self) -> Iterator[Any]:
        try:
            yield from self._rows
        except Exception as error:
            self.error = error
            raise


def _state_of(address: Sequence[Any], key: bytes) -> dict[str, Any] | None:
    """Return the cluster's state from the driver; None if the driver is unreachable."""
    try:
        client = reservation.Client((address[0], address[1]), key)
    except (OSError, AuthenticationError):
        return None
    with contextlib.closing(client), contextlib.suppress(OSError, EOFError):
        return client.get_state()
    return None
