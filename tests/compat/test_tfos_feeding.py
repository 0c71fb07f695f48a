"""Rows on their way to the nodes of `gridflow.compat.tfos`: each once, and unseen by others."""

from __future__ import annotations

import contextlib
import itertools
import pickle
import random
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

from gridflow import GridflowError, TaskLost
from gridflow._feed.push.exactly_once import PartitionAttempt
from gridflow.compat.tfos import TFNode, _fed, _memory, _node, reservation
from gridflow.compat.tfos._chunks import CHUNK_BYTES
from gridflow.compat.tfos._feeding import BUSY, Feeder
from gridflow.compat.tfos._frames import chunks
from gridflow.compat.tfos._queues import NodeQueues
from suite.waiting import patience, wait_for


@pytest.fixture
def there():
    """Give two nodes of a cluster without one, whose programs read all that comes."""
    server = reservation.Server(2, ["executor_id"], host="127.0.0.1")
    address = server.start()
    nodes = []
    for number in range(2):
        queues = NodeQueues(["input", "output", "error"])
        feed = _fed.FeedServer(queues, "127.0.0.1", server.key)
        known = {
            "executor_id": number,
            "addr": ("127.0.0.1", feed.port),
            "authkey": server.key,
            "server_addr": address,
        }
        rows, gate = [], threading.Event()
        gate.set()
        program = threading.Thread(target=read, args=(queues, rows, gate), name="program")
        program.start()
        nodes.append(SimpleNamespace(feed=feed, info=known, gate=gate, queues=queues, rows=rows))
        nodes[-1].program = program
    yield SimpleNamespace(nodes=nodes, info=[node.info for node in nodes])
    for node in nodes:
        node.gate.set()
        node.feed.end()
        node.feed.close()
    server.stop()


@pytest.fixture(params=["shared", "sent"])
def way(request, monkeypatch):
    """Feed by memory, and as a node of another host is fed."""
    if request.param == "sent":
        monkeypatch.setattr(_memory, "borrowed", lambda offer: None)
    return request.param


def read(queues, rows, gate):
    """Be the program of a node."""
    feed = TFNode.DataFeed(queues)
    while not feed.should_stop():
        gate.wait()
        rows.extend(feed.next_batch(7))


class Torn(Exception):
    """What a task that is killed does to its rows."""


def rows_of(there):
    """End the feeds, and return what each program has got."""
    for node in there.nodes:
        node.queues.end_feeds()
        node.program.join(patience())
    return [node.rows for node in there.nodes]


def torn(rows, after):
    """Yield rows up to a place, and fail there."""
    yield from rows[:after]
    raise Torn


def train(info, rows, number, partition=0):
    """Be a try to feed a partition."""
    return Feeder(
        info, patience(), "input", partition, PartitionAttempt(3, partition, number)
    ).train(rows)


@pytest.mark.usefixtures("way")
def test_tries_that_were_torn_leave_each_row_once(there, no_leaks):
    """Wherever they were, and however busy the nodes are when the next one comes."""
    chance = random.Random(7)
    wanted, numbers = [], iter(range(10_000))
    for partition in range(12):
        rows = [(partition, n, "x" * chance.choice((1, 3000))) for n in range(500)]
        wanted += rows
        for _ in range(chance.randrange(3)):
            with pytest.raises(Torn):
                train(there.info, torn(rows, chance.randrange(501)), next(numbers), partition)
        # The node that has the rows isn't the first to be looked at, and another is less busy.
        info = chance.sample(there.info, 2)
        train(info, rows, next(numbers), partition)
        assert train(there.info, rows, next(numbers), partition) == 0  # all of it is there
    nodes = rows_of(there)
    assert sum(map(len, nodes)) == len(wanted)
    assert sorted(itertools.chain(*nodes)) == wanted
    for partition in range(12):
        parts = [[row[1] for row in rows if row[0] == partition] for rows in nodes]
        assert [part for part in parts if part] == [list(range(500))]  # on one node, in their order


@pytest.mark.usefixtures("way")
def test_tries_to_feed_columns_that_were_torn_leave_each_row_once(there, no_leaks):
    chance = random.Random(8)
    numbers = iter(range(10_000))
    rows = [{"n": n, "x": "x" * chance.choice((1, 3000))} for n in range(900)]
    batches = pa.Table.from_pylist(rows).to_batches(max_chunksize=70)

    def send(source):
        info = chance.sample(there.info, 2)
        feeder = Feeder(info, patience(), "input", 0, PartitionAttempt(3, 0, next(numbers)))
        return feeder.train(source, lambda found, first: chunks(found, first, ["n", "x"]))

    for after in (5, 2, 12):
        with pytest.raises(Torn):
            send(torn(batches, after))
    assert send(batches) > 0
    assert send(batches) == 0
    (found,) = [each for each in rows_of(there) if each]
    assert [row.asDict() for row in found] == rows


