"""Ways of pickled rows from a task to a program: ``pickled.py [times]``, without Spark.

The feed of ``gridflow.compat.tfos`` sends them over TLS into the node's own process. By the push
feed they would go there over Arrow Flight, or as all others do: by way of the agent, which keeps
them in a file. µs of CPU a row, of all processes, medians; the ratios are to the first.
"""

from __future__ import annotations

import pickle
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pyarrow as pa

from gridflow._feed.normalize import FeedOptions
from gridflow._feed.store.stream import StreamStore, segment_path
from gridflow._wire import psk_tls
from gridflow._wire.identity import identity_of
from gridflow._wire.receiver import Receiver, ReceiverClient

KEY = b"a key for one run" * 2
#: By shape: numbers in a row, and rows.
SHAPES = {"784 floats": (784, 20_000), "11 numbers": (11, 1_000_000)}
CHUNK_BYTES = 512 << 10
SCHEMA = pa.schema([("rows", pa.binary())])


def chunk_of(shape: str) -> tuple[bytes, int, int]:
    """Return pickled rows, how many they are, and how often to send them."""
    width, rows = SHAPES[shape]
    count = CHUNK_BYTES // (9 * width)
    content = [[n + place / 7 for place in range(width)] for n in range(count)]
    return pickle.dumps(content, pickle.HIGHEST_PROTOCOL), count, rows // count


class Handler:
    """What a receiver passes its batches to."""

    def __init__(self, put) -> None:
        self._put = put

    def put(self, header, first, batch):
        self._put(first, batch)
        return {"pending": 0, "ended": False}


def send(way: str, port: int, shape: str) -> None:
    """Be the task: as much is on its way as the two feeds have there."""
    content, _, times = chunk_of(shape)
    if way == "TLS":
        line = psk_tls.knock(("127.0.0.1", port), KEY)
        began = time.process_time()
        for number in range(times):
            line.send_bytes(content)
            if number >= 3:
                line.recv_bytes()
    else:
        client = ReceiverClient(f"127.0.0.1:{port}", identity_of(KEY))
        began = time.process_time()
        writer, answers = client.put({}, SCHEMA)
        for number in range(times):
            batch = pa.record_batch([pa.array([content], pa.binary())], schema=SCHEMA)
            writer.write_with_metadata(batch, str(number).encode())
            if number:
                answers.read()
    print(time.process_time() - began, flush=True)
    sys.stdin.read()


def keep(folder: str) -> None:
    """Be the agent: write what comes into files, and wait for the end."""
    inflow = StreamStore("stream", Path(folder), FeedOptions(), 1 << 40, lambda: None)
    inflow.begin("f", 0, 0)
    handler = Handler(lambda first, batch: inflow.put("f", 0, 0, first, batch))
    receiver = Receiver("127.0.0.1", identity_of(KEY), handler)
    began = time.process_time()
    print(receiver.port, flush=True)
    sys.stdin.read()
    print(time.process_time() - began, flush=True)
    receiver.shutdown()


def started(*words: object) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, *map(str, words)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def sample(way: str, shape: str) -> float:
    """Be the program, and return the CPU of all."""
    _, count, times = chunk_of(shape)
    came = threading.Semaphore(0)

    def take(content) -> None:
        assert len(pickle.loads(content)) == count
        came.release()

    def serve(line) -> None:
        while True:
            take(line.recv_bytes())
            line.send_bytes(b"T")

    with tempfile.TemporaryDirectory() as folder:
        agent = started("keep", folder) if way == "the agent" else None
        began, close = time.process_time(), lambda: None
        if agent is not None:
            port = int(agent.stdout.readline())
        elif way == "TLS":
            listener = psk_tls.listen("127.0.0.1")
            port, close = listener.getsockname()[1], psk_tls.Door(listener, KEY, serve).close
        else:
            handler = Handler(lambda _, batch: take(batch.column(0)[0].as_buffer()))
            receiver = Receiver("127.0.0.1", identity_of(KEY), handler)
            port, close = receiver.port, receiver.shutdown
        task = started("send", way, port, shape)
        cpu = float(task.stdout.readline())
        for number in range(times):
            if agent is None:
                came.acquire()
                continue
            with pa.memory_map(str(segment_path(Path(folder), number))) as file:
                take(pa.ipc.open_file(file).get_batch(0).column(0)[0].as_buffer())
        cpu += time.process_time() - began
        for each in filter(None, (task, agent)):
            each.stdin.close()
            cpu += float(each.stdout.read() or 0)
            each.wait()
        close()
    return cpu / times / count * 1e6


def main(times: int) -> None:
    ways = ("TLS", "Flight", "the agent")
    print(f"{'µs of CPU a row':<16}" + "".join(f"{way:>12}{'':>8}" for way in ways))
    for shape in SHAPES:
        rounds = [[sample(way, shape) for way in ways] for _ in range(times)]
        found = [statistics.median(column) for column in zip(*rounds, strict=True)]
        cells = (f"{value:>12.1f}{value / found[0]:>6.2f} x" for value in found)
        print(f"{shape:<16}" + "".join(cells))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["send", way, port, shape]:
            send(way, int(port), shape)
        case ["keep", folder]:
            keep(folder)
        case words:
            main(int(words[0]) if words else 5)
