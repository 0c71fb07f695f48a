"""Ranks make equal steps of the rows that are pushed to them, however uneven these are. Pure."""

from __future__ import annotations

import dataclasses
from dataclasses import asdict
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gridflow._features.streams.driver import LaunchStreams
from gridflow._feed.dataset.stream import StreamSource, of_stream
from gridflow._feed.encodings import Ragged, Sparse
from gridflow._feed.normalize import FeedOptions
from gridflow._feed.plan.grants import Standing
from gridflow._feed.plan.streams import StreamGrant
from gridflow._feed.store.reader import StreamReader
from gridflow._feed.store.stream import StreamStore
from gridflow._wire import commands, reports
from gridflow.errors import GridflowError, SchemaError


def heard(generation, rows, ends=(), *, ended=False, first=0):
    return reports.Streamed(
        generation, {"s": rows}, {"s": first}, {"s": list(ends)}, ended=ended, counts={}
    )


def test_ranks_that_get_rows_of_other_shapes_contradict_one_another():
    streams, v = LaunchStreams([0, 1]), {"v": ["float32", [3]]}
    first, second = (dataclasses.replace(heard(0, 1), specs={"s": specs}) for specs in (v, v))
    assert [streams.contradiction(each) for each in (first, second)] == [None, None]
    later = LaunchStreams([0, 1], was=streams)  # of another launch, whose rows are the same
    other = dataclasses.replace(heard(1, 2), specs={"s": {"v": ["float32", [4]]}})
    assert "column 'v' of dataset 's' has rows of shape (3,) and of" in later.contradiction(other)


def test_the_coordinator_tells_what_all_ranks_have_and_how_sections_end():
    streams = LaunchStreams([0, 1])
    for rank in (0, 1):
        streams.receiving(rank, reports.Receiving("s", f"h:{rank}", together=True))
    assert streams.receivers("s") == ("h:0", "h:1")
    assert streams.receivers("t") is None
    assert streams.streamed(0, heard(0, 10)) == []
    (told,) = streams.streamed(1, heard(0, 4))
    assert (told.section, told.certain, told.counts) == ({"s": 0}, {"s": 4}, {})
    assert streams.end_section("q/0") == [commands.EndRows(1, "q/0", are_all=False)]
    assert streams.streamed(0, heard(0, 10, [(0, 10)])) == []
    (told,) = streams.streamed(1, heard(0, 4, [(0, 4)]))
    assert (told.section, told.certain, told.previous) == ({"s": 1}, {"s": 0}, {"s": [10, 4]})
    (told,) = streams.streamed(1, heard(0, 9, [(0, 4)])) or [told]
    (told,) = streams.streamed(0, heard(0, 17, [(0, 10)]))
    assert told.certain == {"s": 5}
    assert not streams.is_trained
    for rank in (0, 1):
        streams.trained(rank, reports.SectionTrained(0, is_saved=False))
    assert streams.is_trained
    assert streams.end() == [commands.EndRows(1, "q/0", are_all=True)]
    assert streams.end() == []
    streams.streamed(0, heard(0, 17, [(0, 10)], ended=True))
    (told,) = streams.streamed(1, heard(0, 9, [(0, 4)], ended=True))
    assert told.counts == {"s": [7, 5]}
    assert streams.receivers("s") == ()


@settings(deadline=None, max_examples=60)
@given(
    counts=st.lists(st.integers(1, 50), min_size=1, max_size=3),
    sections=st.integers(1, 3),
    size=st.integers(1, 9),
    tail=st.sampled_from(["spread", "repeat", "drop"]),
)
def test_all_ranks_make_the_same_steps_and_use_each_row(
    tmp_path_factory, counts, sections, size, tail
):
    folder = tmp_path_factory.mktemp("stream")
    made = []
    for rank, count in enumerate(counts):
        inflow = StreamStore("stream", folder / f"{rank}", FeedOptions(), 1 << 30, lambda: None)
        inflow.begin("f", 0, 1)
        for section in range(sections):
            rows = np.arange(section * count, (section + 1) * count)
            inflow.put("f", 0, 1, section * count, pa.record_batch({"x": rows}))
        reader = StreamReader("stream", folder / f"{rank}", 0)
        reader.look(sections)
        records, ended = [], []
        source = of_stream(
            reader,
            features="x",
            batch_size=size,
            tail=tail,
            rank=rank,
            segments=lambda *_: sections,
            on_taken=lambda rows: None,
            on_section=ended.append,
            on_epoch=records.append,
            grant=StreamGrant(
                lambda section: (Standing(counts=tuple(counts)), section == sections - 1),
                lambda condition, seconds: condition(),
                section=0,
                own=rank,
                batch_size=size,
                tail=tail,
            ),
        )
        rows, batches = [], 0
        for (windows,) in source.epoch():
            for batch in windows:
                assert source.has_step(batches, 0.0)
                source.progress.steps += 1
                batches += 1
                assert 1 <= len(batch) <= size
                rows += batch.tolist()
        assert source.has_step(batches, 0.0) is False
        assert source.is_used_up
        assert ended == [*range(sections - 1)]
        made.append(batches)
        (record,) = records
        used = record["rows_fed"] - record["rows_repeated"]
        assert used + record["rows_left_out"] == sections * count
        assert asdict(inflow.counts)["rows_in"] == sections * count
        if tail != "drop":
            assert set(rows) == set(range(sections * count))
            assert source.rows_trained() == sections * count
    assert len(set(made)) == 1


