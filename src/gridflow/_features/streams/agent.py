"""Rows pushed to this agent while its training process runs."""

from __future__ import annotations

import functools
import threading
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.ipc
from pyarrow import flight

from gridflow._features.base import Feature
from gridflow._feed.normalize import tensor_specs
from gridflow._feed.push.exactly_once import Superseded
from gridflow._feed.push.located import taken
from gridflow._feed.store.records import encode_specs
from gridflow._feed.store.stream import StreamStore
from gridflow._spec.network import host_and_port, local_address
from gridflow._wire import child, commands, headers, reports
from gridflow._wire.messages import parse
from gridflow._wire.receiver import A_FEEDER, REFUSED, UNWANTED, Receiver
from gridflow.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from gridflow._features.base import Tools
    from gridflow._feed.store.segment import Located
    from gridflow._spec.place import Place
    from gridflow._wire.commands import Command
    from gridflow._wire.messages import Message

#: How often arriving rows are reported to the coordinator; less often in a large group.
_PACE_SECONDS: Final = 0.05
_REPORTS_PER_SECOND: Final = 500
_SHUTDOWN_SECONDS: Final = 2.0


class Streams(Feature):
    """Opens a port when the function first reads pushed rows, and stores what arrives."""

    def __init__(self, tools: Tools) -> None:
        super().__init__(tools)
        self._lock = threading.RLock()
        self._inflows: dict[str, StreamStore] = {}
        #: The schemas that the coordinator knows.
        self._told: dict[str, pa.Schema] = {}
        self._together: set[str] = set()
        self._receiver: Receiver | None = None
        self._address = ""
        self._standing: commands.StreamStanding | None = None
        self._generation = tools.payload.generation
        self._has_ended = False
        self._sections = 0
        self._label: str | None = None
        self._answers = _Answers()
        self._news = threading.Event()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    # What the agent asks -------------------------------------------------------------------------

    def hear(self, message: Message) -> bool:
        """Handle the training process's messages about its streams."""
        match message:
            case child.StreamOpened():
                self._open(message)
            case child.StreamTaken():
                self._inflows[message.name].take(message.rows)
                self._answers.rows_read()
                if message.are_last:
                    self._inflows[message.name].end()
                    self._answers.fail(UNWANTED, message.name)
            case child.StreamMark():
                self._inflows[message.name].mark(message.place, message.rows, message.section)
            case child.StreamResults():
                self._answers.arrived(message)
            case child.Returned():
                for inflow in self._inflows.values():
                    inflow.end()
                self._answers.fail("the function has returned")
                return False
            case _:
                return False
        return True

    def obey(self, command: Command) -> bool:
        """Carry out `StreamStanding`, `Committed` and `EndRows`."""
        match command:
            case commands.StreamStanding(generation=self._generation):
                self._standing = command
                self._tell()
            case commands.StreamStanding():
                pass  # of a generation that is over
            case commands.Committed(generation=self._generation):
                for inflow in self._inflows.values():
                    inflow.committed(command.place)
            case commands.Committed():
                pass
            case commands.EndRows():
                self._end(command)
            case _:
                return False
        return True

    def forget(self, generation: int, resume: Place | None) -> None:
        """Start a generation with the rows that are left of the previous one."""
        with self._lock:
            if generation != self._generation:
                self._generation, self._standing = generation, None
                for inflow in self._inflows.values():
                    lost = inflow.begin_generation(resume)
                    if lost:
                        self._say_lost(inflow.name, lost)
                    if not self._has_ended:
                        inflow.open()
                self._answers.fail("the function was restarted")
                if self._inflows or self._has_ended:
                    self._report()

    def messages(self) -> Sequence[Message]:
        """Return the current state; rows outlive a process."""
        return [self._known()] if self._inflows or self._has_ended else []

    def close(self) -> None:
        """Release all feeders, and close the port."""
        self._closed.set()
        self._news.set()
        for inflow in self._inflows.values():
            inflow.close()
        self._answers.fail("the job has ended")
        if self._thread is not None:
            self._thread.join()
        if self._receiver is not None:
            # A feeder that waits for its own rows keeps its call open, and is left alone.
            shutdown = threading.Thread(target=self._receiver.shutdown, daemon=True)
            shutdown.start()
            shutdown.join(_SHUTDOWN_SECONDS)

    # What feeders ask, from the receiver's threads -----------------------------------------------

    def begin_partition(self, header: dict[str, Any]) -> dict[str, Any]:
        """Let a feeder begin a partition."""
        rows = _parsed(header)
        return _told(self._inflow(rows).begin, rows.feed, rows.partition, rows.attempt)

    def settle(self, header: dict[str, Any]) -> dict[str, Any]:
        """Wait until the function has read what has arrived of a partition."""
        rows = _parsed(header)
        key = rows.feed, rows.partition, rows.attempt
        return _told(self._inflow(rows).settle, *key, rows.timeout or None)

    def put(self, header: dict[str, Any], told: Any, batch: pa.RecordBatch) -> dict[str, Any]:
        """Take rows once there is room; from their file, if this host sees it."""
        first, rows = taken(told, batch)
        return {"unseen": True} if rows is None else self._put(_parsed(header), first, rows)

    def _put(
        self,
        header: headers.RowsHeader,
        first: int,
        rows: pa.RecordBatch | Located,
        asked: str | None = None,
    ) -> dict[str, Any]:
        key = header.feed, header.partition, header.attempt
        limit = header.timeout or None
        return _told(self._inflow(header).put, *key, first, rows, asked=asked, timeout=limit)

    def ask(self, header: dict[str, Any], first: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the function's answers to rows."""
        told = _parsed(header)
        inflow = self._inflow(told)
        where = f"partition {told.partition}, rows {first} to {first + batch.num_rows - 1}"
        with self._answers.asking() as number_of:
            _, number, _ = inflow.segments
            number_of((told.stream, number), where)
            answer = self._put(told, first, batch, asked=where)
            if answer["ended"]:
                raise flight.FlightServerError(f"{where}: {UNWANTED}")
        return self._answers.wait((told.stream, number), told.timeout)

    def _inflow(self, header: headers.RowsHeader) -> StreamStore:
        found = self._inflows.get(header.stream)
        if found is None:
            raise flight.FlightServerError(f"unknown stream: {header.stream!r}")
        return found

    # ---------------------------------------------------------------------------------------------

    def _say_lost(self, name: str, rows: int) -> None:
        words = f"{rows:,} rows of {name!r} taken since the checkpoint aren't fed again"
        self.tools.reporter.lines([f"gridflow: {words}"])

    def _open(self, opened: child.StreamOpened) -> None:
        name, together = opened.name, opened.together
        with self._lock:
            if name not in self._inflows:
                self._inflows[name] = self._make(name, as_sent=opened.as_sent)
            self._inflows[name].needs(opened.batch_size)
            if together:
                self._together.add(name)
            if self._receiver is None:
                self._listen()
            self.tools.reporter.report(reports.Receiving(name, self._address, together))
            self._report()
        self._tell()

    def _make(self, name: str, *, as_sent: bool) -> StreamStore:
        spec = self.tools.payload.spec
        folder = self.tools.folder / "streams" / name
        keeps = spec.training.checkpoint_every is not None
        limit = spec.hosts.spool.limit_in_bytes
        options = None if as_sent else spec.feed
        inflow = StreamStore(name, folder, options, limit, self._news.set, keeps=keeps)
        if self._label is not None:
            inflow.begin_with(self._sections)
        if self._has_ended:
            inflow.end()
        return inflow

    def _listen(self) -> None:
        payload = self.tools.payload
        host = local_address(payload.coordinator)
        self._receiver = Receiver(host, payload.identity, self)
        self._address = host_and_port(host, self._receiver.port)
        self._thread = threading.Thread(target=self._announce, name="gridflow-streams")
        self._thread.start()

    def _announce(self) -> None:
        """Report arrived rows, but not too often."""
        pace = max(_PACE_SECONDS, len(self.tools.payload.spec.tasks) / _REPORTS_PER_SECOND)
        while True:
            self._news.wait()
            if self._closed.is_set():
                return
            self._news.clear()
            with self._lock:
                self._report()
            self._tell()
            self._closed.wait(pace)

    def _end(self, command: commands.EndRows) -> None:
        with self._lock:
            self._sections, self._label = command.sections, command.label
            self._has_ended = command.are_all
            for inflow in self._inflows.values():
                if command.label is not None:
                    inflow.end_sections(command.sections)
                if command.are_all:
                    inflow.end()
            if not self._closed.is_set():
                self._report()
        self._tell()

    def _report(self) -> None:
        schemas = {name: inflow.schema for name, inflow in self._inflows.items()}
        news = {
            name: s for name, s in schemas.items() if s is not None and s != self._told.get(name)
        }
        self._told.update(news)
        self.tools.reporter.report(
            reports.Streamed(
                self._generation,
                {name: inflow.rows for name, inflow in self._inflows.items()},
                {name: inflow.first_section for name, inflow in self._inflows.items()},
                {
                    name: [list(each) for each in inflow.ends.items()]
                    for name, inflow in self._inflows.items()
                },
                self._has_ended,
                {name: asdict(inflow.counts) for name, inflow in self._inflows.items()},
                {name: encode_specs(tensor_specs(schema)) for name, schema in news.items()},
            )
        )

    def _tell(self) -> None:
        with self._lock:
            self.tools.tell(self._known())

    def _known(self) -> child.StreamNews:
        standing = self._standing
        if standing is None:
            standing = commands.StreamStanding(self._generation, {}, {}, {}, {}, {})
        section, certain = dict(standing.section), dict(standing.certain)
        counts, previous = dict(standing.counts), dict(standing.previous)
        repeats = dict(standing.repeats)
        first, segments, skip, before, begin = {}, {}, {}, {}, {}
        for name, inflow in self._inflows.items():
            first[name], segments[name], skip[name] = inflow.segments
            before[name], begin[name] = inflow.before, inflow.first_section
            if name not in self._together:
                ends = inflow.ends
                now = max(ends, default=begin[name] - 1) + 1
                base = ends[now - 1] if now > begin[name] else 0
                section[name], certain[name] = now, inflow.rows - base
                repeats[name] = True
                if self._has_ended:
                    counts[name] = [certain[name]]
                if now > begin[name]:
                    start = ends[now - 2] if now - 1 > begin[name] else 0
                    previous[name] = [base - start]
        return child.StreamNews(
            first=first,
            segments=segments,
            skip=skip,
            before=before,
            begin=begin,
            section=section,
            certain=certain,
            counts=counts,
            previous=previous,
            repeats=repeats,
            label=self._label,
            ended=self._has_ended,
            address=self._address,
        )


def _parsed(header: dict[str, Any]) -> headers.RowsHeader:
    return parse(A_FEEDER, "rows", header, headers.RowsHeader)


def _told(work: Callable[..., dict[str, Any]], *args: Any, **kwargs: Any) -> dict[str, Any]:
    """Return what a store says, and raise its errors as those that a feeder tells apart."""
    try:
        return work(*args, **kwargs)
    except Superseded as error:
        raise flight.FlightCancelledError(str(error)) from error
    except TimeoutError as error:
        raise flight.FlightTimedOutError(f"{REFUSED}{error}") from error
    except DataError as error:
        raise flight.FlightServerError(f"{REFUSED}{error}") from error


class _Answers:
    """The function's answers, by stream and segment of rows."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._one_at_a_time = threading.Lock()
        self._asked: dict[tuple[str, int], str] = {}
        self._found: dict[tuple[str, int], pa.RecordBatch | str] = {}
        self._reads = 0

    def asking(self) -> _Asking:
        """Return a context in which exactly these rows become the next segment."""
        return _Asking(self._one_at_a_time, self._ask)

    def _ask(self, segment: tuple[str, int], where: str) -> None:
        with self._changed:
            self._asked[segment] = where

    def arrived(self, message: child.StreamResults) -> None:
        from pathlib import Path

        found = _read(Path(message.path))
        segment = message.name, message.segment
        with self._changed:
            if segment in self._asked:
                self._found[segment] = found
            self._changed.notify_all()

    def rows_read(self) -> None:
        """Note that the function goes on."""
        with self._changed:
            self._reads += 1
            self._changed.notify_all()

    def wait(self, segment: tuple[str, int], timeout: float) -> pa.RecordBatch:
        """Wait for the answer to a segment, at most some seconds since a row was read."""

        def is_news(reads: int) -> bool:
            return segment in self._found or self._reads > reads

        with self._changed:
            while segment not in self._found:
                if not self._changed.wait_for(functools.partial(is_news, self._reads), timeout):
                    break
            found = self._found.pop(segment, None)
            where = self._asked.pop(segment)
        if found is None:
            raise flight.FlightTimedOutError(
                f"{REFUSED}{where}: no answer within {timeout:g} seconds. Does the function call "
                "ctx.results() for each batch? Give it more time with infer(timeout=…)."
            )
        if isinstance(found, str):
            raise flight.FlightServerError(f"{where}: no answer, {found}")
        return found

    def fail(self, why: str, stream: str | None = None) -> None:
        """Tell all who wait, or those of one stream, that no answer will come."""
        with self._changed:
            waiting = self._asked.keys() - self._found.keys()
            self._found |= {each: why for each in waiting if stream in {None, each[0]}}
            self._changed.notify_all()


class _Asking:
    def __init__(self, lock: threading.Lock, ask: Any) -> None:
        self._lock, self._ask = lock, ask

    def __enter__(self) -> Any:
        self._lock.acquire()
        return self._ask

    def __exit__(self, *error: object) -> None:
        self._lock.release()


def _read(path: Path) -> pa.RecordBatch:
    with pa.OSFile(str(path), "rb") as source:
        batch = pa.ipc.open_file(source).get_batch(0)
    path.unlink(missing_ok=True)
    return batch
