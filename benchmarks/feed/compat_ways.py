"""Ways of an old program's rows from a task to the program: ``compat_ways.py [times]``, no Spark.

The feed of ``gridflow.compat.tfos`` lets them lie in memory that both processes have, or sends them
over TLS, straight into the node's own process. By the push feed they would go there over Arrow
Flight, or as all others do: by way of the agent, which keeps them in a file, or links the file in
which a task on its own host has them. *Columns* are rows of
``df.rdd``; *objects* those that a function has made, which are pickled today and would have to
become columns in the task. All ways end with the rows that the program is given: Python objects.

µs of CPU a row, of all processes, medians; the ratios are to the first.
"""

from __future__ import annotations

import json
import pickle
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from pathlib import Path

import numpy as np
import pyarrow as pa

from gridflow._feed.normalize import FeedOptions
from gridflow._feed.push.located import in_file, taken
from gridflow._feed.store.segment import Segment, path_of, read
from gridflow._feed.store.stream import StreamStore
from gridflow._wire import psk_tls
from gridflow._wire.identity import identity_of
from gridflow._wire.receiver import Receiver, ReceiverClient
from gridflow.compat.tfos import _memory
from gridflow.compat.tfos._chunks import CHUNK_BYTES
from gridflow.compat.tfos._frames import Columns
from gridflow.compat.tfos._lists import number_lists

KEY = b"a key for one run" * 2
#: By shape: numbers in a row, and rows.
SHAPES = {"784 floats": (784, 40_000), "11 numbers": (11, 1_000_000)}
WAYS = ("memory", "TLS", "Flight", "the agent", "its link")
SLOTS = 4


def chunk_of(shape: str) -> tuple[pa.RecordBatch, int]:
    """Return the rows of a chunk as columns, and how often to send them."""
    width, rows = SHAPES[shape]
    count = CHUNK_BYTES // (4 * width)
    values = np.random.default_rng(0).normal(size=count * width).astype(np.float32)
    places = pa.array(np.arange(0, count * width + 1, width, dtype=np.int32))
    lists = pa.ListArray.from_arrays(places, pa.array(values))
    return pa.record_batch({"x": lists, "y": pa.array(range(count))}), rows // count


def columns_of(rows: list[tuple]) -> pa.RecordBatch:
    """Return rows of Python as columns."""
    x = pa.array([row[0] for row in rows], pa.list_(pa.float64()))
    return pa.record_batch({"x": x, "y": pa.array([row[1] for row in rows])})


def rows_of(batch: pa.RecordBatch) -> list[tuple]:
    """Return columns as rows of Python, the lists as ``compat.tfos`` makes them."""
    x, y = batch.columns
    lists = number_lists(x.flatten().to_numpy().reshape(len(x), -1))
    return list(zip(lists, y.to_pylist(), strict=True))


def write(batch: pa.RecordBatch, sink) -> None:
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)


def content_of(batch: pa.RecordBatch, objects: list[tuple] | None) -> memoryview:
    """Return what is sent of a chunk by today's ways."""
    if objects is not None:
        return memoryview(pickle.dumps(objects, pickle.HIGHEST_PROTOCOL))
    sink = pa.BufferOutputStream()
    write(batch, sink)
    return memoryview(sink.getvalue()).cast("B")


class Handler:
    """What a receiver passes its batches to."""

    def __init__(self, put) -> None:
        self._put = put

    def put(self, header, first, batch):
        self._put(first, batch)
        return {"pending": 0, "ended": False}