def source_of_one(folder, batch, features, options, standing, asked=None):
    """Return the source of a stream to which one batch of rows has come."""
    inflow = StreamStore("stream", folder, options, 1 << 30, lambda: None)
    inflow.begin("f", 0, 1)
    inflow.put("f", 0, 1, 0, batch, asked=asked)
    reader = StreamReader("stream", folder, 0)
    reader.look(1)
    grant = StreamGrant(
        lambda _: (standing(), True),
        lambda condition, seconds: condition(),
        section=0,
        own=0,
        batch_size=2,
        tail="spread",
    )
    common = {
        "batch_size": 2,
        "segments": lambda *_: 1,
        "on_taken": lambda rows: None,
        "on_section": lambda section: None,
    }
    return of_stream(reader, features=features, grant=grant, **common)


def test_while_rows_are_waited_for_nothing_has_the_form_of_all_that_may_come(tmp_path):
    columns = {
        "numbers": pa.array([[1.0], [2.0, 3.0]]),
        "texts": pa.array([["a", "b"], []]),
        "sparse": pa.array([[0.0, 1.0, 0.0], [0.0, 0.0, 2.0]]),
        "text": pa.array(["c", "d"]),
        "fixed": pa.array([[1, 2], [3, 4]], pa.list_(pa.int32(), 2)),
    }
    forms = {"numbers": Ragged(), "texts": Ragged(), "sparse": Sparse(3)}
    known = [Standing()]
    source = source_of_one(
        tmp_path,
        pa.record_batch(columns),
        list(columns),
        FeedOptions(columns=forms),
        lambda: known[-1],
    )
    windows = source.epoch()
    nothing = next(windows)
    known.append(Standing(counts=(2,)))
    some = next(windows)
    assert len(nothing[0]) == 0
    assert len(some[0]) == 1
    assert [(part.dtype, part.ndim) for part in nothing] == [(p.dtype, p.ndim) for p in some]
    assert [part.shape[1:] for part in nothing] == [part.shape[1:] for part in some]


def test_a_column_that_cant_be_fed_is_refused_with_its_reason(tmp_path):
    batch = pa.record_batch({"x": [1.0, 2.0], "y": [None, 1.0]})
    with pytest.raises(SchemaError, match=r"'y'.*null"):
        source_of_one(tmp_path, batch, ["x", "y"], FeedOptions(), Standing)


def test_a_wrong_number_of_answers_is_said_with_the_partition(tmp_path):
    batch, where = pa.record_batch({"x": [1.0, 2.0, 3.0]}), "partition 4, rows 0 to 2"
    source = source_of_one(tmp_path, batch, "x", FeedOptions(), Standing, asked=where)
    batches = source.epoch()
    assert len(next(batches)[0][0]) == 2
    assert source.answered(2) == (0, False)
    assert len(next(batches)[0][0]) == 1
    with pytest.raises(GridflowError, match=f"got 2 rows for a batch of 1 .{where}"):
        source.answered(2)


def test_rows_that_are_certain_are_waited_for_until_their_segment_is_known():
    asked = []

    def look(segments):
        stream.rows, stream.mapped = 2 * segments, segments

    def segments(after, seconds):
        asked.append((after, seconds > 0))
        return 1 if len(asked) < 3 else 2

    stream = SimpleNamespace(rows=2, mapped=1, look=look)
    source = SimpleNamespace(reader=stream, segments=segments, _look=lambda: None)
    StreamSource._await(source, 4)
    assert stream.rows == 4
    assert asked == [(1, True)] * 3
