"""Rows that are pushed: each once whatever fails, and equal steps for any unevenness. Pure."""

from __future__ import annotations

import dataclasses
import json
import random
import threading
from dataclasses import asdict
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import flight

from gridflow._agent.features.streams import Streams as AgentStreams
from gridflow._coordinator.streams import LaunchStreams
from gridflow._feed.dataset.stream import StreamSource, of_stream
from gridflow._feed.encodings import Ragged, Sparse
from gridflow._feed.normalize import FeedOptions
from gridflow._feed.plan.grants import Standing
from gridflow._feed.plan.streams import StreamGrant
from gridflow._feed.push import exactly_once, located
from gridflow._feed.push.exactly_once import Superseded
from gridflow._feed.push.inference_client import InferenceClient
from gridflow._feed.push.located import in_file, taken
from gridflow._feed.push.ranges import Ranges, deal
from gridflow._feed.push.sender import Destination, send_all
from gridflow._feed.store import Segment, size_of
from gridflow._feed.store.reader import StreamReader
from gridflow._feed.store.stream import StreamStore
from gridflow._spec.place import Place
from gridflow._wire import commands, reports
from gridflow._wire.identity import make_identities
from gridflow._wire.receiver import Receiver, ReceiverClient
from gridflow.errors import DataError, GridflowError, SchemaError, WireError
from suite.new_process import in_new_network
from suite.ports import free_ports


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40))), st.integers(0, 40))
def test_ranges_are_sets_of_places(pairs, stop):
    ranges, places = Ranges(), set()
    for first, last in pairs:
        ranges.add(first, last)
        places |= set(range(first, last))
    assert len(ranges) == len(places)
    missing = [place for first, last in ranges.missing(3, stop) for place in range(first, last)]
    assert missing == [place for place in range(3, stop) if place not in places]
    assert Ranges(ranges)._ranges == ranges._ranges == sorted(ranges)


@given(st.integers(0, 200), st.lists(st.integers(0, 60), min_size=1, max_size=7))
def test_rows_are_dealt_to_those_with_most_room(rows, waiting):
    pending = dict(enumerate(waiting))
    shares = deal(rows, pending)
    assert sum(shares.values()) == rows
    after = {agent: pending[agent] + shares.get(agent, 0) for agent in pending}
    assert all(after[agent] <= min(after.values()) + 1 for agent in shares)


class Agent:
    """An inflow behind a real receiver, whose feeders may be cut off."""

    def __init__(self, folder, identity, limit=1 << 30, *, sees_files=True):
        self.sees_files = sees_files
        self.inflow = StreamStore("stream", folder, FeedOptions(), limit, lambda: None)
        self.server = Receiver("127.0.0.1", identity, self)
        self.address = f"127.0.0.1:{self.server.port}"

    def begin_partition(self, header):
        return self.inflow.begin(header["feed"], header["partition"], header["attempt"])

    def put(self, header, told, batch):
        key = header["feed"], header["partition"], header["attempt"]
        if isinstance(told, dict) and not self.sees_files:
            told["path"] = told["path"].replace("gridflow-rows-", "gridflow-rows-0")
        first, rows = taken(told, batch)
        return {"unseen": True} if rows is None else self.inflow.put(*key, first, rows)

    def ask(self, header, first, batch):
        raise AssertionError

    def rows(self, folder):
        reader = StreamReader("stream", folder, 0)
        reader.look(self.inflow.segments[1])
        return [v for batch in reader.next(reader.rows) for v in batch.column(0).to_pylist()]


def batches_of(partition, sizes):
    first = partition * 10_000
    for size in sizes:
        yield pa.record_batch({"x": np.arange(first, first + size)})
        first += size


class CutOffError(Exception):
    """A feeder's task dies."""


def in_files(batches, folder, chance):
    """Put some of the batches into files, as Spark's tasks may."""
    folder = folder / f"gridflow-rows-{chance.getrandbits(128):032x}-1"
    folder.mkdir(parents=True)
    for number, batch in enumerate(batches):
        if chance.random() < 0.3:
            yield batch
            continue
        path = folder / f"{number:08d}-0.arrow"
        with pa.ipc.new_file(str(path), batch.schema) as file:
            for start in range(0, batch.num_rows, 20):
                file.write_batch(batch.slice(start, 20))
        yield Segment(path)


