"""Epochs that begin before all rows have arrived: equal steps, exact accounts, no dead ends."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridflow._features.rows import agent as step_grants
from gridflow._features.rows.driver import LaunchRows, RowsPhase, SendAll, SendTo
from gridflow._feed.dataset.epochs import EpochSource
from gridflow._feed.dataset.source import source_of
from gridflow._feed.ledger import DatasetCounts, EpochRecord, Ledger
from gridflow._feed.plan.epochs import EpochCounter, steps_for
from gridflow._feed.plan.grants import ArrivingGrant, Standing, first_plan, full_steps, granted
from gridflow._feed.selection import select
from gridflow._feed.store import SpoolReader, SpoolWriter
from gridflow._wire import child, commands, reports
from gridflow.errors import DataError, SchemaError

TAILS = ("spread", "repeat", "drop")
counts_of_ranks = st.lists(st.integers(1, 60), min_size=1, max_size=4)


def chunks_of(rows, data):
    """Return sizes of chunks that have so many rows together."""
    chunks = []
    while sum(chunks) < rows:
        chunks.append(data.draw(st.integers(1, rows - sum(chunks))))
    return chunks


def fed(plan, chunk_rows):
    """Return the numbers of the rows of each batch of a plan."""
    starts = np.cumsum([0, *chunk_rows])
    batches = []
    for window in plan.windows():
        assert window.first_batch == len(batches)
        rows = [
            row
            for piece in window.pieces
            for row in range(starts[piece.chunk] + piece.start, starts[piece.chunk] + piece.stop)
        ]
        for size in window.batch_rows:
            batches.append(rows[:size])
            rows = rows[size:]
        assert not rows
    return batches


@pytest.mark.slow
@given(counts_of_ranks, st.integers(1, 9), st.integers(1, 3), st.data())
def test_the_first_epoch_has_the_steps_of_any_other_and_each_row(counts, size, replicas, data):
    for tail in TAILS:
        try:
            steps = steps_for(counts, size * replicas, tail)
        except DataError:
            assert tail == "drop"
            continue
        for rows in counts:
            chunk_rows = chunks_of(rows, data)
            plan = first_plan(
                chunk_rows, counts, size * replicas, tail, replicas=replicas, window_rows=7
            )
            batches = fed(plan, chunk_rows)
            assert plan.steps == len(batches) == steps * replicas
            assert all(1 <= len(batch) <= size for batch in batches)
            given_rows = [row for batch in batches for row in batch]
            assert [plan.rows_before(n) for n in range(len(batches) + 1)] == np.cumsum(
                [0, *map(len, batches)]
            ).tolist()
            assert plan.rows == rows
            repeated = max(0, len(given_rows) - rows)
            assert plan.rows_repeated == repeated
            assert set(given_rows) == set(range(rows - plan.rows_left_out))
            assert given_rows[: len(given_rows) - repeated] == sorted(set(given_rows))
            if tail != "spread":
                assert all(len(batch) == size for batch in batches)
            for start in range(len(batches)):
                later = [n for window in plan.windows(start) for n in window.batch_rows]
                assert later == [len(batch) for batch in batches[start:]]


@given(counts_of_ranks, st.integers(1, 9), st.data())
def test_what_is_granted_before_the_end_is_within_what_the_end_allows(counts, size, data):
    arrived = [data.draw(st.integers(0, rows)) for rows in counts]
    complete = [
        have == rows and data.draw(st.booleans())
        for have, rows in zip(arrived, counts, strict=True)
    ]
    still = [have for have, done in zip(arrived, complete, strict=True) if not done]
    standing = Standing(min(arrived), min(still) if still else 0)
    for tail in TAILS:
        steps = granted(standing, size, tail)
        try:
            end = granted(Standing(counts=tuple(counts)), size, tail)
        except DataError:
            assert steps == 0
            continue
        assert steps == 0 or steps < end  # the last step is known to be the last
        if tail == "spread":
            assert steps <= full_steps(counts, size) < end
        for rows, done in zip(counts, complete, strict=True):
            # Its own rows, unless it may repeat them.
            assert steps * size <= rows or (tail == "repeat" and done)


class World:
    """Ranks whose spools grow, the coordinator's rows, and messages that take their time."""

    def __init__(self, counts, size, tail):
        self.counts, self.size, self.tail = counts, size, tail
        self.rows = LaunchRows(range(len(counts)))
        self.arrived, self.done = [0] * len(counts), [False] * len(counts)
        self.on_the_way = [[] for _ in counts]
        self.known = [Standing()] * len(counts)
        self.steps = [0] * len(counts)

    def send(self, actions):
        for action in actions:
            ranks = range(len(self.counts)) if isinstance(action, SendAll) else [action.rank]
            for rank in ranks:
                self.on_the_way[rank].append(action.command)

    def bring(self, rank, rows):
        self.arrived[rank] = min(self.counts[rank], self.arrived[rank] + rows)
        self.send(self.rows.arriving(rank, reports.Arriving({"train": self.arrived[rank]})))

    def finish(self, rank):
        if not self.done[rank]:
            self.bring(rank, self.counts[rank])
            self.done[rank] = True
            n = self.counts[rank]
            self.send(self.rows.spooled(rank, reports.Spooled({"train": {"rows": n}}, {})))

    def hear(self, rank):
        if self.on_the_way[rank]:
            match self.on_the_way[rank].pop(0):
                case commands.Arrived(certain=certain, going_on=going_on):
                    self.known[rank] = Standing(certain["train"], going_on["train"])
                case commands.Counts(rows=rows):
                    self.known[rank] = Standing(counts=tuple(rows["train"]))

    def step(self):
        """Make a step, if all ranks know that they may: none goes without the others."""
        may = [granted(known, self.size, self.tail) for known in self.known]
        if min(may) > min(self.steps):
            have = min(self.steps) + 1
            for rank, rows in enumerate(self.arrived):
                repeats = self.tail == "repeat" and self.done[rank]
                rest = self.known[rank].counts is not None
                assert have * self.size <= rows or repeats or rest
            self.steps = [have] * len(self.counts)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=4), st.integers(1, 6), st.data())
