"""The parts of `gridflow.compat.tfos` alone: rows, queues, nodes' list, paths, GPUs, aliases."""

from __future__ import annotations

import argparse
import contextlib
import getpass
import itertools
import json
import os
import pickle
import queue
import random
import socket
import ssl
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from multiprocessing import AuthenticationError
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from cryptography import x509
from cryptography.exceptions import InvalidSignature

from gridflow import (
    GridflowError,
    InvalidArgument,
    NetworkError,
    NotEnoughGpus,
    StartTimeout,
)
from gridflow._wire import identity, psk_tls
from gridflow.compat.tfos import (
    TFCluster,
    TFManager,
    TFNode,
    TFSparkNode,
    _fed,
    _feeding,
    _node,
    _setting,
    compat,
    gpu_info,
    marker,
    reservation,
    util,
)
from gridflow.compat.tfos._params import Namespace
from gridflow.compat.tfos._queues import NodeQueues
from suite.waiting import patience, wait_for


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


def test_nodes_register_and_wait_for_each_other(no_leaks):
    server = reservation.Server(3)
    address = server.start()
    try:
        clients = [reservation.Client(address) for _ in range(3)]
        assert [clients[n].register({"node": n, "key": b"\x00"}) for n in range(3)] == ["OK"] * 3
        assert len(clients[0].await_reservations()) == 3
        assert server.await_reservations()[0]["key"] == b"\x00"
        clients[0].request_stop()
        assert server.done
        for client in clients:
            client.close()
    finally:
        server.stop()


def test_waiting_for_nodes_that_do_not_come_ends_in_words(no_leaks):
    with pytest.raises(InvalidArgument, match="count must be at least 1"):
        reservation.Server(0)
    server = reservation.Server(2, host="127.0.0.1")
    server.start()
    try:
        with pytest.raises(StartTimeout, match="2 of 2 nodes did not register"):
            server.await_reservations(timeout=0.2)
        with pytest.raises(GridflowError, match="what went wrong"):
            server.await_reservations(status={"error": "what went wrong"})
    finally:
        server.stop()


def test_another_process_of_the_same_user_finds_the_key_and_others_need_it(tmp_path):
    server = reservation.Server(1, host="127.0.0.1")
    host, port = server.start()
    code = (
        "import sys; from gridflow.compat.tfos import reservation\n"
        "client = reservation.Client((sys.argv[1], int(sys.argv[2]))); client.request_stop()"
    )
    command = [sys.executable, "-c", code, host, str(port)]
    try:
        lost = subprocess.run(
            command,
            check=False,
            env={**os.environ, "TMPDIR": str(tmp_path)},
            capture_output=True,
            text=True,
        )
        assert "TFOS_SERVER_KEY" in lost.stderr
        assert not server.done
        subprocess.run(command, check=True, capture_output=True)
        assert server.done
    finally:
        server.stop()


@pytest.mark.parametrize("way", ["its end", "SIGKILL"])
def test_no_key_stays_when_the_process_of_a_server_has_ended(tmp_path, way):
    code = (
        "import sys; from gridflow.compat.tfos import reservation\n"
        "server = reservation.Server(1, host='127.0.0.1'); print(*server.start(), flush=True)\n"
        "sys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        text=True,
    )
    with process:
        process.stdout.readline()
        (key,) = tmp_path.glob("gridflow-tfos-*/key")
        assert [p.stat().st_mode & 0o777 for p in (key.parent, key)] == [0o700, 0o644]
        if way == "SIGKILL":
            process.kill()
    wait_for(lambda: not list(tmp_path.iterdir()), "the end of the key")


