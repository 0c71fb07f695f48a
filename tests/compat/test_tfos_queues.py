"""Rows from feeders to a node of `gridflow.compat.tfos`: queues and managers."""

from __future__ import annotations

import contextlib
import itertools
import queue
import socket

import psutil
import pytest

from gridflow import (
    GridflowError,
    InvalidArgument,
)
from gridflow.compat.tfos import (
    TFManager,
    TFNode,
    marker,
)
from gridflow.compat.tfos._queues import NodeQueues


@pytest.fixture
def queues():
    found = NodeQueues(["input", "output", "error"])
    found.set("state", "running")
    return found


# Rows --------------------------------------------------------------------------------------------


class Squares:
    """Rows that become objects when they are taken."""

    def __init__(self, run):
        self.run, self.spans = run, []

    def made(self, begin, end):
        self.spans.append((begin, end))
        return [n * n for n in range(begin, end)]


def test_batches_cross_chunks_and_end_with_the_feed(queues):
    rows = queues.get_queue("input")
    rows.put_rows(list(range(7)))
    rows.put(7)
    rows.put_rows([8])
    rows.put_later(Squares(run=1), range(3, 4))  # three came otherwise
    assert rows.qsize() == 10
    rows.put(None)
    feed = TFNode.DataFeed(queues)
    assert feed.next_batch(2) == [0, 1]
    assert feed.next_batch(4) == [2, 3, 4, 5]
    assert not feed.should_stop()
    assert feed.next_batch(10) == [6, 7, 8, 9]
    assert feed.should_stop()
    assert feed.next_batch(10) == []  # the original waits for ever


def test_rows_become_objects_as_they_are_wanted_and_never_twice(queues):
    squares = Squares(run=4)
    queues.get_queue("input").put_later(squares, range(1, 30))
    feed = TFNode.DataFeed(queues)
    found = [feed.next_batch(size) for size in (2, 1, 2, 10, 3, 11)]
    assert [len(batch) for batch in found] == [2, 1, 2, 10, 3, 11]
    assert list(itertools.chain(*found)) == [n * n for n in range(1, 30)]
    assert squares.spans == [(1, 5), (5, 9), (9, 16), (16, 20), (20, 30)]


@pytest.mark.parametrize(
    ("train_mode", "batches"), [(True, [[0, 1, 2, 3], [4]]), (False, [[0, 1, 2], [3, 4], []])]
)
def test_batches_cross_partitions_in_training_only(queues, train_mode, batches):
    rows = queues.get_queue("input")
    for part in ([], [0, 1, 2], [], [3, 4]):
        rows.put_rows(part)
        rows.put(marker.EndPartition())
    rows.put(None)
    feed = TFNode.DataFeed(queues, train_mode)
    found = []
    while not feed.should_stop():
        found.append(feed.next_batch(4))
    assert found == batches


def test_columns_go_to_tensors_in_the_order_of_their_names(queues):
    queues.get_queue("input").put_rows([("a1", "b1"), ("a2", "b2")])
    queues.get_queue("input").put(None)
    feed = TFNode.DataFeed(queues, input_mapping={"b": "y", "a": "x"})
    assert feed.next_batch(5) == {"x": ["a1", "a2"], "y": ["b1", "b2"]}
    assert feed.next_batch(5) == {"x": [], "y": []}


def test_terminate_throws_rows_away_and_wakes_who_waits(queues):
    rows, taken = queues.get_queue("input"), []
    rows.put_rows([1, 2], lambda: taken.append("first"))
    feed = TFNode.DataFeed(queues)
    assert feed.next_batch(1) == [1]
    feed.terminate()
    assert str(queues.get("state")) == "'terminating'"
    assert queues.get("state") == "terminating"
    assert taken == ["first"]
    rows.put_rows([3], lambda: taken.append("late"))
    assert taken == ["first", "late"]
    assert feed.next_batch(1) == []
    assert feed.should_stop()


def test_a_queue_has_the_methods_of_a_joinable_one(queues):
    rows = queues.get_queue("input")
    assert rows.empty()
    rows.put("x", block=True)
    rows.put_rows(["y", "z"])
    assert (rows.qsize(), rows.get(), rows.get(timeout=1), rows.get(block=False)) == (
        3,
        "x",
        "y",
        "z",
    )
    rows.task_done()
    rows.join()
    with pytest.raises(queue.Empty):
        rows.get(block=True, timeout=0.01)
    with pytest.raises(InvalidArgument, match="no queue 'other'"):
        TFNode.DataFeed(queues, qname_in="other")


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


# Feeding -----------------------------------------------------------------------------------------
