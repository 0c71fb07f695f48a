"""One job at a time owns a folder of checkpoints: on a disk, in HDFS, in an object store."""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from pyarrow import fs

from gridflow import Deadlines
from gridflow._features.checkpoints.lease import Lease
from gridflow._features.checkpoints.owner import FolderLock
from gridflow._features.checkpoints.remote import MirroredCheckpoints, store_of
from gridflow._files import transfer
from gridflow._files.systems import Where, where
from gridflow._spec.place import Place
from gridflow.errors import GridflowError, InvalidArgument, JobExists
from suite.waiting import patience, wait_for

STORES = pytest.mark.parametrize("stored", ["s3", "hdfs"], indirect=True)
#: Enough for a process on a busy machine to renew its lease in time.
SECONDS = 3.0


def silent(_):
    """Say nothing."""


def commit(store, *place, label=None, weight=1.0):
    arrived = store.incoming(0, 0)
    with arrived.open("wb") as file:
        np.savez(file, weights=np.full(9, weight))
    return store.commit(arrived, Place(*place), label)


def weight_of(store):
    newest, _ = store.latest()
    with np.load(store.path(newest.name)) as arrays:
        return arrays["weights"][0]


@pytest.fixture
def driver():
    """Start the driver of another job, which does what it is told; killed at the end."""
    found = []

    def start(job, tmp_path, place):
        words = [sys.executable, "-c", DRIVER, job, str(tmp_path / job), place, str(SECONDS)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        process = subprocess.Popen(words, **pipes)
        found.append(process)
        return process

    yield start
    for process in found:
        with process:
            process.kill()


#: Commits a checkpoint for each line that it reads, and says how that went.
DRIVER = """
import sys
from pathlib import Path

import numpy as np

from gridflow._features.checkpoints import lease as checkpoint_lease
from gridflow._features.checkpoints.remote import store_of
from gridflow._files.systems import scheme_of, where
from gridflow._spec.place import Place

job, folder, place, checkpoint_lease.LEASE_SECONDS = *sys.argv[1:4], float(sys.argv[4])
if scheme_of(place):
    store = store_of(Path(folder), where(place), 1, job)
else:
    store = store_of(Path(place), None, 1, job)
print("owns it", flush=True)
for line in sys.stdin:
    step, weight = map(float, line.split())
    path = store.incoming(0, 0)
    with path.open("wb") as file:
        np.savez(file, weights=np.full(9, weight))
    try:
        print(store.commit(path, Place(0, 0, int(step)), f"step {step:.0f}"), flush=True)
    except Exception as error:
        print(repr(error), flush=True)
"""


def tell(process, step, weight):
    process.stdin.write(f"{step} {weight}\n")
    process.stdin.flush()
    return process.stdout.readline()


# On a disk ---------------------------------------------------------------------------------------


def test_a_folder_has_one_owner_and_says_who_that_is(tmp_path):
    first = store_of(tmp_path, None, 1, "first")
    with pytest.raises(JobExists) as refused:
        store_of(tmp_path, None, 1, "second")
    who = f"job first (process {os.getpid()} on {socket.gethostname()})"
    assert str(refused.value).startswith(f"checkpoint_dir={str(tmp_path)!r} is in use by {who}")
    commit(first, 0, 0, 1)
    first.close()
    second = store_of(tmp_path, None, 1, "second")
    assert second.latest()[0].place == Place(0, 0, 1)
    second.clear()
    second.close()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_free_as_soon_as_the_process_of_its_owner_was_killed(tmp_path, driver):
    process = driver("first", tmp_path, str(tmp_path / "shared"))
    assert process.stdout.readline() == "owns it\n"
    with pytest.raises(JobExists, match=rf"job first \(process {process.pid} on "):
        store_of(tmp_path / "shared", None, 1, "second")
    process.kill()
    process.wait()
    store_of(tmp_path / "shared", None, 1, "second").close()


def test_a_forked_child_does_not_keep_the_folder_of_a_parent_that_was_killed(tmp_path):
    code = (
        "import os, sys, time\n"
        "from pathlib import Path\n"
        "from gridflow._features.checkpoints.owner import FolderLock\n"
        "lock = FolderLock(Path(sys.argv[1]), 'first', print)\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    lock.release()\n"  # what a child does with its copy is no matter either
        "    time.sleep(600)\n"
        "print(child, flush=True); time.sleep(600)\n"
    )
    words = [sys.executable, "-W", "ignore", "-c", code, str(tmp_path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as parent:
        child = int(parent.stdout.readline())
        try:
            with pytest.raises(JobExists):
                FolderLock(tmp_path, "second", silent)
            parent.kill()
            parent.wait()
            # The child closes its copy when it first runs.
            taken = wait_for(
                lambda: FolderLock(tmp_path, "second", silent), "the lock", ignoring=JobExists
            )
            taken.release()
        finally:
            os.kill(child, signal.SIGKILL)


def test_of_many_that_ask_at_once_and_release_at_once_never_two_have_it(tmp_path):
    inside, most = [], []

    def take(name):
        for _ in range(200):
            try:
                lock = FolderLock(tmp_path, name, silent)
            except JobExists:
                continue
            inside.append(name)
            most.append(len(inside))
            inside.remove(name)
            lock.release()

    threads = [threading.Thread(target=take, args=(f"job{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(most) == {1}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["file", "below a file", "read-only", "link"])
def test_a_folder_that_can_not_be_written_is_refused_at_once(kind, tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere" / "else")
    place = {
        "file": tmp_path / "file",
        "below a file": tmp_path / "file" / "checkpoints",
        "read-only": type(tmp_path)("/proc/self/checkpoints"),
        "link": tmp_path / "link",
    }[kind]
    with pytest.raises(InvalidArgument, match=r"can't write to checkpoint_dir='.*folder"):
        store_of(place, None, 1, "first")


# In a store --------------------------------------------------------------------------------------


@pytest.fixture
def shared(tmp_path):
    """Give a place that is treated as a store, though it is a folder: for what takes many tries."""
    (tmp_path / "shared").mkdir()  # this one fails to list a folder that is just being made
    return Where(fs.LocalFileSystem(), str(tmp_path / "shared"), "shared://")


@STORES
def test_a_store_has_one_owner_and_the_next_goes_on_at_once_from_what_it_leaves(
    stored, tmp_path, monkeypatch
):
    monkeypatch.setattr("gridflow._features.checkpoints.lease.LEASE_SECONDS", SECONDS)
    place = where(f"{stored}/checkpoints")
    first = store_of(tmp_path / "first", place, 1, "first")
    commit(first, 0, 0, 1, label="one", weight=7.0)
    with pytest.raises(JobExists) as refused:
        store_of(tmp_path / "second", place, 1, "second")
    who = f"job first (process {os.getpid()} on {socket.gethostname()})"
    assert f"{stored}/checkpoints' is in use by {who}" in str(refused.value)
    first.close()
    # The next one waits for no end of a lease.
    monkeypatch.setattr("gridflow._features.checkpoints.lease.LEASE_SECONDS", 3600.0)
    said = []
    third = store_of(tmp_path / "third", place, 1, "third", said.append)
    assert (weight_of(third), third.label, said) == (7.0, "one", [])
    third.clear()
    third.close()
    assert transfer.names_in(place) == []


@STORES
def test_who_is_frozen_loses_its_store_and_what_it_adds_later_is_never_read(
    stored, tmp_path, driver, monkeypatch
):
    monkeypatch.setattr("gridflow._features.checkpoints.lease.LEASE_SECONDS", SECONDS)
    place, said = where(f"{stored}/checkpoints"), []
    frozen = driver("frozen", tmp_path, f"{stored}/checkpoints")
    assert frozen.stdout.readline() == "owns it\n"
    assert tell(frozen, 10, 10.0) == "checkpoint-0000-000000-000000010.npz\n"
    frozen.send_signal(signal.SIGSTOP)
    second = store_of(tmp_path / "second", place, 1, "second", said.append)
    assert f"belongs to job frozen (process {frozen.pid} on " in said[0]
    assert weight_of(second) == 10.0
    commit(second, 0, 0, 12, weight=12.0)
    # Past its look at the folder, before its files are there: the names tell whose they are.
    late = next(name for name in transfer.names_in(place) if name.endswith(".npz"))
    late = late.replace("000000012", "000000099")
    late = late.replace(str(second._lease.owner), "00000001-frozen")
    transfer.put(
        second.path(commit(second, 0, 0, 13, weight=13.0)), place.at(f"{place.path}/{late}")
    )
    frozen.send_signal(signal.SIGCONT)
    assert "JobExists" in (answer := tell(frozen, 50, 50.0))
    assert f"Job second (process {os.getpid()} on " in answer
    second.close()
    third = store_of(tmp_path / "third", place, 1, "third")
    assert weight_of(third) == 13.0
    commit(third, 0, 0, 14, weight=14.0)
    assert late not in transfer.names_in(place)
    third.clear()
    third.close()
    assert transfer.names_in(place) == []


def test_who_was_killed_is_waited_for_once_and_its_checkpoints_count(shared, tmp_path):
    killed = Lease(shared, "killed", silent, SECONDS)
    first = MirroredCheckpoints(tmp_path / "killed", shared, 1, "killed", killed)
    commit(first, 0, 0, 1, weight=5.0)
    killed._closed.set()  # as if its process were gone
    killed._thread.join()
    began, said = time.monotonic(), []
    second = Lease(shared, "second", said.append, SECONDS)
    assert time.monotonic() - began >= SECONDS
    assert len(said) == 1
    store = MirroredCheckpoints(tmp_path / "second", shared, 1, "second", second)
    assert weight_of(store) == 5.0
    with pytest.raises(JobExists, match="Job second "):
        commit(first, 0, 0, 2)
    assert "has taken over" in str(first.lost)
    with pytest.raises(JobExists):
        first.clear()
    store.close()
    first.close()
    third = store_of(tmp_path / "third", shared, 1, "third")
    assert weight_of(third) == 5.0
    third.close()


@pytest.mark.parametrize(
    ("number", "before"),
    [
        (2, ""),
        (3, "json"),
        *(pytest.param(5, before, marks=pytest.mark.slow) for before in ("", "claim")),
    ],
)
def test_of_many_that_start_at_the_same_moment_one_wins(number, before, shared):
    """Also where one has died: while it wanted the folder, or had it."""
    won, refused = [], []

    def start(name, barrier):
        barrier.wait()
        try:
            won.append(Lease(shared, name, silent, SECONDS))
        except JobExists as error:
            refused.append(str(error))

    for round_ in range(1 if before else 4):
        for kind in {"claim": ["claim"], "json": ["claim", "won", "json"]}.get(before, []):
            transfer.write(shared.at(f"{shared.path}/owner-00000007-dead.{kind}"), {"accepted": []})
        barrier = threading.Barrier(number)
        names = [f"{round_}x{n}" for n in range(number)]
        threads = [threading.Thread(target=start, args=(name, barrier)) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (len(won), len(refused)) == (1, number - 1)
        assert won[0].check()
        won.pop().release(is_empty=True)
        refused.clear()
        assert transfer.names_in(shared) == []


class Pausing(fs.FileSystemHandler):
    """A file system in which the calls of two threads come in an order that is given.

    One thread goes on by one call at each letter of its name.
    """

    type_name = "pausing"

    def __init__(self, inner, order):
        self._inner, self._order = inner, list(order)
        self._moved, self._open = threading.Condition(), set(order)

    def end(self, who):
        """Let the other one go on by itself."""
        with self._moved:
            self._open.discard(who)
            self._moved.notify_all()

    def _turn(self):
        who = threading.current_thread().name
        with self._moved:
            if who not in self._open:
                return
            self._moved.wait_for(
                lambda: (
                    not self._order or self._order[0] == who or self._order[0] not in self._open
                ),
                timeout=patience(),
            )
            while self._order and self._order[0] not in self._open:
                self._order.pop(0)
            if self._order and self._order[0] == who:
                self._order.pop(0)
            self._moved.notify_all()

    def get_type_name(self):
        return self.type_name

    def normalize_path(self, path):
        return path

    def get_file_info(self, paths):
        return self._inner.get_file_info(paths)

    def get_file_info_selector(self, selector):
        self._turn()
        return self._inner.get_file_info(selector)

    def create_dir(self, path, recursive):
        self._inner.create_dir(path, recursive=recursive)

    def delete_file(self, path):
        self._turn()
        self._inner.delete_file(path)

    def move(self, source, target):
        self._turn()
        self._inner.move(source, target)

    def open_output_stream(self, path, metadata):
        self._turn()
        return self._inner.open_output_stream(path)

    def open_input_stream(self, path):
        return self._inner.open_input_stream(path)

    def _unused(self, *_):
        raise NotImplementedError

    delete_dir = delete_dir_contents = delete_root_dir_contents = _unused
    copy_file = open_input_file = open_append_stream = _unused


@pytest.mark.parametrize(
    "order",
    [
        # Either may be the first: half of it goes without saying.
        pytest.param(order, marks=[pytest.mark.slow] * (order[0] == "b"))
        for order in map("".join, itertools.product("ab", repeat=5))
    ],
)
def test_no_order_of_their_steps_lets_two_win(order, tmp_path):
    (tmp_path / "shared").mkdir()
    handler = Pausing(fs.LocalFileSystem(), order)
    place = Where(fs.PyFileSystem(handler), str(tmp_path / "shared"), "shared://")
    won, refused = [], []

    def start():
        name = threading.current_thread().name
        try:
            won.append(Lease(place, name, silent, SECONDS))
        except JobExists as error:
            refused.append(error)
        finally:
            handler.end(name)

    threads = [threading.Thread(target=start, name=name) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for lease in won:
        lease.release(is_empty=True)
    assert (len(won), len(refused)) == (1, 1)


@pytest.mark.slow
def test_a_job_whose_checkpoints_are_taken_over_ends_and_says_by_whom(distribute, monkeypatch):
    def waits(ctx):
        import time

        time.sleep(600)

    monkeypatch.setattr("gridflow._features.checkpoints.lease.LEASE_SECONDS", SECONDS)
    distributor = distribute(
        1, checkpoint_dir="memory://checkpoints", deadlines=Deadlines(shutdown=5.0)
    )
    job = distributor.start(waits)
    with pytest.raises(JobExists, match=f"is in use by job {job.job_dir.name} "):
        distributor.start(waits)
    job.wait_until("training", timeout=patience())
    place = where("memory://checkpoints")
    about = {"job": "other", "pid": 7, "host": "h1"}
    transfer.write(place.at(f"{place.path}/owner-00000009-other.won"), about)
    with pytest.raises(JobExists, match=r"Job other \(process 7 on h1\) has taken over"):
        job.result(timeout=patience())
    assert job.state == "failed"
    assert json.loads((job.job_dir / "result.json").read_text())["exit_code"] == 73


def test_checkpoints_of_a_gridflow_that_knew_no_owners_are_taken_over(shared, tmp_path):
    plain = MirroredCheckpoints(tmp_path / "plain", shared)
    commit(plain, 0, 0, 1, label="old", weight=3.0)
    assert "checkpoint-0000-000000-000000001.npz" in transfer.names_in(shared)
    first = store_of(tmp_path / "first", shared, 1, "first")
    assert (weight_of(first), first.label) == (3.0, "old")
    first.close()
    second = store_of(tmp_path / "second", shared, 1, "second")
    assert weight_of(second) == 3.0
    second.clear()
    second.close()
    assert transfer.names_in(shared) == []


class Undeletable(Pausing):
    """A file system in which nothing may be deleted."""

    def delete_file(self, path):
        raise PermissionError(f"no right to delete {path}")


def test_what_a_job_that_succeeded_can_not_delete_counts_no_more(tmp_path):
    folder = str(tmp_path / "shared")
    refusing = Where(fs.PyFileSystem(Undeletable(fs.LocalFileSystem(), "")), folder, "shared://")
    lease = Lease(refusing, "first", silent, 0.5)
    first = MirroredCheckpoints(tmp_path / "first", refusing, 1, "first", lease)
    for step in range(1, 5):
        commit(first, 0, 0, step)
    with pytest.raises(GridflowError, match="no right to delete"):
        first.clear()
    with pytest.raises(GridflowError, match="no right to delete"):
        first.close()
    assert [path for path in (tmp_path / "shared").iterdir() if path.suffix == ".npz"]
    second = Lease(refusing._replace(system=fs.LocalFileSystem()), "second", silent, 0.5)
    assert second.accepted == ()
    second.release(is_empty=True)


# A store that refuses ----------------------------------------------------------------------------


def test_a_label_counts_once_its_checkpoint_is_in_the_store_which_is_tried_again(tmp_path):
    shared = Where(fs.LocalFileSystem(), str(tmp_path / "mounted" / "shared"), "shared://")
    said = []
    store = store_of(tmp_path / "first", shared, 1, "first", said.append)
    commit(store, 0, 0, 1, label="one")
    assert store.label == "one"
    (tmp_path / "mounted").rename(tmp_path / "gone")
    (tmp_path / "mounted").write_text("")
    commit(store, 0, 0, 2, label="two")
    assert store.latest()[0].place == Place(0, 0, 2)
    assert store.label == "one"
    assert "000000002.npz, will retry: " in said[0]
    (tmp_path / "mounted").unlink()
    (tmp_path / "gone").rename(tmp_path / "mounted")
    wait_for(lambda: store.label == "two", "the second label", seen=lambda: store.label)
    store.close()
    second = store_of(tmp_path / "second", shared, 1, "second")
    assert (second.latest()[0].place, second.label) == (Place(0, 0, 2), "two")
    second.close()


def test_a_last_checkpoint_that_a_store_never_took_is_said(tmp_path):
    shared = Where(fs.LocalFileSystem(), str(tmp_path / "mounted" / "shared"), "shared://")
    said = []
    store = store_of(tmp_path / "first", shared, 1, "first", said.append)
    (tmp_path / "mounted").rename(tmp_path / "gone")
    (tmp_path / "mounted").write_text("")
    name = commit(store, 0, 0, 2)
    store.close()
    assert "can't copy the last checkpoint to shared://" in said[-1]
    assert store.path(name).exists()


@pytest.mark.parametrize("stored", ["s3"], indirect=True)
def test_a_store_that_takes_nothing_is_refused_at_once(stored, tmp_path):
    nowhere = where(f"{stored.replace('bucket', 'no-such-bucket')}/checkpoints")
    with pytest.raises(GridflowError, match=r"checkpoint_dir='s3://no-such-bucket/.* can't be"):
        store_of(tmp_path / "first", nowhere, 1, "first")


def test_what_an_owner_leaves_is_json_and_names_its_checkpoints(shared, tmp_path):
    first = store_of(tmp_path / "first", shared, 1, "first")
    commit(first, 0, 0, 1)
    first.close()
    second = store_of(tmp_path / "second", shared, 1, "second")
    (record,) = (name for name in transfer.names_in(shared) if name.endswith(".json"))
    content = json.loads(transfer.read(shared.at(f"{shared.path}/{record}")))
    assert content["job"] == "second"
    assert content["accepted"] == ["checkpoint-0000-000000-000000001.00000001-first.000001.npz"]
    second.clear()
    second.close()