def test_in_whatever_order_rows_and_messages_come_all_ranks_make_the_same_steps(counts, size, data):
    tail = data.draw(st.sampled_from(TAILS))
    if tail == "drop" and min(counts) < size:
        size = 1
    world = World(counts, size, tail)
    events = st.sampled_from(["bring", "finish", "hear", "hear", "step", "step"])
    for event in data.draw(st.lists(events, max_size=60)):
        rank = data.draw(st.integers(0, len(counts) - 1))
        if event == "bring" and not world.done[rank]:
            world.bring(rank, data.draw(st.integers(1, 20)))
        elif event == "finish":
            world.finish(rank)
        elif event == "hear":
            world.hear(rank)
        elif event == "step":
            world.step()
    for rank in range(len(counts)):  # sources end, messages arrive: nothing waits for ever
        world.finish(rank)
    for rank in range(len(counts)):
        while world.on_the_way[rank]:
            world.hear(rank)
    assert world.rows.phase is RowsPhase.SETTLED
    for _ in range(sum(counts)):
        world.step()
    assert world.steps == [steps_for(counts, size, tail)] * len(counts)


def test_news_come_once():
    rows = LaunchRows([0, 2])
    assert rows.arriving(0, reports.Arriving({"train": 5})) == []
    first = commands.Arrived({"train": 3}, {"train": 3})
    assert rows.arriving(2, reports.Arriving({"train": 3})) == [SendTo(0, first), SendTo(2, first)]
    assert rows.arriving(0, reports.Arriving({"train": 9})) == []
    ended = reports.Spooled({"train": {"rows": 4}}, {})
    assert rows.spooled(2, ended)[0].command == commands.Arrived({"train": 4}, {"train": 9})
    assert rows.spooled(0, ended)[0].command.rows == {"train": [4, 4]}
    assert rows.arriving(0, reports.Arriving({"train": 4})) == []


def test_a_rank_that_ended_without_rows_lets_nobody_begin_before_it_was_lent_some():
    rows = LaunchRows([0, 1])
    rows.arriving(0, reports.Arriving({"train": 50}))
    assert rows.spooled(1, reports.Spooled({"train": {"rows": 0}}, {})) == []


def test_an_agent_announces_the_first_rows_and_others_once_its_function_trains_on_them():
    said, told = [], []
    payload = SimpleNamespace(datasets=("train", "test"))
    reporter = SimpleNamespace(report=said.append)
    feature = step_grants.StepGrants(
        SimpleNamespace(payload=payload, reporter=reporter, tell=told.append)
    )
    feature.arrived("train", 5)
    feature.arrived("train", 9)
    feature.arrived("test", 1)
    assert feature.messages() == []
    feature.hear(child.RowsAwaited())
    feature.hear(child.RowsAwaited(early=True))
    feature.arrived("test", 4)
    assert [report.rows for report in said] == [
        {"train": 5, "test": 0},
        {"train": 9, "test": 1},
        {"train": 9, "test": 1},
        {"train": 9, "test": 4},
    ]
    news = commands.Arrived({"train": 9}, {"train": 9})
    assert feature.obey(news)
    assert told == feature.messages() == [news]  # for a process that is started again, too
    assert not feature.obey(commands.Close())