@pytest.mark.skipif(os.geteuid() != 0, reason="plays another user")
def test_a_key_that_another_user_has_put_there_is_not_taken(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    server = reservation.Server(1, host="127.0.0.1")
    _, port = server.start()
    try:
        for owner, name in ((54_321, "planted"), (54_321, "zzz")):
            folder = tmp_path / f"gridflow-tfos-0-{port}-{name}"
            folder.mkdir(0o755)
            (folder / "key").write_bytes(b"known")
            os.chown(folder, owner, owner)
        del reservation._keys[port]  # as in another process
        assert reservation._find_key(port) == server.key
    finally:
        server.stop()


SHARED = "a secret that both of them know"


def test_both_sides_share_a_secret_by_a_variable_or_an_argument(monkeypatch, no_leaks):
    monkeypatch.setenv("TFOS_SERVER_KEY", SHARED)
    server = reservation.Server(1, host="127.0.0.1")
    address = server.start()
    monkeypatch.setattr(reservation, "_keys", {})
    try:
        for key in (None, SHARED.encode(), server.key):
            reservation.Client(address, key).close()
        with pytest.raises(AuthenticationError):
            reservation.Client(address, b"another secret of theirs")
    finally:
        server.stop()


@pytest.mark.parametrize("secret", ["hunter2", "fifteen letters", "a" * 64, "abababababababab"])
def test_a_secret_that_is_easy_to_guess_is_refused(secret, monkeypatch):
    with pytest.raises(InvalidArgument, match="key= is too easy to guess"):
        reservation.Server(1, key=secret.encode())
    with pytest.raises(InvalidArgument, match="key= is too easy to guess"):
        reservation.Client(("127.0.0.1", 1), secret.encode())
    monkeypatch.setenv("TFOS_SERVER_KEY", secret)
    with pytest.raises(
        InvalidArgument, match="TFOS_SERVER_KEY is too easy.*token_urlsafe"
    ) as found:
        reservation.Server(1)
    assert secret not in str(found.value)


def certificate_shown(address):
    """Return the certificate that a stranger is shown."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection(address, 5) as plain, context.wrap_socket(plain) as there:
        return x509.load_der_x509_certificate(there.getpeercert(binary_form=True))


def fits(certificate, secret):
    """Tell whether a guess is right, by the certificate alone."""
    authority = x509.load_pem_x509_certificate(identity.identity_of(secret).authority)
    try:
        certificate.verify_directly_issued_by(authority)
    except InvalidSignature:
        return False
    return True


def test_a_guess_of_a_shared_secret_costs_what_scrypt_costs(monkeypatch):
    monkeypatch.setenv("TFOS_SERVER_KEY", SHARED)
    server = reservation.Server(1, host="127.0.0.1")
    shown = certificate_shown(server.start())
    server.stop()
    assert not fits(shown, SHARED.encode())
    assert fits(shown, server.key)
    n, r, p = (identity._COST[name] for name in "nrp")
    assert 128 * n * r >= 32 << 20
    assert p >= 3


def test_a_random_key_is_used_as_it_is(monkeypatch):
    def slow(*_, **__):
        raise AssertionError("a random key was stretched")

    monkeypatch.setattr(identity, "Scrypt", slow)
    server = reservation.Server(1, host="127.0.0.1")
    address = server.start()
    try:
        reservation.Client(address, server.key).close()
    finally:
        server.stop()
    assert reservation.Server(1).key != server.key


def test_where_the_server_listens_is_said_by_variables(monkeypatch):
    server = reservation.Server(1)
    assert server.get_server_ip() == util.get_ip_address()
    assert server.get_server_ports() == [0]
    monkeypatch.setenv("TFOS_SERVER_HOST", "my_host")
    assert server.get_server_ip() == "my_host"
    monkeypatch.setenv("TFOS_SERVER_PORT", "9997-9999")
    assert server.get_server_ports() == [9997, 9998, 9999]
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        monkeypatch.setenv("TFOS_SERVER_PORT", str(taken.getsockname()[1]))
        with pytest.raises(NetworkError):
            server.start_listening_socket()
    monkeypatch.setenv("TFOS_SERVER_PORT", "9997-")
    with pytest.raises(InvalidArgument, match="TFOS_SERVER_PORT"):
        server.get_server_ports()


@pytest.mark.slow  # starts TensorBoard
def test_tensorboard_is_found_by_its_secret_path_alone(tmp_path, no_leaks):
    board = _node._Board("127.0.0.1", str(tmp_path))
    try:
        node = {"host": "127.0.0.1", "tb_port": board.port, "tb_path": board.path}
        url = TFCluster.TFCluster.tensorboard_url(SimpleNamespace(cluster_info=[node]))

        def status(address):
            try:
                with urllib.request.urlopen(address, timeout=patience()) as answer:
                    return answer.status
            except urllib.error.HTTPError as error:
                return error.code
            except OSError:
                return None

        assert wait_for(lambda: status(url), "TensorBoard") == 200
        for path in ("", "data/runs", "data/logdir", "index.html"):
            assert status(f"http://127.0.0.1:{board.port}/{path}") == 404
        assert len(board.path) >= 32
        assert not any(board.path in word for word in psutil.Process(board.pid).cmdline())
    finally:
        board.close()


# A node ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fs", ["file://", "hdfs://", "viewfs://", "s3a://bucket"])
def test_paths_get_the_scheme_of_the_default_file_system(fs):
    ctx = TFSparkNode.TFNodeContext(defaultFS=fs, working_dir="/here/dir")
    for path in ("hdfs://foo/bar", "file:///foo", "gs://foo/bar", "abfss://c@a/b"):
        assert ctx.absolute_path(path) == path
    assert ctx.absolute_path("/foo/bar") == f"{fs}/foo/bar"
    home = {"file://": "/here/dir", "s3a://bucket": ""}.get(fs, f"/user/{getpass.getuser()}")
    assert ctx.absolute_path("foo") == f"{fs}{home}/foo"


def test_numbers_of_nodes_go_to_servers_first_and_to_workers_last():
    assert _setting.template(6, 2, "chief", eval_node=True) == {
        "ps": [0, 1],
        "chief": [2],
        "evaluator": [3],
        "worker": [4, 5],
    }
    assert _setting.template(1, 0, "master", eval_node=False) == {"master": [0]}


@pytest.mark.parametrize("kind", [dict, argparse.Namespace, Namespace])
def test_gpus_may_be_parts_and_are_for_nodes_that_train(kind):
    def made(**words):
        return kind(words) if kind is Namespace else kind(**words)

    assert _setting.num_gpus(made()) is None
    assert _setting.num_gpus(["--num_gpus", "1"]) is None
    gpus = _setting.num_gpus(made(num_gpus=0.25))
    roles = _setting.roles_of({"ps": [0], "chief": [1], "worker": [2, 3]}, "chief", gpus)
    assert [(role.name, role.count, role.gpus) for role in roles] == [
        ("ps", 1, None),
        ("chief", 1, 0.25),
        ("worker", 2, 0.25),
    ]


@pytest.fixture
def meta(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "before")
    monkeypatch.delenv("TF_CONFIG", raising=False)
    server = reservation.Server(1)
    yield {
        "id": random.getrandbits(62),
        "cluster_template": {"chief": [0]},
        "default_fs": "file://",
        "working_dir": ".",
        "server_addr": server.start(),
    }
    server.stop()


def test_a_node_can_be_run_in_this_process(meta):
    seen = []
    node = TFSparkNode.run(lambda a, c: seen.append((a, c)), {"x": 1}, meta, False, None, [], False)
    node([0])
    ((args, ctx),) = seen
    assert args == {"x": 1}
    assert (ctx.job_name, ctx.task_index, ctx.num_workers) == ("chief", 0, 1)
    assert json.loads(os.environ["TF_CONFIG"])["task"] == {"type": "chief", "index": 0}
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""


@pytest.mark.parametrize(("args", "chosen"), [({}, "3,4"), ({"num_gpus": 1}, "3")])
def test_a_node_finds_the_gpus_that_spark_gave_to_its_task(meta, monkeypatch, args, chosen):
    import pyspark
    from pyspark.resource import ResourceInformation

    task = SimpleNamespace(resources=lambda: {"gpu": ResourceInformation("gpu", ["3", "4"])})
    monkeypatch.setattr(pyspark.TaskContext, "get", lambda: task)
    seen = []
    node = TFSparkNode.run(
        lambda *_: seen.append(os.environ["CUDA_VISIBLE_DEVICES"]),
        *(argparse.Namespace(**args), meta, False, None, [], False),
    )
    node([0])
    assert seen == [chosen]


@pytest.mark.parametrize(
    ("asked", "given", "there", "in_pod", "chosen"),
    [
        (None, [], False, False, ""),
        (None, [], True, False, "0"),
        (None, ["3"], True, False, "3"),
        (None, [], True, True, ""),
        (1, [], True, False, "0"),
        (1, ["4", "5"], True, False, "4"),
        (0, [], True, False, ""),
        (1, [], True, True, NotEnoughGpus),
        (1, [], False, False, NotEnoughGpus),
        (3, ["4"], False, False, NotEnoughGpus),
    ],
)
def test_gpus_are_chosen_as_the_original_does(monkeypatch, asked, given, there, in_pod, chosen):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "before")
    monkeypatch.setattr(gpu_info, "is_gpu_available", lambda: there)
    monkeypatch.setattr(gpu_info, "get_gpus", lambda *_, **__: ["0"])
    if in_pod:
        monkeypatch.setenv("SPARK_EXECUTOR_POD_IP", "1.2.3.4")
    args = argparse.Namespace() if asked is None else argparse.Namespace(num_gpus=asked)
    if chosen is NotEnoughGpus:
        with pytest.raises(NotEnoughGpus, match="num_gpus"):
            TFSparkNode.choose_gpus(args, given, 0)
    else:
        TFSparkNode.choose_gpus(args, given, 0)
        assert os.environ["CUDA_VISIBLE_DEVICES"] == chosen


def test_free_gpus_are_those_on_which_nothing_computes(monkeypatch):
    listed = "".join(f"GPU {n}: NVIDIA H100 (UUID: GPU-{n}{n})\n" for n in range(4))
    answers = {"--list-gpus": listed, "--format=csv,noheader,nounits": "GPU-11\n"}
    monkeypatch.setattr(gpu_info, "_ask", lambda *words: answers[words[0]])
    monkeypatch.setattr(gpu_info, "_PAUSES", (0, 0, 0))
    assert gpu_info.is_gpu_available()
    assert gpu_info.get_gpus(1, 0) == "0"
    assert gpu_info.get_gpus(1, 1, format=gpu_info.AS_LIST) == ["2"]
    assert gpu_info.get_gpus(2, 0) == "0,2"
    assert len(gpu_info.get_gpus(3).split(",")) == 3
    with pytest.raises(NotEnoughGpus):
        gpu_info.get_gpus(4)


def test_hosts_are_compared_whole():
    nodes = ["10.0.0.11:1", "10.0.0.1:1", "10.0.0.11:2", "10.0.0.1:2"]
    assert [util.rank_on_host(nodes, n) for n in range(4)] == [0, 0, 1, 1]


def test_a_program_runs_under_its_old_imports(tmp_path):
    (tmp_path / "beside.py").write_text("WORD = 'beside'\n")
    (tmp_path / "program.py").write_text(
        "import sys, beside\n"
        "import tensorflowonspark\n"
        "import tensorflowonspark.util as u\n"
        "from tensorflowonspark import TFCluster, TFNode\n"
        "from tensorflowonspark.pipeline import Namespace\n"
        "import gridflow.compat.tfos.TFNode as new\n"
        "print(__name__, beside.WORD, sys.argv[1:], TFNode is new, tensorflowonspark.__version__)\n"
        "print(u.__name__, 'tensorflow' in sys.modules)\n"
    )
    command = [sys.executable, "-m", "gridflow.compat.tfos.run", "program.py", "--x", "1"]
    done = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.splitlines() == [
        "__main__ beside ['--x', '1'] True 2.2.5",
        "gridflow.compat.tfos.util False",
    ], done.stderr
    script = [*command[:3], "--path"]
    path = subprocess.run(script, capture_output=True, text=True, check=True).stdout.strip()
    again = subprocess.run(
        [sys.executable, path, "program.py", "--x", "1"],
        check=False,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert again.stdout == done.stdout, again.stderr


def test_what_an_earlier_cluster_failed_with_is_no_matter_of_the_next_one(monkeypatch):
    def result(timeout=None):
        raise GridflowError("late")

    earlier, last = SimpleNamespace(result=result), SimpleNamespace(result=result, is_last=True)
    monkeypatch.setattr(TFCluster, "_last", [last])
    monkeypatch.setattr(TFCluster, "tf_status", {})
    for handle, said in ((earlier, {}), (last, {"error": "late"})):
        with pytest.raises(GridflowError, match="late"):
            TFCluster._result(handle)
        assert TFCluster.tf_status == said


# Exports -----------------------------------------------------------------------------------------


class Exported:
    """Writes what Keras does, and fails where it is told to."""

    def __init__(self, text, error=None):
        self.text, self.error = text, error

    def export(self, folder, *, verbose):
        del verbose
        Path(folder, "variables").mkdir(parents=True)
        Path(folder, "variables", "data").write_text(self.text)
        if self.error:
            raise self.error
        Path(folder, "saved_model.pb").write_text(self.text)


def test_an_export_that_fails_leaves_the_one_that_was_there(tmp_path):
    folder = tmp_path / "export"
    compat.export_saved_model(Exported("good"), str(folder), True)
    (folder / "checkpoint").write_text("mine")
    with pytest.raises(OSError, match="full"):
        compat.export_saved_model(Exported("bad", OSError("full")), str(folder), True)
    found = {str(p.relative_to(folder)): p.read_text() for p in folder.rglob("*") if p.is_file()}
    assert found == {"checkpoint": "mine", "saved_model.pb": "good", "variables/data": "good"}
    compat.export_saved_model(Exported("better"), str(folder), True)
    assert (folder / "variables" / "data").read_text() == "better"
    assert sorted(p.name for p in folder.iterdir()) == ["checkpoint", "saved_model.pb", "variables"]
