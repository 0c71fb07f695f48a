"""Files between agents and the driver: each counts once it is whole, and lies where it has to."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import zlib
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import flight

from gridflow._agent.uploads import Uploads
from gridflow._coordinator.console import Console
from gridflow._coordinator.journal import Journal
from gridflow._coordinator.observing import Observed
from gridflow._coordinator.rpc_handler import RpcHandler
from gridflow._features.checkpoints.agent import Checkpoints
from gridflow._features.checkpoints.store import CheckpointStore
from gridflow._spec.cluster import Task
from gridflow._spec.job import parts_of
from gridflow._spec.place import Place
from gridflow._wire.client import CoordinatorClient
from gridflow._wire.identity import make_identities
from gridflow._wire.server import CoordinatorServer, inside
from gridflow._wire.transfer import CHUNK_SCHEMA, chunks
from gridflow.errors import WireError
from suite.disk import files_of_at_most
from suite.waiting import patience, wait_for

TASKS = (Task("worker", 0), Task("worker", 1))
ABOUT = {"host": "h", "address": "h:1", "environment": {}}
SIZE = 3 << 20


def sender(launch=1, rank=0):
    return {"rank": rank, "agent": f"a{launch}-{rank}", "launch": launch}


def checkpoint(step=1, launch=1, **fields):
    place = {"kind": "checkpoint", "generation": 0, "place": [0, 0, step], "label": None}
    return {**sender(launch), **place, **fields}


def result(name="value", launch=1):
    return {**sender(launch), "kind": "result", "name": name}


class Driver:
    """A driver's desk behind its real server, and an agent's client."""

    def __init__(self, folder, identities):
        ours, self.agents = identities
        self.job_dir = folder / "job"
        self.job_dir.mkdir()
        self.store = CheckpointStore(folder / "checkpoints")
        console = self.console = Console(TASKS, folder / "logs", progress=False)
        self.desk = RpcHandler(
            parts_of(TASKS, "none"),
            self.job_dir,
            self.store,
            console,
            Journal(self.job_dir),
            Observed((), console.say),
        )
        self.server = CoordinatorServer("127.0.0.1", ours, self.desk)
        self.address = f"127.0.0.1:{self.server.port}"
        self.client = CoordinatorClient(self.address, self.agents)
        self.launch(1)

    def launch(self, number):
        self.desk.new_launch(number, 0, 2)
        for rank in range(len(TASKS)):
            answer = self.desk.register({**sender(number, rank), **ABOUT})
            assert answer == {"accepted": True, "generation": 0}

    def put(self, header, *messages):
        """Send a file in messages of one's own."""
        descriptor = flight.FlightDescriptor.for_command(json.dumps(header))
        writer, _ = self.client._client.do_put(descriptor, CHUNK_SCHEMA)
        with contextlib.suppress(pa.ArrowException):  # it is told when the writer is closed
            for chunk, end in messages:
                batch = pa.record_batch([pa.array(chunk, pa.binary())], schema=CHUNK_SCHEMA)
                writer.write_with_metadata(batch, end)
        writer.close()

    def left_over(self):
        folders = (self.job_dir, self.store.folder)
        return [path for each in folders for path in each.glob(".incoming-*")]

    def close(self):
        self.client.close()
        self.server.shutdown()
        self.console.close()


@pytest.fixture(scope="module")
def identities():
    return make_identities()


@pytest.fixture
def driver(tmp_path, identities):
    driver = Driver(tmp_path, identities)
    yield driver
    assert driver.client.call("sync", {**sender(2, 9), "reports": [], "done": 0}, 10)["commands"]
    assert driver.left_over() == []
    driver.close()


