"""What an agent does with rows beside the training process.

`RowBorrowing`: rows for a rank that got none, lent by the rank that has most, as repeated rows. A
rank without rows can make no step, and with it nobody can. It happens with empty partitions, and
where there are fewer rows than ranks.

`StepGrants`: how many rows the rank has while more arrive, for a function that already trains on
them.

`Backpressure` slows down reading rows while training starts, if the two compete for processors.
Reading rows needs processor time, and so does starting a training process. With too few processors,
a start while rows arrive at full speed takes longer the more rows there are, though it needs only
the first of them. So while tasks of this host wait for a processor, reading pauses now and then,
until the process asks for rows that aren't there yet or has made its first step. Spark waits
meanwhile, as its task isn't read from.
"""

from __future__ import annotations

import threading
import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.ipc

from gridflow._features.base import Feature
from gridflow._feed.store import SpoolReader, SpoolWriter, records
from gridflow._files import procfs
from gridflow._wire import child, commands, reports

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from gridflow._features.base import Tools
    from gridflow._feed.ledger import DatasetCounts
    from gridflow._feed.normalize import FeedOptions
    from gridflow._wire.commands import Command
    from gridflow._wire.messages import Message


#: Enough for some batches that differ.
_MOST_ROWS: Final = 1024


class RowBorrowing(Feature):
    """Lends or borrows rows."""

    def obey(self, command: Command) -> bool:
        """Carry out `Lend` and `Borrow`."""
        match command:
            case commands.Lend():
                self._lend(command.dataset)
            case commands.Borrow():
                self._borrow(command.dataset)
            case _:
                return False
        return True

    def _lend(self, dataset: str) -> None:
        tools = self.tools
        path = tools.folder / f"loan-{dataset}.arrow"
        write_loan(tools.folder / "spool", dataset, path)

        def sent(error: BaseException | None) -> None:
            if error is not None:
                tools.fail("data", f"can't lend rows of {dataset!r}: {error}")

        tools.uploads.file(path, {"kind": "loan", "name": dataset}, sent)

    def _borrow(self, dataset: str) -> None:
        tools, spec = self.tools, self.tools.payload.spec
        path = tools.folder / f"loan-{dataset}.arrow"
        tools.client.download({"kind": "loan", "name": dataset}, path)
        spool = tools.folder / "spool"
        counts = take_loan(spool, dataset, path, spec.feed)
        if spec.parts[tools.rank].serves:
            worker = spec.fed.index(tools.rank)
            records.write(spool, dataset, own_rows=0, worker=worker)
        tools.reporter.report(reports.Spooled({dataset: asdict(counts)}, {}))


def write_loan(spool: Path, dataset: str, path: Path) -> None:
    """Write some rows of a dataset, which has at least one, into a file."""
    batch = next(SpoolReader(spool, dataset).batches()).slice(0, _MOST_ROWS)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as file:
        file.write_batch(batch)


def take_loan(spool: Path, dataset: str, path: Path, options: FeedOptions) -> DatasetCounts:
    """Make the rows of a file the spool of a dataset that had none; return its counts."""
    before = SpoolReader(spool, dataset).counts
    with pa.memory_map(str(path)) as source, SpoolWriter(spool, options) as writer:
        file = pa.ipc.open_file(source)
        for index in range(file.num_record_batches):
            writer.write(dataset, file.get_batch(index))
        rows = writer.close()[dataset].rows
    return replace(before, rows=rows, borrowed=rows)


class StepGrants(Feature):
    """Announces the rank's first rows, later ones if needed, and passes on what all ranks have."""

    def __init__(self, tools: Tools) -> None:
        super().__init__(tools)
        self._lock = threading.Lock()
        self._rows = dict.fromkeys(tools.payload.datasets, 0)
        self._announces = False
        self._newest: commands.Arrived | None = None

    def arrived(self, dataset: str, rows: int) -> None:
        """Note how many rows of a dataset can be read. Called from the spooling thread."""
        with self._lock:
            is_first, self._rows[dataset] = not self._rows[dataset], rows
            if is_first or self._announces:
                self.tools.reporter.report(reports.Arriving(dict(self._rows)))

    def hear(self, message: Message) -> bool:
        """Announce rows from now on, if the function trains on them; others hear of it, too."""
        if isinstance(message, child.RowsAwaited) and message.early:
            with self._lock:
                self._announces = True
                self.tools.reporter.report(reports.Arriving(dict(self._rows)))
        return False

    def obey(self, command: Command) -> bool:
        """Pass on what all ranks have."""
        if not isinstance(command, commands.Arrived):
            return False
        self._newest = command
        self.tools.tell(command)
        return True

    def messages(self) -> Sequence[Message]:
        """Return the current state; rows outlive a process."""
        return [] if self._newest is None else [self._newest]


#: As many bytes come at once in any case: most of them are read by the first steps.
_FREE_BYTES: Final = 1 << 20
#: A process that says nothing of its rows for so long may not need them; others may wait for them.
_MOST_SECONDS: Final = 10.0
#: A rest takes so many times as long as the batch before it, as long as this at least, as Spark
#: makes some batches ahead, and twice as long as the one before: a start waits for other things
#: now and then, and rows that came then would be in its way right after.
_REST: Final = 8
_LEAST_REST_SECONDS: Final = 0.1
#: Processors are too few where somebody had to wait for one in this part of the time.
_CONTENDED: Final = 0.2
_LOOK_SECONDS: Final = 0.01


class Backpressure(Feature):
    """Lets the spooling thread pause, unless the function runs elsewhere and waits for its rows."""

    def __init__(self, tools: Tools) -> None:
        super().__init__(tools)
        self._hurry = threading.Event()
        if not tools.payload.spec.parts[tools.rank].runs_function:
            self._hurry.set()
        self._bytes, self._began, self._last = 0, 0.0, 0.0
        self._rested = _LEAST_REST_SECONDS / 2
        self._looked: tuple[float, float] | None = None
        self._is_contended = False

    def hear(self, message: Message) -> bool:
        """Note that rows are needed now."""
        if isinstance(message, child.RowsAwaited):
            self._hurry.set()
            return True
        return False

    def read(self, size: int) -> None:
        """Pause before the next rows are read."""
        now = time.monotonic()
        self._began = self._began or now
        self._bytes += size
        if now - self._began > _MOST_SECONDS:
            self._hurry.set()
        if self._bytes > _FREE_BYTES and not self._hurry.is_set() and self._contended(now):
            self._rested = max(2 * self._rested, _REST * (now - (self._last or now)))
            self._hurry.wait(min(self._rested, self._began + _MOST_SECONDS - now))
        self._last = time.monotonic()

    def close(self) -> None:
        """End the pause: the job is over."""
        self._hurry.set()

    def _contended(self, now: float) -> bool:
        """Return whether tasks of this host have waited for a processor lately."""
        if self._looked is None or now - self._looked[0] > _LOOK_SECONDS:
            waited = procfs.waited_for_processors()
            if waited is None:  # this kernel doesn't report it
                self._hurry.set()
                return False
            if self._looked is not None:
                at, before = self._looked
                self._is_contended = waited - before > _CONTENDED * (now - at)
            self._looked = now, waited
        return self._is_contended
