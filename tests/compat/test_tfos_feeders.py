"""Feeders and nodes of `gridflow.compat.tfos` side by side: rows, answers, failures, strangers."""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import threading
from multiprocessing import AuthenticationError
from types import SimpleNamespace

import pytest

from gridflow import (
    GridflowError,
)
from gridflow._wire import psk_tls
from gridflow.compat.tfos import (
    TFNode,
    _fed,
    _feeding,
    reservation,
)
from gridflow.compat.tfos._queues import NodeQueues
from suite.waiting import patience, wait_for


@pytest.fixture
def there():
    """Give nodes of a cluster without one: their queues and the list of them."""
    server = reservation.Server(2, ["executor_id"], host="127.0.0.1")
    address = server.start()
    nodes, info, servers = [], [], []
    for number in range(2):
        mine = NodeQueues(["input", "output", "error"])
        feed = _fed.FeedServer(mine, "127.0.0.1", server.key)
        nodes.append(mine)
        servers.append(feed)
        info.append(
            {
                "executor_id": number,
                "addr": ("127.0.0.1", feed.port),
                "authkey": server.key,
                "server_addr": address,
            }
        )
    yield SimpleNamespace(nodes=nodes, info=info, servers=servers, server=server)
    for feed in servers:
        feed.close()
    server.stop()


def consume(mine, results=lambda batch: None, size=7, train_mode=True):
    """Read a node's rows in a thread, as its program would."""
    found = []

    def work():
        feed = TFNode.DataFeed(mine, train_mode)
        while not feed.should_stop():
            batch = feed.next_batch(size)
            found.extend(batch)
            answers = results(batch)
            if answers is not None:
                feed.batch_results(answers)

    thread = threading.Thread(target=work, name="program")
    thread.start()
    return found, thread


def test_two_feeders_feed_two_nodes_and_wait_until_all_is_taken(there, no_leaks):
    big = [bytes(1000)] * 3000  # several chunks
    feeders = [
        threading.Thread(
            target=_feeding.Feeder(there.info, patience(), "input", 0).train,
            args=(big,),
            name="feeder",
        )
        for _ in range(2)
    ]
    for each in feeders:
        each.start()
    wait_for(lambda: not any(n.get_queue("input").empty() for n in there.nodes), "rows for both")
    found = [consume(mine) for mine in there.nodes]
    for each in feeders:
        each.join(patience())
    for mine, (_, thread) in zip(there.nodes, found, strict=True):
        mine.end_feeds()
        thread.join(patience())
    assert [len(rows) for rows, _ in found] == [3000, 3000]  # one each, though both began at 0


def test_answers_come_one_for_each_row_and_in_order(there, no_leaks):
    found = [
        consume(mine, lambda batch: [row * row for row in batch], train_mode=False)
        for mine in there.nodes
    ]
    answers = {}

    def ask(partition):
        rows = range(partition * 1000, partition * 1000 + 500 * partition)
        feeder = _feeding.Feeder(there.info, patience(), "input", partition)
        answers[partition] = list(feeder.infer(iter(rows))) == [row * row for row in rows]

    askers = [threading.Thread(target=ask, args=(n,), name="asker") for n in range(5)]
    for each in askers:
        each.start()
    for each in askers:
        each.join(patience())
    assert answers == dict.fromkeys(range(5), True)
    for mine, (_, thread) in zip(there.nodes, found, strict=True):
        mine.end_feeds()
        thread.join(patience())


@pytest.mark.parametrize(
    ("change", "words"), [(1, "5 results for the 4 rows"), (-1, "read no row|returned only")]
)
def test_a_wrong_number_of_answers_is_an_error_that_says_so(there, change, words):
    def answers(batch):
        return [*batch, 0] if change > 0 else batch[:-1]

    _, thread = consume(there.nodes[0], answers, train_mode=False)
    feeder = _feeding.Feeder(there.info[:1], 0.5, "input", 3)
    with pytest.raises(GridflowError, match=words):
        list(feeder.infer([1, 2, 3, 4]))
    there.servers[0].end()
    thread.join(patience())