@pytest.fixture
def made(tmp_path):
    path = tmp_path / "made.npz"
    with path.open("wb") as file:
        np.savez(file, weights=np.random.default_rng(1).random(SIZE // 8))
    return path


def test_a_file_comes_as_it_was_and_goes_as_it_is(driver, made, tmp_path):
    assert driver.client.upload(made, checkpoint(7)) == made.stat().st_size
    latest, wrong = driver.store.latest()
    assert (latest.place, wrong) == (Place(0, 0, 7), [])
    driver.client.download({"kind": "checkpoint", "name": latest.name}, tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == made.read_bytes()
    (tmp_path / "nothing").write_bytes(b"")
    assert driver.client.upload(tmp_path / "nothing", result()) == 0
    assert (driver.job_dir / "result" / "value").read_bytes() == b""


END = {"size": 2, "crc32": 0xA6B31D5A}


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([([b"half"], b"")], "stopped sending after 4 bytes"),
        ([], "stopped sending after 0 bytes"),
        (
            [([b"ab"], b""), ([], json.dumps({**END, "size": 3}).encode())],
            r"sent 2 bytes \(expected 3\)",
        ),
        (
            [([b"ab"], b""), ([], json.dumps({**END, "crc32": 1}).encode())],
            r"\(expected 00000001\)",
        ),
        ([([b"ab"], b""), ([], b"{}")], "ill-formed the end of a file"),
        ([([b"ab"], b""), ([], b"[" * 99_999)], "isn't JSON"),
        ([([], json.dumps({**END, "size": -1}).encode())], "ill-formed the end of a file"),
        ([([], b'{"size": 0, "crc32": 0}'), ([b"more"], b"")], "something other than the chunks"),
    ],
)
def test_what_does_not_come_whole_counts_for_nothing(driver, made, messages, words):
    driver.client.upload(made, checkpoint(1, label="rows-1"))
    with pytest.raises(flight.FlightServerError, match=words):
        driver.put(checkpoint(2, label="rows-2"), *messages)
    assert driver.store.latest()[0].place == Place(0, 0, 1)
    assert driver.store.label == "rows-1"
    with pytest.raises(flight.FlightServerError, match=words):
        driver.put(result(), *messages)
    assert not (driver.job_dir / "result").exists()


def test_a_file_that_becomes_shorter_while_it_is_sent_has_no_end(made):
    sending = chunks(made.open("rb"))
    next(sending)
    os.truncate(made, SIZE // 2)
    with pytest.raises(OSError, match="shrank by .* while it was being sent"):
        list(sending)


KILLED = """
import sys, os, signal, pickle
from pathlib import Path
from gridflow._wire import client, transfer
address, path = sys.argv[1:]
identity, header = pickle.loads(sys.stdin.buffer.read())
def half(path, offset=0):
    for number, each in enumerate(transfer.chunks(path, offset)):
        if number == 2:
            print("half", flush=True)
            signal.pause()
        yield each
client.chunks = half
client.CoordinatorClient(address, identity).upload(Path(path), header)
"""


def test_a_sender_that_is_killed_in_the_middle_leaves_nothing(driver, made):
    import pickle

    sending = subprocess.Popen(
        [sys.executable, "-c", KILLED, driver.address, str(made)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    sending.stdin.write(pickle.dumps((driver.agents, checkpoint(2, label="rows-2"))))
    sending.stdin.close()
    assert sending.stdout.readline() == b"half\n"
    sending.send_signal(signal.SIGKILL)
    sending.wait()
    sending.stdout.close()
    driver.client.upload(made, checkpoint(3))
    assert [each.place.step for each in driver.store.all_kept()] == [3]
    wait_for(lambda: not driver.left_over(), "the end of what it had sent", seen=driver.left_over)


def test_what_is_fetched_has_its_name_once_it_is_whole(driver, made, tmp_path, monkeypatch):
    from gridflow._wire import server

    name = driver.store.commit(_written(driver.store.incoming(0, 0), made), Place(0, 0, 1))
    real = server.chunks

    def ends_early(path, offset=0):
        yield next(iter(real(path, offset)))

    def fails(path, offset=0):
        yield next(iter(real(path, offset)))
        raise OSError(5, "Input/output error")

    for broken in (ends_early, fails):
        monkeypatch.setattr(server, "chunks", broken)
        with pytest.raises(
            (WireError, flight.FlightServerError), match="stopped send|Input/output"
        ):
            driver.client.download({"kind": "checkpoint", "name": name}, tmp_path / "fetched")
        assert not list(tmp_path.glob("fetched*"))


def _written(path, source):
    path.write_bytes(source.read_bytes())
    return path


BAD = {
    "no kind": {**sender()},
    "another kind": {**sender(), "kind": "program", "name": "x"},
    "a kind that is a list": {**sender(), "kind": [], "name": "x"},
    "no sender": {"kind": "result", "name": "x"},
    "no name": {**sender(), "kind": "result"},
    "an unknown field": {**result(), "mode": 0o777},
    "a rank with a path": checkpoint(rank="../../../x"),
    "a negative rank": {**result(), "rank": -1},
    "a rank beyond all": {**result(), "rank": 2**40},
    "a rank that is none": {**result(), "rank": True},
    "a huge rank": {**result(), "rank": 10**400},
    "another's rank": {**result(), "rank": 1},
    "a generation with a path": checkpoint(generation="0-0/../../x"),
    "a negative place": checkpoint(place=[0, 0, -1]),
    "a place that is too long": checkpoint(place=[0, 0, 1, 2]),
    "a place with a path": checkpoint(place=["../x", 0, 0]),
    "a label that is a number": checkpoint(label=7),
    "a negative offset": {**result(), "offset": -5},
    "an offset that isn't there": {**result(), "offset": 1 << 60},
    "an offset into an event file": {**result(), "kind": "tensorboard", "offset": 9},
    "an empty name": result(""),
    "a dot": result("."),
    "a name that leads out": result("../../x"),
    "an absolute name": result("/tmp/gridflow-x"),
    "two slashes": result("//tmp/gridflow-x"),
    "a name with NUL": result("a\0b"),
    "half a character": result("\ud800"),
    "a name that is too long": result("x" * 5000),
    "a folder of a result": result("deep/down"),
    "a name that is a number": result(7),
    "event files that lead out": {**result("a/../../x"), "kind": "tensorboard"},
    "event files over a link": {**result("link/x"), "kind": "tensorboard"},
    "event files that are a link": {**result("linked"), "kind": "tensorboard"},
    "event files over a file": {**result("file/x"), "kind": "tensorboard"},
    "a folder's name": {**result("folder"), "kind": "tensorboard"},
    "rows that nobody asked for": {**result("train"), "kind": "loan"},
    "rows that lead out": {**result("x/../../y"), "kind": "loan"},
    "an agent that isn't there": {**result(), "agent": "another"},
    "an agent of another launch": {**result(), "launch": 2},
    "an agent that is nobody": {**result(), "agent": ""},
}


def everything_under(folder):
    return {
        path: path.read_bytes() if path.is_file() and not path.is_symlink() else None
        for path in folder.rglob("*")
    }


@pytest.mark.parametrize("header", BAD.values(), ids=BAD)
def test_a_header_that_names_what_it_must_not_is_refused(driver, tmp_path, header):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "x").write_bytes(b"the user's own")
    events = driver.job_dir / "tensorboard"
    (events / "folder").mkdir(parents=True)
    (events / "file").write_bytes(b"")
    (events / "link").symlink_to(outside)
    (events / "linked").symlink_to(outside / "x")
    before = everything_under(tmp_path)
    end = json.dumps({"size": 1, "crc32": zlib.crc32(b"x")}).encode()
    with pytest.raises(flight.FlightServerError) as caught:
        driver.put(header, ([b"x"], b""), ([], end))
    assert "Traceback" not in str(caught.value)
    driver.desk.find_file({"kind": "function"})
    assert everything_under(tmp_path) == before | {
        path: found for path, found in everything_under(tmp_path).items() if path.is_dir()
    }


@pytest.mark.parametrize("body", [b"[" * 99_999, b"{", b"\xff\xfe", b"7", b"[]", b'{"rank":'])
def test_a_message_that_is_none_is_refused(driver, body):
    options = flight.FlightCallOptions(timeout=patience())
    client = driver.client._client
    for attempt in (
        lambda: list(client.do_action(flight.Action("sync", body), options)),
        lambda: list(client.do_action(flight.Action("register", body), options)),
        lambda: client.do_get(flight.Ticket(body), options).read_all(),
    ):
        with pytest.raises(flight.FlightServerError, match="an agent sent"):
            attempt()


@pytest.mark.parametrize(
    "message",
    [
        {"rank": -1},
        {"rank": "0"},
        {"launch": None},
        {"reports": [{}]},
        {"reports": [{"seq": -1}]},
        {"reports": "all"},
        {"done": 1.5},
        {"more": 1},
    ],
)
def test_reports_with_fields_of_other_types_are_refused(driver, message):
    whole = {**sender(), "reports": [], "done": 0}
    with pytest.raises(flight.FlightServerError, match="an agent sent"):
        driver.client.call("sync", {**whole, **message}, 10)
    assert driver.client.call("sync", whole, 10) == {"heard": 0, "commands": []}


@pytest.mark.parametrize(
    "wanted",
    [
        {"kind": "checkpoint", "name": "../job/function"},
        {"kind": "checkpoint", "name": ".bashrc"},
        {"kind": "checkpoint", "name": "num_workers"},
        {"kind": "checkpoint"},
        {"kind": "loan", "name": "x/../../function"},
        {"kind": "function", "name": "x"},
        {"kind": "logs"},
        {},
    ],
)
def test_nothing_is_given_out_but_what_agents_need(driver, tmp_path, wanted):
    for name in (".bashrc", "num_workers"):
        (driver.store.folder / name).write_text("secret")
    with pytest.raises(flight.FlightServerError):
        driver.client.download(wanted, tmp_path / "fetched")
    assert not list(tmp_path.glob("fetched*"))


def test_the_function_that_is_sent_is_the_file_that_was_checked(driver, tmp_path, monkeypatch):
    from gridflow._wire import server

    (driver.job_dir / "function").write_bytes(b"checked")
    (tmp_path / "other").write_bytes(b"another user's")
    check = server.open_own

    def exchanged_at_once(path):
        file = check(path)
        (tmp_path / "other").replace(path)
        return file

    monkeypatch.setattr(server, "open_own", exchanged_at_once)
    driver.client.download({"kind": "function"}, tmp_path / "fetched")
    assert (tmp_path / "fetched").read_bytes() == b"checked"


def test_an_agent_that_was_given_up_leaves_its_successors_result_alone(driver, tmp_path):
    def written(words):
        (tmp_path / words).write_text(words)
        return tmp_path / words

    late = driver.desk.receive_file(result())  # it stands still in the middle of its upload
    late.write_text("half of the ol")
    late_save = driver.desk.receive_file(checkpoint(9))
    late_save.write_text("half")
    driver.launch(2)
    driver.client.upload(written("the new one"), result(launch=2))
    for header, path in ((result(), late), (checkpoint(9), late_save)):
        with pytest.raises(Exception, match="was given up"):
            driver.desk.file_received(header, path)
        path.unlink()
    with pytest.raises(flight.FlightServerError, match="was given up"):
        driver.client.upload(written("the old one"), result())
    assert (driver.job_dir / "result" / "value").read_text() == "the new one"
    assert driver.store.latest() == (None, [])


def test_a_result_that_the_disk_refuses_is_kept_in_memory(driver, made, tmp_path):
    with files_of_at_most(SIZE // 2):
        driver.client.upload(made, result("model.keras"))
    assert driver.desk.in_memory == {0: {"model.keras": made.read_bytes()}}
    assert driver.left_over() == []
    (warning,) = driver.console.warnings
    assert f"the job's folder {driver.job_dir} on {socket.gethostname()}: File too" in warning
    assert "What worker:0 returned is kept in this process's memory" in warning
    (driver.job_dir / "result").touch()  # nor can it get its place
    driver.client.upload(made, result("model.keras"))
    assert driver.desk.in_memory == {0: {"model.keras": made.read_bytes()}}
    (driver.job_dir / "result").unlink()
    driver.client.upload(made, result("model.keras"))  # a later generation's
    assert driver.desk.in_memory == {}
    assert (driver.job_dir / "result" / "model.keras").read_bytes() == made.read_bytes()


@pytest.fixture
def direct(driver, monkeypatch):
    """Give an agent's way to the checkpoints, and what was sent through the driver."""
    through_the_driver = []

    def noting(name):
        done = getattr(driver.client, name)

        def method(*given):
            through_the_driver.append(name)
            return done(*given)

        return method

    for name in ("upload", "download"):
        monkeypatch.setattr(driver.client, name, noting(name))
    said = []
    yield Checkpoints(driver.client, said.extend), through_the_driver
    assert said == []


def offered(step=1, **fields):
    header = checkpoint(step, **fields)
    return {name: value for name, value in header.items() if name != "kind"}


def test_who_sees_the_folder_of_checkpoints_writes_and_reads_there_itself(
    driver, direct, made, tmp_path
):
    checkpoints, through_the_driver = direct
    for step in (1, 2, 3):
        checkpoints.send(made, offered(step, label=f"rows-{step}"))
    latest, wrong = driver.store.latest()
    assert (latest.place, wrong, driver.store.label) == (Place(0, 0, 3), [], "rows-3")
    checkpoints.fetch(latest.name, tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == made.read_bytes()
    assert through_the_driver == []
    with pytest.raises(pa.ArrowException, match="is gone"):
        checkpoints.fetch("checkpoint-0000-000000-000000001.npz", tmp_path / "none")
    with pytest.raises(FileNotFoundError):
        checkpoints.send(tmp_path / "replaced by a newer one", offered(4))
    driver.client.call("offer", offered(4), 10)  # of an agent that is killed now
    driver.store.close()


def test_an_agent_with_another_folder_of_the_same_name_uses_the_driver(
    driver, direct, made, tmp_path, monkeypatch
):
    checkpoints, through_the_driver = direct
    other = tmp_path / "on its host"
    other.mkdir()

    def elsewhere(path):
        return str(other / type(other)(path).name)

    offer, locate = driver.store.offer, driver.store.locate
    monkeypatch.setattr(
        driver.store,
        "locate",
        lambda name: replace(found := locate(name), at=elsewhere(found.at)),
    )
    checkpoints.send(made, offered(1))
    name = driver.store.latest()[0].name
    (other / name).write_bytes(b"?" * made.stat().st_size)
    checkpoints.fetch(name, tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == made.read_bytes()
    assert through_the_driver == ["download"]
    monkeypatch.setattr(driver.store, "offer", lambda *given: elsewhere(offer(*given)))
    checkpoints.send(made, offered(2))
    assert driver.store.latest()[0].place == Place(0, 0, 2)
    assert through_the_driver == ["download", "upload"]


def test_a_checkpoint_that_was_not_written_whole_or_in_time_is_not_committed(driver, made):
    def stored(at, size):
        driver.client.call("stored", {**offered(1), "at": at, "size": size}, 10)

    size = made.stat().st_size
    at = driver.client.call("offer", offered(1), 10)["at"]
    with pytest.raises(pa.ArrowException, match="incomplete checkpoint: 0 of"):
        stored(at, size)
    for elsewhere in (made, driver.store.folder / made.name, at + "x", driver.store.folder):
        with pytest.raises(pa.ArrowException, match="checkpoint"):
            stored(str(elsewhere), size)
    driver.store.begin(1)
    made.replace(at)
    with pytest.raises(pa.ArrowException, match="its generation is over"):
        stored(at, size)
    with pytest.raises(pa.ArrowException, match="generation 0 is over"):
        driver.client.call("offer", offered(1), 10)
    with pytest.raises(pa.ArrowException, match="this agent was given up"):
        driver.client.call("offer", offered(1, launch=7), 10)
    assert driver.store.latest() == (None, [])


def test_what_the_disk_refuses_is_said_once_with_folder_and_host(driver, made, tmp_path):
    refused = rf"can't write to checkpoint_dir='{driver.store.folder}' on {socket.gethostname()}: "

    def send(step):
        with (
            files_of_at_most(SIZE // 2),
            pytest.raises(flight.FlightServerError, match=f"{refused}File too large"),
        ):
            driver.client.upload(made, checkpoint(step))
        return driver.console.warnings[-1]

    assert "The checkpoint of epoch 0, step 1 was not stored; no checkpoint is there" in send(1)
    driver.client.upload(made, checkpoint(2))
    assert "epoch 0, step 3 was not stored; the newest is that of epoch 0, step 2 there" in send(3)
    assert len(driver.console.warnings) == 1
    events = tmp_path / "events"
    events.mkdir()
    (events / "log").write_bytes(bytes(SIZE))
    with files_of_at_most(SIZE // 2):
        Uploads(driver.client, sender(), None)._send_new(events)
    assert f"{driver.job_dir} on " in driver.console.warnings[1]
    assert "Event files for TensorBoard are incomplete" in driver.console.warnings[1]
    driver.console.close()
    assert len(driver.console.warnings) == 2


def test_files_that_grow_are_added_to_where_they_end(driver, tmp_path):
    folder = tmp_path / "events"
    (folder / "train").mkdir(parents=True)
    grows, there = folder / "train" / "log", driver.job_dir / "tensorboard" / "train" / "log"
    uploads = Uploads(driver.client, sender(), None)

    def sent(content):
        grows.write_bytes(content)
        uploads._send_new(folder)
        return there.read_bytes()

    assert sent(b"one") == b"one"
    assert sent(b"one two") == b"one two"
    there.write_bytes(b"one two and what the agent doesn't know of")
    sent(b"one two three")  # refused, as it would lie after that
    assert sent(b"one two three!") == b"one two three!"
    there.unlink()
    grows.write_bytes(b"one two three! four")
    uploads._send_new(folder)
    assert not there.exists()
    assert sent(b"one two three! four.") == b"one two three! four."
    assert sent(b"anew") == b"anew"
    other = folder / "train" / "other"
    other.write_bytes(b"a file of the same name, and longer")
    other.replace(grows)
    uploads._send_new(folder)
    assert there.read_bytes() == b"a file of the same name, and longer"
    uploads.close()


def test_a_file_that_the_driver_refuses_keeps_no_other_waiting(driver, tmp_path):
    folder = tmp_path / "events"
    folder.mkdir()
    (driver.job_dir / "tensorboard" / "a").mkdir(parents=True)
    for name in "ab":
        (folder / name).write_text(name)
    uploads = Uploads(driver.client, sender(), None)
    uploads._send_new(folder)
    assert (driver.job_dir / "tensorboard" / "b").read_text() == "b"
    uploads.close()


def test_links_in_a_folder_lead_out_of_it(tmp_path):
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "link").symlink_to(tmp_path)
    for name in ("link", "link/x"):
        with pytest.raises(flight.FlightServerError, match="without links"):
            inside(tmp_path / "root", name)
