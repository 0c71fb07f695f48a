"""Feeders and nodes of `gridflow.compat.tfos` side by side: rows, answers, failures."""

from __future__ import annotations

import contextlib
import itertools
import pickle
import random
import socket
import subprocess
import sys
import threading
from types import SimpleNamespace

import pyarrow as pa
import pytest
from tfos_nodes import Node

from gridflow import GridflowError, RunTimeout, TaskLost
from gridflow._feed.push.exactly_once import PartitionAttempt
from gridflow._wire.identity import make_identities
from gridflow.compat.tfos import _node, _queues, reservation
from gridflow.compat.tfos._feeding import Feeder
from suite.waiting import patience, wait_for


@pytest.fixture
def there(tmp_path):
    """Give two nodes of a cluster without one, and the list of them."""
    server, identity = reservation.Server(2, ["executor_id"], host="127.0.0.1"), make_identities()
    address = server.start()
    nodes = [Node(tmp_path / f"node-{number}", identity[1]) for number in range(2)]
    info = [
        {
            "executor_id": number,
            "addr": node.address,
            "identity": identity[1],
            "authkey": server.key,
            "server_addr": address,
        }
        for number, node in enumerate(nodes)
    ]
    yield SimpleNamespace(nodes=nodes, info=info, server=server)
    for node in nodes:
        node.close()
    server.stop()


def feeder(info, number=0, partition=0, stage=3, timeout=None):
    return Feeder(info, timeout or patience(), "input", PartitionAttempt(stage, partition, number))


def train(info, rows, *attempt, **options):
    """Be a try to feed a partition."""
    return feeder(info, *attempt, **options).train(_queues.batches(rows))


class Torn(Exception):
    """What a task that is killed does to its rows."""


def torn(rows, after):
    """Yield rows up to a place, and fail there."""
    yield from rows[:after]
    raise Torn


def test_tries_that_were_torn_leave_each_row_once(there, no_leaks):
    """Wherever they were, and however busy the nodes are when the next one comes."""
    for node in there.nodes:
        node.run()
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
        for _ in range(2):  # all of it is there when the second one comes
            assert train(info, rows, next(numbers), partition) == 500
    nodes = [node.end() for node in there.nodes]
    assert sum(map(len, nodes)) == len(wanted)
    assert sorted(itertools.chain(*nodes)) == wanted
    for partition in range(12):
        parts = [[row[1] for row in rows if row[0] == partition] for rows in nodes]
        assert [part for part in parts if part] == [list(range(500))]  # on one node, in their order


def test_tries_to_feed_columns_that_were_torn_leave_each_row_once(there, no_leaks):
    for node in there.nodes:
        node.run()
    chance = random.Random(8)
    numbers = iter(range(10_000))
    rows = [{"n": n, "x": "x" * chance.choice((1, 3000))} for n in range(900)]
    batches = pa.Table.from_pylist(rows).to_batches(max_chunksize=70)

    def send(source):
        return feeder(chance.sample(there.info, 2), next(numbers)).train(source)

    for after in (5, 2, 12):
        with pytest.raises(Torn):
            send(torn(batches, after))
    assert send(batches) == send(batches) == 900
    (found,) = [each for each in (node.end() for node in there.nodes) if each]
    assert [row.asDict() for row in found] == rows


def test_a_copy_of_a_slow_task_takes_its_place(there, no_leaks):
    for node in there.nodes:
        node.run()
    rows = [(n, "x" * 5000) for n in range(3000)]
    slow, ends = threading.Event(), {}

    def slowly():
        yield from rows[:700]
        slow.wait(patience())
        yield from rows[700:]

    def work():
        with pytest.raises(TaskLost, match="later attempt") as error:
            train(there.info, slowly(), 1)
        ends[1] = error

    task = threading.Thread(target=work, name="task")
    task.start()
    wait_for(lambda: any(node.rows for node in there.nodes), "rows")
    assert train(there.info, rows, 2) == 3000
    slow.set()
    task.join(patience())
    assert 1 in ends
    assert sorted(node.end() for node in there.nodes) == [[], rows]


def test_a_try_ends_when_all_of_its_partition_was_read_whoever_sent_it(there, no_leaks):
    for node in there.nodes:
        node.gate.clear()
        node.run()
    rows = list(range(100))
    with pytest.raises(Torn):
        train(there.info, torn(rows, 100), 1)
    begun, was_open = threading.Event(), []

    def rows_and_a_sign():
        yield from rows
        begun.set()

    def again():
        train(there.info, rows_and_a_sign(), 2)
        was_open.append(all(node.gate.is_set() for node in there.nodes))

    task = threading.Thread(target=again, name="task")
    task.start()
    assert begun.wait(patience())
    for node in there.nodes:
        node.gate.set()
    task.join(patience())
    assert was_open == [True], "rows of the first try lay there still"
    assert sorted(node.end() for node in there.nodes) == [[], rows]