def cut_off(batches, cut):
    for number, batch in enumerate(batches):
        if number == cut:
            raise CutOffError
        yield batch


@pytest.mark.slow
def test_in_200_random_runs_with_feeders_that_fail_each_row_comes_once(tmp_path):
    identity = make_identities()[1]
    for run in range(200):
        chance = random.Random(run)
        folders = [tmp_path / f"{run}-{rank}" for rank in range(chance.randint(1, 3))]
        agents = [Agent(folder, identity, sees_files=chance.random() < 0.7) for folder in folders]
        where = Destination("stream", "f", tuple(a.address for a in agents), identity)
        parts = [
            [chance.randint(1, 60) for _ in range(chance.randint(0, 5))]
            for _ in range(chance.randint(1, 3))
        ]
        attempts = iter(range(1000))

        def feed(partition, sizes, run=run, chance=chance, where=where, attempts=attempts):
            """Try until an attempt comes through, cut as Spark may cut it."""
            for left in range(3, -1, -1):
                cut = chance.randint(0, len(sizes)) if left and chance.random() < 0.6 else None

                # The same rows in the same order, in other batches.
                resized = [sum(sizes)] if sizes and chance.random() < 0.3 else sizes
                batches = cut_off(batches_of(partition, resized), cut)
                if chance.random() < 0.6:
                    batches = in_files(batches, tmp_path / f"files-{run}", chance)
                try:
                    return send_all(where, partition, next(attempts), batches)
                except CutOffError:
                    continue
            raise AssertionError

        try:
            threads = [
                threading.Thread(target=feed, args=(number, sizes))
                for number, sizes in enumerate(parts)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            found = sorted(
                row for a, folder in zip(agents, folders, strict=True) for row in a.rows(folder)
            )
            wanted = [p * 10_000 + n for p, sizes in enumerate(parts) for n in range(sum(sizes))]
            assert found == wanted, run
            assert sum(a.inflow.counts.rows_in for a in agents) == len(wanted)
        finally:
            for agent in agents:
                agent.inflow.close()
                agent.server.shutdown()


def test_rows_in_files_are_taken_from_files_of_feeders_alone(tmp_path):
    """Nobody can have an agent read anything else, whatever it is told."""
    folder = tmp_path / f"gridflow-rows-{'0' * 32}-1"
    folder.mkdir()
    path = folder / "00000000-0.arrow"
    batch = pa.record_batch({"x": np.arange(50)})

    def write(path):
        with pa.ipc.new_file(str(path), batch.schema) as file:
            file.write_batch(batch)
        return Segment(path)

    (rows,) = in_file(write(path), {b"fact": "1"})
    told, none = rows.slice(10, 5).told(7), rows.batch.slice(0, 0)
    first, found = taken(json.loads(json.dumps(told)), none)
    assert (first, found.batch.column(0).to_pylist()) == (7, [10, 11, 12, 13, 14])
    assert found.batch.schema.metadata == {b"fact": b"1"}
    assert (found.path, found.number, found.start) == (str(path), 0, 10)
    assert taken(3, batch) == (3, batch)
    write(tmp_path / "other.arrow")
    (folder / "00000001-0.arrow").symlink_to(tmp_path / "other.arrow")
    for path in (tmp_path / "other.arrow", folder / "00000001-0.arrow", folder / "2-0.arrow"):
        node = (path.stat().st_ino, path.stat().st_size) if path.exists() else (0, 0)
        assert taken({**told, "path": str(path), "node": list(node)}, none) == (7, None)
    assert taken({**told, "node": [1, 2]}, none) == (7, None)
    assert taken({**told, "path": f"{folder}/../{folder.name}/00000000-0.arrow"}, none) == (7, None)


def test_rows_are_read_from_the_file_that_was_checked(tmp_path, monkeypatch):
    folder = tmp_path / f"gridflow-rows-{'0' * 32}-1"
    folder.mkdir()

    def write(name, batch):
        with pa.ipc.new_file(str(folder / name), batch.schema) as file:
            file.write_batch(batch)
        return folder / name

    path = write("00000000-0.arrow", pa.record_batch({"x": [1, 2]}))
    other = write("other", pa.record_batch({"x": [3, 4]}))
    (rows,) = in_file(Segment(path), None)

    def exchanged_at_once(place):
        other.replace(path)
        return Segment(place)

    monkeypatch.setattr(located, "Segment", exchanged_at_once)
    _, found = taken(json.loads(json.dumps(rows.told(0))), rows.batch.slice(0, 0))
    assert found.batch.column(0).to_pylist() == [1, 2]


def test_an_attempt_that_is_late_is_refused(tmp_path):
    inflow = StreamStore("stream", tmp_path, FeedOptions(), 1 << 20, lambda: None)
    batch = pa.record_batch({"x": [1, 2, 3]})
    inflow.begin("f", 0, 1)
    inflow.put("f", 0, 1, 0, batch)
    assert inflow.begin("f", 0, 5)["ranges"] == [[0, 3]]
    with pytest.raises(Superseded, match="5 has started"):
        inflow.put("f", 0, 1, 3, batch)
    with pytest.raises(Superseded):
        inflow.begin("f", 0, 4)
    inflow.put("f", 0, 5, 0, batch)  # they are there already
    assert inflow.rows == 3
    with pytest.raises(DataError, match="was int64 before and is now double"):
        inflow.put("f", 0, 5, 3, pa.record_batch({"x": [1.5]}))


def test_lists_in_lists_that_are_all_empty_come_as_java_leaves_them(tmp_path):
    """Without the offsets of no rows, so that Arrow's own size of a batch is of what lies there."""
    none = pa.py_buffer(b"\x7f" * 64).slice(0, 0)
    texts = pa.Array.from_buffers(pa.string(), 0, [None, none, none])
    inner = pa.list_(pa.string())
    nothing = pa.Array.from_buffers(inner, 0, [None, none], children=[texts])
    ends = pa.py_buffer(np.zeros(3, np.int32))
    lists = pa.Array.from_buffers(pa.list_(inner), 2, [None, ends], children=[nothing])
    inflow = StreamStore("stream", tmp_path, FeedOptions(), 1 << 20, lambda: None)
    inflow.begin("feed", 0, 1)
    batch = pa.RecordBatch.from_arrays([lists, pa.array([1, 2])], ["x", "n"])
    assert size_of(batch) < 100
    inflow.put("feed", 0, 1, 0, batch)
    assert inflow.rows == 2


def test_partitions_of_feeds_that_are_long_over_are_forgotten(tmp_path, monkeypatch):
    monkeypatch.setattr(exactly_once, "REMEMBERED", 10)
    inflow = StreamStore("stream", tmp_path, FeedOptions(), 1 << 20, lambda: None)
    batch = pa.record_batch({"x": [1, 2, 3]})
    for feed in range(30):  # a stream's micro-batches, and one that is slow
        inflow.begin(f"{feed}", 0, feed)
        inflow.begin("slow", 0, feed)
        inflow.put("slow", 0, feed, 0, batch)
    assert len(inflow._partitions._found) == 10
    assert inflow.begin("slow", 0, 30)["ranges"] == [[0, 3]]
    assert inflow.rows == 3


def test_rows_are_kept_until_two_checkpoints_cover_them(tmp_path):
    inflow = StreamStore("stream", tmp_path, FeedOptions(), 1 << 30, lambda: None, keeps=True)
    inflow.begin("f", 0, 1)
    for number in range(5):
        inflow.put("f", 0, 1, 10 * number, pa.record_batch({"x": range(10)}))
    inflow.take(50)
    assert inflow.segments == (0, 5, 0)
    inflow.mark(Place(0, 0, 2), 16, 0)
    inflow.mark(Place(0, 0, 4), 32, 0)
    assert inflow.segments == (0, 5, 0), "that they were made doesn't mean that they have arrived"
    inflow.committed(Place(0, 0, 2))
    assert inflow.segments == (0, 5, 0)
    inflow.committed(Place(0, 0, 4))
    assert inflow.segments == (1, 5, 0)
    assert inflow.begin_generation(Place(0, 0, 4)) == 0
    assert (inflow.before, inflow.rows, inflow.segments) == (32, 18, (1, 5, 22))
    assert inflow.begin_generation(None) == 10  # without a checkpoint: the first ten are gone


def test_ranks_that_get_rows_of_other_shapes_contradict_one_another():
    streams, v = LaunchStreams([0, 1]), {"v": ["float32", [3]]}
    first, second = (dataclasses.replace(heard(0, 1), specs={"s": specs}) for specs in (v, v))
    assert [streams.contradiction(each) for each in (first, second)] == [None, None]
    later = LaunchStreams([0, 1], was=streams)  # of another launch, whose rows are the same
    other = dataclasses.replace(heard(1, 2), specs={"s": {"v": ["float32", [4]]}})
    assert "column 'v' of dataset 's' has rows of shape (3,) and of" in later.contradiction(other)


def inflow_of(folder, rows=60, *, keeps=True):
    """Return an inflow to which rows have come, ten by ten."""
    inflow = StreamStore("stream", folder, FeedOptions(), 1 << 30, lambda: None, keeps=keeps)
    inflow.begin("f", 0, 1)
    for first in range(0, rows, 10):
        inflow.put("f", 0, 1, first, pa.record_batch({"x": range(10)}))
    return inflow


def test_rows_since_the_last_checkpoint_that_arrived_come_again_however_many_did_not(tmp_path):
    inflow = inflow_of(tmp_path)
    for step in (1, 2, 3, 4):
        inflow.mark(Place(0, 0, step), 10 * step, 0)
        inflow.take(10 * step + 5)
    inflow.committed(Place(0, 0, 1))  # those after it never arrive
    assert inflow.begin_generation(Place(0, 0, 1)) == 0
    assert (inflow.before, inflow.rows) == (10, 50)
    # And once more, before any other has arrived.
    inflow.mark(Place(0, 0, 2), 10, 0)
    inflow.take(30)
    assert inflow.begin_generation(Place(0, 0, 1)) == 0
    assert (inflow.before, inflow.rows) == (10, 50)


def test_a_checkpoint_from_before_the_stream_covers_none_of_its_rows(tmp_path):
    """It is that of a job before this one, or of a fit on other rows."""
    inflow = inflow_of(tmp_path)
    inflow.take(30)
    inflow.mark(Place(1, 0, 3), 30, 0)
    assert inflow.begin_generation(Place(0, 9, 0)) == 0
    assert (inflow.before, inflow.rows) == (0, 60)


def test_rows_that_a_group_would_need_again_and_are_gone_are_counted(tmp_path):
    inflow = inflow_of(tmp_path, keeps=False)
    inflow.mark(Place(0, 0, 1), 10, 0)
    inflow.committed(Place(0, 0, 1))
    for step in (2, 3):
        inflow.mark(Place(0, 0, step), 10 * step, 0)
    inflow.take(35)
    assert inflow.begin_generation(Place(0, 0, 1)) == 20
    assert (inflow.before, inflow.rows) == (30, 30)
    assert inflow.begin_generation(Place(0, 0, 1)) == 0, "nothing more is lost"


def test_a_rank_that_died_before_it_could_say_what_a_checkpoint_covers_trains_on_no_row_twice(
    tmp_path,
):
    inflow = inflow_of(tmp_path)
    inflow.mark(Place(0, 0, 1), 10, 0)
    inflow.take(20)
    inflow.committed(Place(0, 0, 2))
    assert inflow.begin_generation(Place(0, 0, 2)) == 0
    assert inflow.before == 20


@given(st.data())
@settings(deadline=None, max_examples=60)
def test_whatever_arrives_rows_come_again_from_the_checkpoint_that_the_driver_has(
    tmp_path_factory, data
):
    inflow = inflow_of(tmp_path_factory.mktemp("stream"), 200)
    kept, step, trained = [], 0, {None: 0}
    for _ in range(data.draw(st.integers(1, 4))):
        resume = data.draw(st.sampled_from(kept or [None]))
        kept = [each for each in kept if resume and each <= resume]
        assert inflow.begin_generation(resume) == 0
        assert inflow.before == trained[resume]
        rows = 0
        for _ in range(data.draw(st.integers(0, 5))):
            rows = min(rows + data.draw(st.integers(1, 9)), inflow.rows)
            step += 1
            place = Place(0, 0, step)
            inflow.mark(place, rows, 0)
            trained[place] = inflow.before + rows
            inflow.take(min(rows + 3, inflow.rows))
            if data.draw(st.booleans()):
                kept = [*kept, place][-2:]
                inflow.committed(place)


BAD_ROWS = [
    {"stream": ["s"]},
    {"stream": "another"},
    {"partition": -1},
    {"partition": "0"},
    {"attempt": None},
    {"attempt": 1 << 70},
    {"feed": {}},
    {"path": "/etc"},
    {"timeout": 1e300},
]


@pytest.mark.parametrize("told", [-1, True, "0", None, [], {"first": 0}, 1 << 70])
def test_a_place_that_is_none_is_refused(told):
    with pytest.raises(WireError, match="a feeder sent"):
        taken(told, pa.record_batch({"x": [1]}))


#: In a network of its own: a feeder waits for an agent to store rows, and the network is cut.
CUT = """
import os, subprocess, threading
import pyarrow as pa
from gridflow._wire import receiver
from gridflow._wire.identity import make_identities

def ip(*words):
    subprocess.run(["ip", *words], check=True)

class Agent:
    def put(self, header, told, batch):
        came.set()
        threading.Event().wait()

ip("link", "set", "lo", "up")
receiver._WATCH |= {"grpc.keepalive_time_ms": 1000, "grpc.keepalive_timeout_ms": 1000}
came, identity = threading.Event(), make_identities()[1]
server = receiver.Receiver("127.0.0.1", identity, Agent())
client = receiver.ReceiverClient(f"127.0.0.1:{server.port}", identity)
batch = pa.record_batch({"x": [1]})
header = {"stream": "s", "feed": "f", "partition": 0, "attempt": 1}
writer, answers = client.put(header, batch.schema)
writer.write_with_metadata(batch, b"0")
came.wait()
ip("link", "set", "lo", "down")
print(answers.read(), flush=True)
try:
    writer.close()
except pa.ArrowException as error:
    print(type(error).__name__, flush=True)
os._exit(0)  # the agent still waits
"""


def test_a_feeder_notices_that_it_is_cut_off_from_its_agent():
    assert in_new_network(CUT).split() == ["None", "FlightUnavailableError"]


def test_an_agent_refuses_rows_with_other_headers_and_lives_on(tmp_path):
    ours = make_identities()[1]
    agent = Agent(tmp_path / "agent", ours)
    agent.streams = AgentStreams(SimpleNamespace(payload=SimpleNamespace(generation=0)))
    agent.streams._inflows["stream"] = agent.inflow
    agent.begin_partition, agent.put = agent.streams.begin_partition, agent.streams.put
    client = ReceiverClient(agent.address, ours)
    good = {"stream": "stream", "feed": "f", "partition": 0, "attempt": 1}
    batch = pa.record_batch({"x": [1, 2, 3]})
    client.begin(good, 10)

    def send(header, told):
        writer, answers = client.put(header, batch.schema)
        writer.write_with_metadata(batch, told)
        answers.read()
        writer.close()

    try:
        for bad in BAD_ROWS:
            for attempt in (
                lambda bad=bad: client.begin(good | bad, 10),
                lambda bad=bad: send(good | bad, b"0"),
            ):
                with pytest.raises(flight.FlightServerError, match="a feeder sent|unknown stream"):
                    attempt()
        for told in (b"-1", b"[" * 99_999, b"\xff", b"{}", b'{"first": 0, "path": "a\\u0000b"}'):
            with pytest.raises(flight.FlightServerError, match="a feeder sent"):
                send(good, told)
        assert agent.inflow.rows == 0
        send(good, b"0")
        assert agent.inflow.rows == 3
    finally:
        client.close()
        agent.server.shutdown()


def heard(generation, rows, ends=(), *, ended=False, first=0):
    return reports.Streamed(
        generation, {"s": rows}, {"s": first}, {"s": list(ends)}, ended=ended, counts={}
    )


def test_the_coordinator_tells_what_all_ranks_have_and_how_sections_end():
    streams = LaunchStreams([0, 1])
    for rank in (0, 1):
        streams.receiving(rank, reports.Receiving("s", f"h:{rank}", together=True))
    assert streams.receivers("s") == ("h:0", "h:1")
    assert streams.receivers("t") is None
    assert streams.streamed(0, heard(0, 10)) == []
    (told,) = streams.streamed(1, heard(0, 4))
    assert (told.section, told.certain, told.counts) == ({"s": 0}, {"s": 4}, {})
    assert streams.end_section("q/0") == [commands.EndSection(1, "q/0")]
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
    assert streams.end() == [commands.EndStreams()]
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


def test_who_asks_a_job_that_has_ended_is_told_so():
    identity = make_identities()[1]
    (port,) = free_ports(1)
    gone = Destination("s", "f", (f"127.0.0.1:{port}",), identity)
    with pytest.raises(DataError, match=r"before stop\(\)"):
        InferenceClient(gone, 0, 0, 1.0)


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
