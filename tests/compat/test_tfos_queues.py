"""Rows from feeders to a node of `gridflow.compat.tfos`: queues and managers."""

from __future__ import annotations

import contextlib
import itertools
import queue
import socket
import threading

import psutil
import pyarrow as pa
import pytest
from tfos_nodes import Node

from gridflow import (
    GridflowError,
    InvalidArgument,
)
from gridflow._wire.commands import EndRows
from gridflow._wire.identity import make_identities
from gridflow.compat.tfos import TFManager, TFNode, _queues, marker
from gridflow.compat.tfos._queues import NodeQueues
from suite.waiting import patience, wait_for


@pytest.fixture
def node(tmp_path):
    found = Node(tmp_path / "node", make_identities()[1])
    yield found
    found.close()


@pytest.fixture
def queues():
    found = NodeQueues(["input", "output", "error"])
    found.set("state", "running")
    return found


# Rows --------------------------------------------------------------------------------------------


def fill(queues, items):
    for item in items:
        queues.get_queue("input").put(item)


def test_batches_end_with_the_feed(queues):
    fill(queues, [*range(10), None])
    feed = TFNode.DataFeed(queues)
    assert feed.next_batch(2) == [0, 1]
    assert feed.next_batch(4) == [2, 3, 4, 5]
    assert not feed.should_stop()
    assert feed.next_batch(10) == [6, 7, 8, 9]
    assert feed.should_stop()
    assert feed.next_batch(10) == []  # the original waits for ever


def test_rows_become_objects_as_they_are_wanted_and_never_twice(node, monkeypatch):
    sizes = []

    def rows_of(batch):
        sizes.append(batch.num_rows)
        return make(batch)

    make = _queues.rows_of
    monkeypatch.setattr(_queues, "rows_of", rows_of)
    monkeypatch.setattr(_queues, "_RUN_BYTES", 40)
    send(node, pa.table({"n": range(30)}))  # 8 bytes each
    feed = TFNode.DataFeed(node.queues)
    found = [feed.next_batch(size) for size in (2, 1, 2, 14, 3, 8)]
    assert [len(batch) for batch in found] == [2, 1, 2, 14, 3, 8]
    assert [row.n for row in itertools.chain(*found)] == list(range(30))
    assert sum(sizes) == 30
    assert len(sizes) > 1


def test_batches_cross_segments(node):
    for first in range(0, 9, 3):
        send(node, pa.table({"n": range(first, first + 3)}), first)
    feed = TFNode.DataFeed(node.queues)
    assert [[row.n for row in feed.next_batch(size)] for size in (4, 4)] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
    ]
    node.streams.obey(EndRows(0, None, are_all=True))
    assert [row.n for row in feed.next_batch(4)] == [8]
    assert feed.should_stop()


def send(node, table, first=0):
    """Be a feeder that has these rows, from a place on."""
    header = {"stream": "input", "feed": "f", "partition": 0, "attempt": 0}
    (batch,) = table.combine_chunks().to_batches()
    node.streams.put(header, first, batch)


@pytest.mark.parametrize(
    ("train_mode", "batches"), [(True, [[0, 1, 2, 3], [4]]), (False, [[0, 1, 2], [3, 4], []])]
)
def test_batches_cross_partitions_in_training_only(queues, train_mode, batches):
    for part in ([], [0, 1, 2], [], [3, 4]):
        fill(queues, [*part, marker.EndPartition()])
    fill(queues, [None])
    feed = TFNode.DataFeed(queues, train_mode)
    found = []
    while not feed.should_stop():
        found.append(feed.next_batch(4))
    assert found == batches


def test_columns_go_to_tensors_in_the_order_of_their_names(queues):
    fill(queues, [("a1", "b1"), ("a2", "b2"), None])
    feed = TFNode.DataFeed(queues, input_mapping={"b": "y", "a": "x"})
    assert feed.next_batch(5) == {"x": ["a1", "a2"], "y": ["b1", "b2"]}
    assert feed.next_batch(5) == {"x": [], "y": []}