def test_an_earlier_try_does_not_begin_behind_the_back_of_a_later_one(there, no_leaks):
    for node in there.nodes:
        node.run()
    assert train(there.info, [1, 2, 3], 2) == 3
    with pytest.raises(TaskLost, match="later attempt"):
        train(there.info, [1, 2, 3], 1)
    # Of another stage, and of another partition, they are other rows.
    assert train(there.info, [4], 3, stage=4) == 1
    assert train(there.info, [5], 1, partition=1) == 1
    rows = itertools.chain(*(node.end() for node in there.nodes))
    assert sorted(rows) == [1, 2, 3, 4, 5]


def test_rows_that_a_node_doesnt_want_go_to_another(there, no_leaks):
    first, second = there.nodes
    second.run()
    first.queues.set("state", "terminating")
    assert train(there.info, range(100), 1) == 100
    assert second.end() == list(range(100))


def test_two_partitions_go_to_two_nodes_and_feeders_wait_until_all_is_read(there, no_leaks):
    big = [bytes(1000)] * 3000  # several batches
    feeders = [
        threading.Thread(target=train, args=(there.info, big, 0, n), name="feeder")
        for n in range(2)
    ]
    for each in feeders:
        each.start()
    inputs = [node.queues.get_queue("input") for node in there.nodes]
    wait_for(lambda: not any(each.empty() for each in inputs), "rows for both")
    assert all(each.is_alive() for each in feeders)
    for node in there.nodes:
        node.run()
    for each in feeders:
        each.join(patience())
    assert [len(node.end()) for node in there.nodes] == [3000, 3000]


def test_feeders_wait_while_much_waits(tmp_path, no_leaks):
    identity = make_identities()[1]
    node = Node(tmp_path / "node", identity, limit=1 << 20)
    info = [{"addr": node.address, "identity": identity, "authkey": b"", "server_addr": None}]
    made = []

    def rows():
        for n in range(100):
            made.append(n)
            yield n, bytes(100_000)

    task = threading.Thread(target=train, args=(info, rows()), name="feeder")
    task.start()
    queue = node.queues.get_queue("input")
    wait_for(lambda: queue.qsize() >= 6, "rows")
    task.join(0.3)
    assert len(made) < 50
    node.run()
    task.join(patience())
    assert [row[0] for row in node.end()] == list(range(100))
    node.close()


def test_answers_come_one_for_each_row_and_in_order(there, no_leaks):
    for node in there.nodes:
        node.run(lambda batch: [row * row for row in batch], train_mode=False)
    answers = {}

    def ask(partition):
        rows = range(partition * 1000, partition * 1000 + 500 * partition)
        found = list(feeder(there.info, 0, partition).infer(iter(rows)))
        answers[partition] = found == [row * row for row in rows]

    askers = [threading.Thread(target=ask, args=(n,), name="asker") for n in range(5)]
    for each in askers:
        each.start()
    for each in askers:
        each.join(patience())
    assert answers == dict.fromkeys(range(5), True)


@pytest.mark.parametrize(
    ("change", "words"), [(1, "5 results for the 4 rows"), (-1, "read no row|returned only")]
)
def test_a_wrong_number_of_answers_is_an_error_that_says_so(there, change, words):
    def answers(batch):
        return [*batch, 0] if change > 0 else batch[:-1]

    node = there.nodes[0]
    node.run(lambda batch: answers(batch) if batch else [], train_mode=False)

    def fail():
        """Be the driver: it is told what the program has failed with, and ends the agent."""
        wait_for(lambda: node.error, "an error of the program")
        there.server.note(failure=str(node.error))
        node.streams.close()

    driver = threading.Thread(target=fail, name="driver")
    if change > 0:
        driver.start()
    with pytest.raises(GridflowError, match=words):
        list(feeder(there.info[:1], 0, 3, timeout=0.5 if change < 0 else None).infer([1, 2, 3, 4]))
    if change > 0:
        driver.join(patience())


def test_batches_of_answers_end_with_partitions(there, no_leaks):
    seen = []
    there.nodes[0].run(lambda batch: seen.append(batch) or batch, size=4, train_mode=False)
    for partition in range(2):
        rows = [partition * 10 + n for n in range(6)]
        assert list(feeder(there.info[:1], 0, partition).infer(rows)) == rows
    there.nodes[0].end()
    assert seen == [[0, 1, 2, 3], [4, 5], [10, 11, 12, 13], [14, 15], []]


