"""Rows that are pushed come once each, whatever fails. Pure."""

from __future__ import annotations

import json
import random
import threading
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import flight

from gridflow._features.streams.agent import Streams as AgentStreams
from gridflow._feed.normalize import FeedOptions
from gridflow._feed.push import exactly_once, located
from gridflow._feed.push.answers import InferenceClient
from gridflow._feed.push.exactly_once import Ranges, Superseded, deal
from gridflow._feed.push.located import in_file, taken
from gridflow._feed.push.sender import Destination, send_all
from gridflow._feed.store import Segment, size_of
from gridflow._feed.store.reader import StreamReader
from gridflow._feed.store.stream import StreamStore
from gridflow._spec.place import Place
from gridflow._wire.identity import make_identities
from gridflow._wire.receiver import Receiver, ReceiverClient
from gridflow.errors import DataError, WireError
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


def test_rows_that_are_kept_as_sent_may_be_of_any_type(tmp_path):
    inflow = StreamStore("stream", tmp_path, None, 1 << 20, lambda: None)
    inflow.begin("f", 0, 0)
    note = {b"what": b"it is"}
    batches = [
        pa.record_batch({"x": pa.array([1, None])}),
        pa.record_batch({"x": pa.array([[1.0], [2.0, 3.0], None])}),
        pa.record_batch([pa.array([b"x"])], pa.schema([pa.field("y", pa.binary(), metadata=note)])),
    ]
    first = 0
    for batch, asked in zip(batches, (None, "rows", None), strict=True):
        inflow.put("f", 0, 0, first, batch, asked=asked)
        first += batch.num_rows
    reader = StreamReader("stream", tmp_path, 0)
    reader.look(3)
    found = reader.next(6)
    assert [each.to_pylist() for each in found] == [each.to_pylist() for each in batches]
    assert found[2].schema.field("y").metadata == note
    assert inflow.counts.rows_in == inflow.counts.rows == 6
    assert inflow.schema is None


def test_feeders_wait_until_rows_are_read_as_long_as_any_are(tmp_path):
    inflow = StreamStore("stream", tmp_path, FeedOptions(), 1 << 20, lambda: None)
    batch = pa.record_batch({"x": np.arange(4)})
    for partition in range(2):
        inflow.begin("f", partition, 0)
        inflow.put("f", partition, 0, 0, batch)
    inflow.take(4)
    assert inflow.settle("f", 0, 0, None) == {"pending": 4, "ended": False}
    inflow.take(7)
    with pytest.raises(TimeoutError, match=r"read no row for 0\.1 seconds"):
        inflow.settle("f", 1, 0, 0.1)
    small = StreamStore("stream", tmp_path / "small", FeedOptions(), 1, lambda: None)
    small.begin("f", 0, 0)
    small.put("f", 0, 0, 0, batch)
    with pytest.raises(TimeoutError):
        small.put("f", 0, 0, 4, batch, timeout=0.1)
    inflow.begin("f", 1, 1)
    with pytest.raises(Superseded):
        inflow.settle("f", 1, 0, None)
    inflow.end()
    assert inflow.settle("f", 1, 1, None)["ended"]


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


def test_who_asks_a_job_that_has_ended_is_told_so():
    identity = make_identities()[1]
    (port,) = free_ports(1)
    gone = Destination("s", "f", (f"127.0.0.1:{port}",), identity)
    with pytest.raises(DataError, match=r"before stop\(\)"):
        InferenceClient(gone, 0, 0, 1.0)