def test_a_copy_of_a_slow_task_feeds_beside_it(there, no_leaks):
    rows = [(n, "x" * 5000) for n in range(3000)]
    slow = threading.Event()

    def slowly():
        yield from rows[:700]
        slow.wait(patience())
        yield from rows[700:]

    counts = {}

    def work(number, source):
        counts[number] = train(there.info, source, number)

    threads = [threading.Thread(target=work, args=(1, slowly()), name="task")]
    threads[0].start()
    wait_for(lambda: any(node.rows for node in there.nodes), "rows")
    threads.append(threading.Thread(target=work, args=(2, iter(rows)), name="copy"))
    threads[1].start()
    threads[1].join(patience())
    assert not threads[1].is_alive()
    slow.set()
    threads[0].join(patience())
    assert counts[1] == 3000
    assert counts[2] < 3000
    assert sorted(rows_of(there)) == [[], rows]


def test_a_try_ends_when_all_of_its_partition_was_taken_whoever_sent_it(
    there, no_leaks, monkeypatch
):
    for node in there.nodes:
        node.gate.clear()
    rows = list(range(100))
    with pytest.raises(Torn):
        train(there.info, torn(rows, 100), 1)
    welcomed, may_be_taken = threading.Event(), []

    def answered(feeder, *question):
        answer = ask(feeder, *question)
        welcomed.set()
        return answer

    def feed_again():
        train(there.info, rows, 2)
        may_be_taken.append(all(node.gate.is_set() for node in there.nodes))

    ask = Feeder._ask
    monkeypatch.setattr(Feeder, "_ask", answered)
    again = threading.Thread(target=feed_again, name="task")
    again.start()
    assert welcomed.wait(patience())
    for node in there.nodes:
        node.gate.set()
    again.join(patience())
    assert may_be_taken == [True], "rows of the first try lay there still"
    assert sorted(rows_of(there)) == [[], rows]


def test_an_earlier_try_does_not_begin_behind_the_back_of_a_later_one(there, no_leaks):
    later = Feeder(there.info, patience(), "input", 0, PartitionAttempt(3, 0, 2))
    for place in range(2):
        hello = {"queue": "input", "answers": False, "beside": -1}
        assert later._ask(place, {**hello, **PartitionAttempt(3, 0, 2).header("3")}) == BUSY
    with pytest.raises(TaskLost, match="later attempt"):
        train(there.info, [1, 2, 3], 1)
    assert later.train([1, 2, 3]) == 3
    # Of another stage, and of another partition, they are other rows.
    assert Feeder(there.info, patience(), "input", 0, PartitionAttempt(4, 0, 3)).train([4]) == 1
    assert Feeder(there.info, patience(), "input", 1, PartitionAttempt(3, 1, 1)).train([5]) == 1
    assert sorted(itertools.chain(*rows_of(there))) == [1, 2, 3, 4, 5]


def test_a_try_after_the_rows_were_wanted_no_more_brings_none_elsewhere(there, no_leaks):
    rows = list(range(100))
    with pytest.raises(Torn):
        train(there.info, torn(rows, 50), 1)
    (taker,) = wait_for(lambda: [node for node in there.nodes if node.rows], "rows")
    taker.queues.set("state", "terminating")
    again = Feeder(there.info, patience(), "input", 0, PartitionAttempt(3, 0, 2))
    assert (again.train(rows), again.unwanted) == (0, True)
    assert (
        Feeder(there.info, patience(), "input", 1, PartitionAttempt(3, 1, 3)).train([1, 2]) == 2
    )  # another's rows
    assert sum(map(len, rows_of(there))) <= 50 + 2


def columns(rows):
    """Return rows as a DataFrame's come to a task, and what makes chunks of them."""
    batches = pa.Table.from_pylist(rows).to_batches(max_chunksize=50)
    return batches, lambda found, first: chunks(found, first, ["n", "x"])


@pytest.mark.parametrize("kind", ["rows", "columns"])
def test_rows_lie_in_memory_and_are_not_sent(there, way, kind, no_leaks):
    # One of them is larger than what the memory has room for.
    rows = [{"n": n, "x": f"{n}" * (CHUNK_BYTES if n == 100 else 9000)} for n in range(300)]
    source, cut = columns(rows) if kind == "columns" else (rows, None)
    node, wire = there.nodes[0], bytearray()
    with proxy(node.info["addr"], wire) as address:
        info = [{**node.info, "addr": address}]
        assert Feeder(info, patience(), "input", 0).train(source, cut) == 300
    found = rows_of(there)[0]
    assert (found if kind == "rows" else [row.asDict() for row in found]) == rows
    size = 3 * CHUNK_BYTES
    # With that row go others of its chunk.
    assert size < len(wire) < 2 * size if way == "shared" else len(wire) > 4 * size