def test_feeding_ends_early_fails_or_times_out_in_words(there, no_leaks):
    with pytest.raises(RunTimeout, match="Timeout while feeding partition 0: the program read no"):
        train(there.info[:1], [1, 2, 3], timeout=0.3)
    for node in there.nodes:
        node.queues.set("state", "terminating")
    unwanted = feeder(there.info, 1)
    unwanted.train(_queues.batches([1, 2, 3]))
    assert unwanted.unwanted
    with pytest.raises(GridflowError, match=r"no more rows"):
        list(feeder(there.info).infer([1]))
    assert list(feeder(there.info).infer([])) == []


def test_what_the_rows_themselves_fail_with_stays_what_it_is(there):
    def rows():
        yield from range(100)
        raise FileNotFoundError("no such file of the user's")

    there.nodes[0].run()
    with pytest.raises(FileNotFoundError, match="of the user's"):
        train(there.info[:1], rows())
    with pytest.raises(FileNotFoundError, match="of the user's"):
        list(feeder(there.info[:1]).infer(rows()))


def test_rows_that_a_node_cannot_read_fail_in_its_program(there):
    class Foreign:
        def __reduce__(self):
            return __import__, ("a_module_of_the_driver",)

    node, client = (
        there.nodes[0],
        reservation.Client(there.info[0]["server_addr"], there.server.key),
    )
    node.run()

    def fail():
        wait_for(lambda: node.error, "an error of the program")
        _node._tell(client, node.error)  # as a node does
        node.streams.close()

    driver = threading.Thread(target=fail, name="driver")
    driver.start()
    with pytest.raises(GridflowError, match="a_module_of_the_driver"):
        train(there.info[:1], [1, Foreign(), 3])
    driver.join(patience())
    client.close()
    assert isinstance(node.error, ModuleNotFoundError)


def test_a_program_that_wants_no_more_rows_leaves_no_question_open(there):
    node = there.nodes[0]

    def give_up(batch):
        node.queues.set("state", "terminating")
        node.queues.get_queue("input").close()
        return []

    node.run(give_up, train_mode=False)
    with pytest.raises(GridflowError, match="terminate|no more rows"):
        list(feeder(there.info[:1]).infer(range(100_000)))


def test_a_node_that_is_gone_is_explained_by_the_driver(there):
    there.nodes[0].streams.close()
    there.server.note(failure="what the program raised")
    for send in (train, lambda info, rows: list(feeder(info).infer(rows))):
        with pytest.raises(GridflowError, match="what the program raised"):
            send(there.info[:1], [1])


def test_a_feeder_that_is_killed_leaves_its_rows(there, no_leaks):
    node = there.nodes[0]
    code = (
        "import pickle, sys\n"
        "from gridflow._feed.push.exactly_once import PartitionAttempt\n"
        "from gridflow.compat.tfos import _queues\n"
        "from gridflow.compat.tfos._feeding import Feeder\n"
        "info = pickle.load(sys.stdin.buffer)\n"
        "rows = ((n, 'x' * 9000) for n in range(1000))\n"
        "Feeder(info, 20, 'input', PartitionAttempt(0, 0, 0)).train(_queues.batches(rows))"
    )
    task = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    try:
        pickle.dump(there.info[:1], task.stdin)
        task.stdin.close()
        wait_for(lambda: node.queues.get_queue("input").qsize() > 100, "a hundred rows")
    finally:
        task.kill()
        task.wait()
    node.run()
    found = node.end()
    assert len(found) > 100
    assert found == [(n, "x" * 9000) for n in range(len(found))]


def test_who_listens_on_the_wire_reads_nothing_of_rows_answers_and_keys(there, no_leaks):
    wire = bytearray()
    node = there.nodes[0]
    node.run()
    with proxy(node.address, wire) as address:
        info = [{**there.info[0], "addr": "{}:{}".format(*address)}]
        assert train(info, [(n, "confidential") for n in range(99)]) == 99
    assert node.end()[-1] == (98, "confidential")
    assert wire.startswith(b"\x16\x03")  # a handshake of TLS
    assert len(wire) > 1500
    for secret in (b"confidential", there.server.key, b"input"):
        assert secret not in wire

    server = reservation.Server(1, host="127.0.0.1")
    wire.clear()
    try:
        with proxy("{}:{}".format(*server.start()), wire) as address:
            client = reservation.Client(address, server.key)
            client.register({"host": "here", "authkey": server.key})
            assert client.await_reservations() == [{"host": "here", "authkey": server.key}]
            client.close()
    finally:
        server.stop()
    assert len(wire) > 1000
    assert server.key not in wire
    assert b"await" not in wire


@contextlib.contextmanager
def proxy(address, seen):
    """Pass on one connection, and note all that goes through it."""
    host, _, port = address.rpartition(":")
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
        ends.extend((listener.accept()[0], socket.create_connection((host, int(port)))))
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
