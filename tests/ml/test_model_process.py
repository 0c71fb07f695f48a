"""A model's own process, as Spark's JVM talks to it."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys

import cloudpickle
import pyarrow as pa
import pytest

from gridflow.ml.columns import Slot
from gridflow.ml.inference.process import Asked
from gridflow.ml.model_broadcast import Parcel
from gridflow.ml.serving import ServedModel

LOAD, OPEN, BATCH, CLOSE = range(4)
HEAD = struct.Struct(">iqiqi")


def halves():
    def predict(x):
        if (x < 0).any():
            raise ValueError(f"negative: {x.min()}")
        print("printed")  # goes to standard error
        return x / 2

    return predict


class Process:
    """What the JVM is to it."""

    def __init__(self, make):
        self.model = ServedModel(
            "function", Parcel("k"), {"x": Slot()}, (), {"output": pa.float64()}, False, b""
        )
        self.opened = []
        words = [sys.executable, "-m", "gridflow.ml.inference.process", "a test's"]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        content = cloudpickle.dumps(make)
        self.say(LOAD, -1, size=len(content), text=cloudpickle.dumps(self.model))
        self.process.stdin.write(content)
        self.process.stdin.flush()

    def say(self, kind, task, slot=0, size=0, text=b""):
        self.process.stdin.write(HEAD.pack(kind, task, slot, size, len(text)) + text)
        self.process.stdin.flush()

    def hear(self):
        status, task, slot, _, length = HEAD.unpack(self.process.stdout.read(HEAD.size))
        return status, task, slot, self.process.stdout.read(length).decode()

    def open(self, task, batch_size=3, nulls="error"):
        self.say(OPEN, task, text=cloudpickle.dumps(Asked(self.model, batch_size, nulls)))
        status, told, _, text = self.hear()
        assert (status, told) == (0, task)
        pid, *numbers = text.split()
        assert int(pid) == self.process.pid
        memory = [open(f"/proc/{pid}/fd/{number}", "r+b", buffering=0) for number in numbers]  # noqa: SIM115 (closed at the end)
        self.opened += memory
        return memory

    def write(self, memory, task, slot, values):
        batch = pa.RecordBatch.from_arrays([pa.array(values, pa.float64())], ["0"])
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as stream:
            stream.write_batch(batch)
        memory[2 * slot].seek(0)
        written = memory[2 * slot].write(sink.getvalue())
        self.say(BATCH, task, slot, written)

    def end(self):
        for file in self.opened:
            file.close()
        self.process.stdin.close()
        self.process.stdout.close()
        return self.process.wait(30)


@pytest.fixture
def process(by_value):
    process = Process(halves)
    yield process
    if process.process.poll() is None:
        process.process.kill()
        process.end()


def read(memory, slot):
    memory[2 * slot + 1].seek(0)
    return pa.ipc.open_stream(memory[2 * slot + 1].readall()).read_next_batch()[0].to_pylist()


def test_tasks_use_their_own_memory_at_once_and_errors_are_theirs_alone(process):
    status, nobody, _, text = process.hear()
    assert (status, nobody) == (0, -1)
    assert text.endswith("MiB of memory")
    one, other = process.open(1), process.open(2, nulls="null")
    process.write(one, 1, 0, [1.0, 2.0, 3.0, 4.0])
    process.write(one, 1, 1, [7.0] * 1000)
    assert [process.hear()[1:3] for _ in range(2)] == [(1, 0), (1, 1)]
    assert read(one, 0) == [0.5, 1.0, 1.5, 2.0]
    assert read(one, 1) == [3.5] * 1000
    process.write(one, 1, 0, [-1.0])
    status, task, _, text = process.hear()
    assert (status, task) == (1, 1)
    assert "ValueError: negative: -1.0" in text
    process.write(other, 2, 0, [None, 8.0])
    assert process.hear()[:2] == (0, 2)
    assert read(other, 0) == [None, 4.0]
    process.write(one, 1, 0, [2.0] * 5000)  # more than there was room for
    assert process.hear()[:3] == (0, 1, 0)
    assert read(one, 0) == [1.0] * 5000
    process.say(CLOSE, 1)
    process.write(one, 1, 0, [1.0])  # of a task that has ended
    again = process.open(3)
    process.write(again, 3, 1, [1.0])
    assert process.hear()[1:3] == (3, 1)
    assert process.end() == 0


def test_memory_goes_with_its_task(process):
    process.hear()
    before = len(os.listdir(f"/proc/{process.process.pid}/fd"))
    for task in range(20):
        memory = process.open(task)
        process.write(memory, task, 0, [1.0])
        process.hear()
        process.say(CLOSE, task)
        for file in memory:
            file.close()
    process.open(20)  # requests are heard in their order, and threads end at once
    process.say(CLOSE, 20)
    assert len(os.listdir(f"/proc/{process.process.pid}/fd")) <= before + 12


def test_a_model_that_cannot_be_loaded_says_why(by_value):
    def broken():
        raise RuntimeError("no model today")

    process = Process(broken)
    status, nobody, _, text = process.hear()
    assert (status, nobody) == (1, -1)
    assert "RuntimeError: no model today" in text
    assert process.end() == 0


def test_it_is_killed_with_whoever_started_it(by_value, tmp_path):
    starter = (
        "import subprocess, sys, time\n"
        "words = [sys.executable, '-m', 'gridflow.ml.inference.process', 'a test']\n"
        "child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)\n"
        "child.stdin.write(b'x'); child.stdin.flush()\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", starter], stdout=subprocess.PIPE)
    pid = int(parent.stdout.readline())
    from suite.waiting import wait_for

    def is_ready():
        with open(f"/proc/{pid}/status") as file:
            return "SigIgn:\t0000000001001002" in file.read() or _ignores(pid)

    wait_for(is_ready, "the process runs its main function")
    os.kill(pid, signal.SIGSTOP)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    wait_for(lambda: not os.path.exists(f"/proc/{pid}") or _is_dead(pid), "its end")


def _ignores(pid):
    with open(f"/proc/{pid}/status") as file:
        (mask,) = (line.split()[1] for line in file if line.startswith("SigIgn:"))
    return bool(int(mask, 16) >> (signal.SIGINT - 1) & 1)


def _is_dead(pid):
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] in "ZX"