def test_feeding_ends_early_fails_or_times_out_in_words(there, no_leaks):
    feeder = _feeding.Feeder(there.info[:1], 0.3, "input", 0)
    with pytest.raises(GridflowError, match="Timeout while feeding partition 0"):
        feeder.train([1, 2, 3])
    there.nodes[0].set("state", "terminating")
    for node in there.nodes:
        node.set("state", "terminating")
    feeder = _feeding.Feeder(there.info, 5, "input", 0)
    assert feeder.train([1, 2, 3]) == 0
    assert feeder.unwanted
    with pytest.raises(GridflowError, match=r"no more rows"):
        list(_feeding.Feeder(there.info, 5, "input", 0).infer([1]))
    assert list(_feeding.Feeder(there.info, 5, "input", 0).infer([])) == []
    there.servers[0].fail("ZeroDivisionError: division by zero")
    with pytest.raises(GridflowError, match="division by zero"):
        _feeding.Feeder(there.info[:1], 5, "input", 0).train([1])


def test_what_the_rows_themselves_fail_with_stays_what_it_is(there):
    def rows():
        yield from range(100)
        raise FileNotFoundError("no such file of the user's")

    _found, thread = consume(there.nodes[0])
    for_ever = 3600.0
    with pytest.raises(FileNotFoundError, match="of the user's"):
        _feeding.Feeder(there.info[:1], for_ever, "input", 0).train(rows())
    with pytest.raises(FileNotFoundError, match="of the user's"):
        list(_feeding.Feeder(there.info[:1], for_ever, "input", 0).infer(rows()))
    there.servers[0].end()
    thread.join(patience())


def test_rows_that_a_node_cannot_read_fail_in_its_program(there):
    class Foreign:
        def __reduce__(self):
            return __import__, ("a_module_of_the_driver",)

    failures = []

    def program():
        try:
            TFNode.DataFeed(there.nodes[0]).next_batch(3)
        except ModuleNotFoundError as error:
            failures.append(error)
            there.servers[0].fail(str(error))  # as a node does

    thread = threading.Thread(target=program, name="program")
    thread.start()
    with pytest.raises(GridflowError, match="a_module_of_the_driver"):
        _feeding.Feeder(there.info[:1], 5, "input", 0).train([1, Foreign(), 3])
    thread.join(patience())
    assert len(failures) == 1


def test_a_program_that_wants_no_more_rows_leaves_no_question_open(there):
    def give_up(batch):
        there.nodes[0].set("state", "terminating")
        there.nodes[0].get_queue("input").close()

    _, thread = consume(there.nodes[0], give_up, train_mode=False)
    with pytest.raises(GridflowError, match="terminate|no more rows"):
        list(_feeding.Feeder(there.info[:1], 5, "input", 0).infer(range(100_000)))
    thread.join(patience())


def test_a_node_that_is_gone_is_explained_by_the_driver(there):
    there.servers[0].close()
    there.server.note(failure="what the program raised")
    with pytest.raises(GridflowError, match="what the program raised"):
        _feeding.Feeder(there.info[:1], 5, "input", 0).train([1])


def test_a_stranger_is_refused_and_nothing_of_him_is_unpickled(there, tmp_path):
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "made"),)

    host, port = there.info[0]["addr"]
    for words in (pickle.dumps(Evil()), b"", b"\x00\x00\x00\x05hello" * 1000):
        with (
            contextlib.suppress(OSError),
            socket.create_connection((host, port), patience()) as stranger,
        ):
            stranger.sendall(words)
            stranger.shutdown(socket.SHUT_WR)
            while stranger.recv(100):  # until it is sent away
                pass
    with pytest.raises(AuthenticationError):
        psk_tls.knock((host, port), b"another key")
    assert not (tmp_path / "made").exists()
    found, thread = consume(there.nodes[0])
    assert _feeding.Feeder(there.info[:1], 5, "input", 0).train([1]) == 1
    there.nodes[0].end_feeds()
    thread.join(patience())
    assert found == [1]


# The list of nodes -------------------------------------------------------------------------------