def test_terminate_throws_rows_away_and_wakes_who_waits(node):
    queues, found = node.queues, []
    send(node, pa.table({"n": [1, 2]}))
    feed = TFNode.DataFeed(queues)
    assert [row.n for row in feed.next_batch(1)] == [1]
    other = threading.Thread(
        target=lambda: found.append(TFNode.DataFeed(queues, qname_in="other").next_batch(1)),
        name="reader",
    )
    other.start()
    feed.terminate()
    assert str(queues.get("state")) == "'terminating'"
    assert queues.get("state") == "terminating"
    assert queues.get_queue("input").empty()
    assert feed.next_batch(1) == []
    assert feed.should_stop()
    queues.get_queue("other").close()
    other.join(patience())
    assert found == [[]]


def test_terminate_throws_away_what_the_program_has_put_itself(queues):
    fill(queues, [1, 2])
    feed = TFNode.DataFeed(queues)
    feed.terminate()
    assert queues.get_queue("input").empty()
    assert (feed.next_batch(1), feed.should_stop()) == ([], True)


@pytest.mark.parametrize("kind", ["fed", "own"])
def test_a_queue_has_the_methods_of_a_joinable_one(node, queues, kind):
    queues = node.queues if kind == "fed" else queues
    rows = queues.get_queue("input")
    assert rows.empty()
    rows.put("x", block=True)
    fill(queues, ["y", "z"])
    assert (rows.qsize(), rows.get(), rows.get(timeout=1), rows.get(block=False)) == (
        3,
        "x",
        "y",
        "z",
    )
    for _ in range(3):
        rows.task_done()
    rows.join()
    with pytest.raises(queue.Empty):
        rows.get(block=True, timeout=0.01)
    with pytest.raises(InvalidArgument, match="no queue 'missing'"):
        TFNode.DataFeed(queues, qname_in="missing")


def test_a_fed_queue_counts_and_wakes(node):
    rows = node.queues.get_queue("input")
    waiting = threading.Thread(target=lambda: found.append(rows.get()), name="reader")
    found = []
    waiting.start()
    rows.put("mine")
    waiting.join(patience())
    assert found == ["mine"]
    send(node, pa.table({"n": [1, 2, 3]}))
    wait_for(lambda: rows.qsize() == 3, "rows")
    assert rows.get().n == 1
    assert rows.qsize() == 2


def test_a_manager_of_the_programs_own_feeds_as_well():
    manager = TFManager.start(b"abc", ["input", "output"], "local")
    try:
        there = TFManager.connect(manager.address, b"abc").get_queue("input")
        for row in [*range(10), None]:
            there.put(row)
        feed = TFNode.DataFeed(manager)
        assert [len(feed.next_batch(size)) for size in (2, 4, 10)] == [2, 4, 4]
        assert feed.should_stop()
        feed.batch_results([1, 2])
        assert manager.get_queue("output").get() == 1
        manager.set("state", "running")
        assert str(manager.get("state")) == "'running'"
    finally:
        manager.shutdown()


@pytest.mark.slow  # the kernel lets few of them wait at a time
@pytest.mark.parametrize("descriptors", [1024, 60])
def test_strangers_cant_end_a_manager_nor_fill_it(descriptors, monkeypatch):
    monkeypatch.setattr(
        TFManager,
        "_SERVE",
        f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({descriptors},) * 2);"
        + TFManager._SERVE,
    )
    manager = TFManager.start(b"abc", ["input"], "remote")
    try:
        with contextlib.ExitStack() as stack:
            for _ in range(80):
                stack.enter_context(socket.create_connection(manager.address, 5))
            TFManager.connect(manager.address, b"abc").set("state", "running")
            threads = psutil.Process(manager.server.pid).num_threads()
            assert threads < 100
        assert str(manager.get("state")) == "'running'"
    finally:
        manager.shutdown()


def test_what_is_gone_says_what_to_use():
    for function in (TFNode.next_batch, TFNode.batch_results, TFNode.terminate):
        with pytest.raises(GridflowError, match="get_data_feed"):
            function(None, 1) if function is not TFNode.terminate else function(None)