@pytest.mark.parametrize("kind", ["rows", "columns"])
def test_memory_is_not_written_to_before_its_rows_were_taken(there, kind, no_leaks):
    """Even if later ones need not be kept, because another try has brought them."""
    for node in there.nodes:
        node.gate.clear()
    rows = [{"n": n, "x": f"{n:06}" * 1000} for n in range(3000)]
    source, cut = columns(rows) if kind == "columns" else (rows, None)
    pause = threading.Event()

    def slowly():
        yield from itertools.islice(source, len(source) // 15)
        pause.wait(patience())
        yield from itertools.islice(source, len(source) // 15, None)

    def work(number, found):
        Feeder(there.info, patience(), "input", 0, PartitionAttempt(3, 0, number)).train(found, cut)

    first = threading.Thread(target=work, args=(1, slowly()), name="task")
    copy = threading.Thread(target=work, args=(2, source), name="copy")
    first.start()
    wait_for(lambda: any(n.queues.get_queue("input").qsize() for n in there.nodes), "rows")
    copy.start()
    copy.join(0.3)  # this one has gone on, as far as it may
    pause.set()
    first.join(0.3)  # the first comes to rows that the copy has sent
    for node in there.nodes:
        node.gate.set()
    for task in (first, copy):
        task.join(patience())
        assert not task.is_alive()
    (found,) = [each for each in rows_of(there) if each]
    assert (found if kind == "rows" else [row.asDict() for row in found]) == rows


def test_a_feeder_that_is_killed_leaves_its_rows_and_nothing_else(there, no_leaks):
    node = there.nodes[0]
    node.gate.clear()
    code = (
        "import pickle, sys; from gridflow.compat.tfos._feeding import Feeder\n"
        "info = pickle.load(sys.stdin.buffer)\n"
        "rows = ((n, 'x' * 9000) for n in range(1000))\n"
        "Feeder(info, 20, 'input', 0).train(rows)"
    )
    task = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    try:
        pickle.dump([node.info], task.stdin)
        task.stdin.close()
        wait_for(lambda: node.queues.get_queue("input").qsize() > 100, "a hundred rows")
        assert memory_is_mapped()
    finally:
        task.kill()
        task.wait()
    node.gate.set()
    wait_for(lambda: node.queues.get_queue("input").empty(), "a program that has all rows")
    found = rows_of(there)[0]
    assert len(found) > 100
    assert found == [(n, "x" * 9000) for n in range(len(found))]
    wait_for(lambda: not memory_is_mapped(), "the end of the mapped memory")


def memory_is_mapped():
    return "memfd:gridflow" in Path("/proc/self/maps").read_text()


def test_who_listens_on_the_wire_reads_nothing_of_rows_answers_and_keys(there, no_leaks):
    wire = bytearray()
    node = there.nodes[0]
    with proxy(node.info["addr"], wire) as address:
        info = [{**node.info, "addr": address}]
        assert (
            Feeder(info, patience(), "input", 0).train([(n, "confidential") for n in range(99)])
            == 99
        )
    assert rows_of(there)[0][-1] == (98, "confidential")
    assert wire.startswith(b"\x16\x03")  # a handshake of TLS
    assert len(wire) > 1500
    for secret in (b"confidential", node.info["authkey"], b"input"):
        assert secret not in wire

    server = reservation.Server(1, host="127.0.0.1")
    wire.clear()
    try:
        with proxy(server.start(), wire) as address:
            client = reservation.Client(address, server.key)
            client.register({"host": "here", "authkey": server.key})
            assert client.await_reservations() == [{"host": "here", "authkey": server.key}]
            client.close()
    finally:
        server.stop()
    assert len(wire) > 1000
    assert server.key not in wire
    assert b"await" not in wire


def test_the_driver_knows_what_a_node_died_of_before_its_feeders_do(there):
    # Spark gives up on feeders that fail four times, which is a matter of a moment.
    first, told = there.nodes[0].feed, []
    client = SimpleNamespace(report_failure=lambda text: told.append((text, first.failure)))
    _node._tell(client, first, ValueError("what a pity"))
    ((text, known_by_then),) = told
    assert "ValueError: what a pity" in text
    assert not known_by_then
    with pytest.raises(GridflowError, match="what a pity"):
        train(there.info[:1], range(10), 1)


@contextlib.contextmanager
def proxy(address, seen):
    """Pass on one connection, and note all that goes through it."""
    listener = socket.create_server(("127.0.0.1", 0))
    ends = []

    def copy(source, target):
        with contextlib.suppress(OSError):
            while piece := source.recv(65536):
                seen.extend(piece)
                target.sendall(piece)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def work():
        ends.extend((listener.accept()[0], socket.create_connection(address)))
        back = threading.Thread(target=copy, args=(ends[1], ends[0]), name="proxy")
        back.start()
        copy(*ends)
        back.join(patience())

    thread = threading.Thread(target=work, name="proxy")
    thread.start()
    yield listener.getsockname()
    thread.join(patience())
    for each in (listener, *ends):
        each.close()