def send(way: str, port: int, shape: str, kind: str) -> None:
    """Be the task: as much is on its way as the two feeds have there."""
    batch, times = chunk_of(shape)
    x, y = batch.columns
    objects = list(zip(x.to_pylist(), y.to_pylist(), strict=True)) if kind == "objects" else None
    if way in {"memory", "TLS"}:
        line = psk_tls.knock(("127.0.0.1", port), KEY)
        size = len(content_of(batch, objects))
        lent = _memory.Lent(SLOTS, -(-size // 4096) * 4096) if way == "memory" else None
        line.send_bytes(pickle.dumps(lent and lent.offer))
        began, open_ = time.process_time(), 0
        for _ in range(times):
            if lent is None:
                line.send_bytes(content_of(batch, objects))
            else:
                slot, place = lent.take(size)
                if objects is None:
                    write(batch, pa.FixedSizeBufferWriter(pa.py_buffer(lent.view(place))))
                else:
                    lent.view(place)[:] = content_of(batch, objects)
                line.send_bytes(pickle.dumps((slot, place.start, size)))
            open_ += 1
            if open_ == SLOTS:
                answer, open_ = line.recv_bytes(), open_ - 1
                if lent is not None:
                    lent.free.extend(answer)
    else:
        client = ReceiverClient(f"127.0.0.1:{port}", identity_of(KEY))
        schema = batch.schema if objects is None else columns_of(objects).schema
        folder = Path(tempfile.mkdtemp()) / f"gridflow-rows-{uuid.uuid4().hex}-1"
        folder.mkdir()
        began = time.process_time()
        writer, answers = client.put({}, schema)
        for number in range(times):
            each = batch if objects is None else columns_of(objects)
            told = number * batch.num_rows
            if way == "its link":
                path = folder / f"{number:08d}-0.arrow"
                with pa.ipc.new_file(str(path), schema) as file:
                    file.write_batch(each)
                (rows,) = in_file(Segment(path), None)
                each, told = each.slice(0, 0), rows.told(told)
            writer.write_with_metadata(each, json.dumps(told).encode())
            if number:
                answers.read()
    print(time.process_time() - began, flush=True)
    sys.stdin.read()
    if way not in {"memory", "TLS"}:
        shutil.rmtree(folder.parent)


def keep(folder: str) -> None:
    """Be the agent: write what comes into files, and wait for the end."""
    batch, _ = chunk_of("11 numbers")
    with tempfile.TemporaryDirectory() as other:  # Arrow loads its functions with the first rows
        store = StreamStore("stream", Path(other), FeedOptions(), 1 << 40, lambda: None)
        store.begin("f", 0, 0)
        store.put("f", 0, 0, 0, batch)
    store = StreamStore("stream", Path(folder), FeedOptions(), 1 << 40, lambda: None)
    store.begin("f", 0, 0)

    def put(told, batch):
        store.put("f", 0, 0, *taken(told, batch))

    receiver = Receiver("127.0.0.1", identity_of(KEY), Handler(put))
    began = time.process_time()
    print(receiver.port, flush=True)
    sys.stdin.read()
    print(time.process_time() - began, flush=True)
    receiver.shutdown()


def started(*words: object) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, *map(str, words)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def sample(way: str, shape: str, kind: str) -> float:
    """Be the program, and return the CPU of all."""
    batch, times = chunk_of(shape)
    count = batch.num_rows
    came = threading.Semaphore(0)

    def take(content) -> None:
        if isinstance(content, pa.RecordBatch):
            rows = rows_of(content)
        elif kind == "objects":
            rows = pickle.loads(content)
        else:
            rows = Columns(content).made(0, count)
        assert len(rows) == count
        came.release()

    def serve(line) -> None:
        offer = pickle.loads(line.recv_bytes())
        memory = offer and _memory.borrowed(offer)
        while True:
            content = memoryview(line.recv_bytes())
            answer = b"T"
            if memory is not None:
                slot, place, size = pickle.loads(content)
                content, answer = memory[place : place + size], bytes([slot])
            take(content)
            line.send_bytes(answer)

    with tempfile.TemporaryDirectory() as folder:
        agent = started("keep", folder) if way in WAYS[3:] else None
        began, close = time.process_time(), lambda: None
        if agent is not None:
            port = int(agent.stdout.readline())
        elif way in {"memory", "TLS"}:
            listener = psk_tls.listen("127.0.0.1")
            port, close = listener.getsockname()[1], psk_tls.Door(listener, KEY, serve).close
        else:
            receiver = Receiver("127.0.0.1", identity_of(KEY), Handler(lambda _, rows: take(rows)))
            port, close = receiver.port, receiver.shutdown
        task = started("send", way, port, shape, kind)
        cpu = float(task.stdout.readline())
        for number in range(times):
            if agent is None:
                came.acquire()
            else:
                path = path_of(Path(folder), number)
                while not path.exists():
                    time.sleep(0.001)
                take(read(path))
        cpu += time.process_time() - began
        for each in filter(None, (task, agent)):
            each.stdin.close()
            cpu += float(each.stdout.read() or 0)
            each.wait()
        close()
    return cpu / times / count * 1e6


def main(times: int) -> None:
    print(f"{'µs of CPU a row':<22}" + "".join(f"{way:>12}{'':>8}" for way in WAYS))
    for shape in SHAPES:
        for kind in ("columns", "objects"):
            rounds = [[sample(way, shape, kind) for way in WAYS] for _ in range(times)]
            found = [statistics.median(column) for column in zip(*rounds, strict=True)]
            cells = (f"{value:>12.1f}{value / found[0]:>6.2f} x" for value in found)
            print(f"{shape + ', ' + kind:<22}" + "".join(cells), flush=True)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["send", way, port, shape, kind]:
            send(way, int(port), shape, kind)
        case ["keep", folder]:
            keep(folder)
        case words:
            main(int(words[0]) if words else 5)