class Feed:
    """One rank's spool that grows, and what its process knows."""

    def __init__(self, folder, counts, size, tail, rank=0):
        self.folder, self.counts, self.rank = folder, counts, rank
        self.changed = threading.Condition()
        self.standing = Standing()
        self.records = []
        self.left_out = None
        self.writer = SpoolWriter(folder, segment_bytes=1, on_segment=self.tell)
        self.written = 0
        self.grant = ArrivingGrant(
            lambda: self.standing,
            self.wait_for,
            batch_size=size,
            tail=tail,
            settled=self.settled,
            on_begun=lambda: self.begun.append(True),
        )
        self.begun = []
        self.size, self.tail = size, tail

    def settled(self):
        if self.left_out:
            raise SchemaError(self.left_out)

    def wait_for(self, condition, seconds):
        with self.changed:
            return self.changed.wait_for(condition, seconds)

    def tell(self, _, rows):
        with self.changed:
            self.standing = Standing(rows, rows)
            self.changed.notify_all()

    def write(self, rows):
        values = np.arange(self.written, self.written + rows, dtype=np.float32)
        self.written += rows
        self.writer.write("train", pa.RecordBatch.from_pydict({"x": values}))

    def close(self):
        self.writer.close()
        with self.changed:
            self.standing = Standing(counts=tuple(self.counts))
            self.changed.notify_all()

    def source(self, **options):
        reader = SpoolReader(self.folder, "train", growing=True)
        return EpochSource(
            reader=reader,
            selection=select(reader.specs, "x"),
            batch_size=self.size,
            tail=self.tail,
            grant=self.grant,
            rank=self.rank,
            on_epoch=self.records.append,
            **options,
        )


def batches_of(windows):
    return [batch.tolist() for (window,) in windows for batch in window]


@pytest.mark.parametrize("tail", TAILS)
def test_batches_do_not_depend_on_when_the_rows_came(tmp_path, tail):
    counts = (21_000, 18_000)
    late = Feed(tmp_path / "late", counts, 1000, tail)
    soon = Feed(tmp_path / "soon", counts, 1000, tail)
    for feed in (late, soon):
        feed.write(5000)
    windows = soon.source().epoch()
    first = next(windows)
    assert len(first[0]) == 4  # one batch is held back
    thread = threading.Thread(target=lambda: [late.write(8000), late.write(8000), late.close()])
    thread.start()
    thread.join()
    soon.write(8000)
    second = next(windows)
    soon.write(8000)
    soon.close()
    assert batches_of([first, second, *windows]) == batches_of(late.source().epoch())
    record = soon.records[0]
    assert soon.records == late.records
    ledger = Ledger()
    ledger.set_counts("train", 0, DatasetCounts(21_000, 21_000))
    ledger.add(EpochRecord(**record))
    assert record["complete"]
    assert ledger.check() == []


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("step", [1, 3, 12])
def test_an_epoch_resumed_at_a_step_goes_on_with_the_batches_it_would_have_had(
    tmp_path, tail, step
):
    feed = Feed(tmp_path, (15_500, 14_200), 1000, tail)
    feed.write(5000)
    feed.write(10_500)
    feed.close()
    whole = batches_of(feed.source().epoch())
    rest = feed.source(counter=EpochCounter(0, step)).epoch()
    assert batches_of(rest) == whole[step:]
    later = feed.source(counter=EpochCounter(1), shuffle=True)
    assert batches_of(later.epoch()) == batches_of(replaced(later))


def replaced(source):
    source.counter.set(1)
    return source.complete().epoch()


def test_an_epoch_that_is_given_up_says_so(tmp_path):
    feed = Feed(tmp_path, (9000,), 1000, "spread")
    feed.write(5000)
    windows = feed.source().epoch()
    next(windows)
    windows.close()
    (record,) = feed.records
    assert (record["complete"], record["rows_fed"]) == (False, 4000)


def test_the_first_step_is_told_once_it_is_made(tmp_path):
    feed = Feed(tmp_path, (9000,), 1000, "spread")
    feed.write(5000)
    told, source = feed.begun, feed.source()
    windows = source.epoch()
    next(windows)
    assert source.has_step(0) is True
    assert told == []
    assert source.has_step(1) is True
    assert told == [True]
    next(windows)  # a loop that has used up what there was
    assert len(told) > 1


def test_a_column_that_turns_out_not_to_be_feedable_ends_the_epoch_with_the_reason(tmp_path):
    feed = Feed(tmp_path, (9000,), 1000, "spread")
    kinds = iter(([1.0] * 5000, ["a"] * 5000))
    for start, kind in zip((0, 5000), kinds, strict=True):
        columns = {"x": kind, "n": np.arange(start, start + 5000)}
        feed.writer.write("train", pa.RecordBatch.from_pydict(columns))
        if not start:
            windows = feed.source().epoch()
            next(windows)
    with pytest.raises(SchemaError, match="'x' of dataset 'train' was double in earlier batches"):
        next(windows)


@pytest.mark.slow
def test_keras_is_given_batches_of_a_dataset_without_a_length(tmp_path):
    feed = Feed(tmp_path, (5500, 5000), 1000, "spread")
    feed.write(5000)
    source = feed.source(shuffle=True)
    dataset = source.dataset()
    assert int(dataset.cardinality()) < 0
    assert source_of(dataset) is source
    assert source_of(dataset.map(lambda x: x)) is None
    assert [source.has_step(step, 0.01) for step in (3, 4)] == [True, None]
    assert source.steps_if_known() is None
    elements = iter(dataset)
    assert len(next(elements)) == 1000
    feed.write(500)
    feed.close()
    assert [source.has_step(step) for step in (5, 6)] == [True, False]
    assert sum(len(x) for x in elements) == 4500
    assert sorted(x for batch in dataset for x in batch.numpy()) == list(range(5500))
