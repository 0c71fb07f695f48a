"""A model's own process beside an executor: ``python -m gridflow.ml.inference.process TITLE``.

Spark's JVM starts it (``io.gridflow.inference.ModelProcess``), gives it requests on its standard
input, and reads answers from its standard output, which nobody else has. Numbers are big-endian, as
Java writes them::

    request: kind (4 bytes), task (8), slot (4), bytes (8), length of the text (4), text
    answer:  status (4 bytes), task (8), slot (4), nanoseconds (8), length of the text (4), text

    LOAD   The text is the model's pickled description; its content follows, of that many bytes.
           The answer says for the log how long it took.
    OPEN   A task begins; the text is what it asks, pickled. The answer has this process's id and
           its descriptors of memory: for the rows and the predictions of each slot.
    BATCH  So many bytes of rows are in the slot, a stream of Arrow. The answer comes when the
           predictions are in the slot, too.
    CLOSE  The task has ended, and gets no answer.

Memory without a name (memfd) isn't limited by ``/dev/shm``, which is small in containers; other
users can't open it, and it is gone with the last process that has it open.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import queue
import resource
import signal
import struct
import sys
import threading
import time
import traceback
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, BinaryIO, Final

from gridflow._spec import backends
from gridflow._spec.gpus import VISIBLE

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from gridflow.ml.serving import Predict, ServedModel

_LOAD, _OPEN, _BATCH, _CLOSE = range(4)
_DONE, _FAILED = range(2)
#: As many batches of a task can be under way: one is filled while the model computes the other.
_SLOTS: Final = 2
_HEAD: Final = struct.Struct(">iqiqi")
_PR_SET_PDEATHSIG: Final = 1


@dataclass(frozen=True)
class Content:
    """A model's bytes, like `gridflow.ml.model_broadcast.Parcel`."""

    key: str
    content: bytes = b""

    def open(self) -> bytes:
        """Return the bytes."""
        return self.content


@dataclass(frozen=True)
class Asked:
    """What tasks ask of the model.

    `model`: Its content isn't needed.
    """

    model: ServedModel
    batch_size: int
    nulls: str


class ModelProcess:
    """Answers requests until there are no more."""

    def __init__(self, requests: BinaryIO, answers: BinaryIO) -> None:
        self._requests, self._answers = requests, answers
        self._lock = threading.Lock()
        self._tasks: dict[int, _Task] = {}
        self._model: _SharedModel | None = None

    def run(self) -> None:
        """Answer requests."""
        while len(head := self._requests.read(_HEAD.size)) == _HEAD.size:
            kind, task, slot, size, length = _HEAD.unpack(head)
            text = self._requests.read(length)
            try:
                if kind == _LOAD:
                    self.answer(task, slot, 0, self._load(text, self._requests.read(size)))
                elif kind == _OPEN:
                    self.answer(task, slot, 0, self._open(task, text))
                elif kind == _BATCH and task in self._tasks:
                    self._tasks[task].batches.put((slot, size))
                elif kind == _CLOSE and task in self._tasks:
                    self._tasks.pop(task).batches.put(None)
            except Exception:  # noqa: BLE001 (whoever asked raises it)
                self.fail(task, slot)

    def answer(self, task: int, slot: int, nanoseconds: int, text: str = "") -> None:
        """Say that a request was fulfilled."""
        self._write(_DONE, task, slot, nanoseconds, text)

    def fail(self, task: int, slot: int) -> None:
        """Say that a request wasn't fulfilled, and the current exception."""
        self._write(_FAILED, task, slot, 0, traceback.format_exc())

    def _write(self, status: int, task: int, slot: int, nanoseconds: int, text: str) -> None:
        encoded = text.encode("utf-8", "backslashreplace")
        with self._lock:
            self._answers.write(_HEAD.pack(status, task, slot, nanoseconds, len(encoded)) + encoded)
            self._answers.flush()

    def _load(self, text: bytes, content: bytes) -> str:
        import cloudpickle

        start = time.monotonic()
        described = cloudpickle.loads(text)
        parcel = Content(described.parcel.key, content)
        self._model = _SharedModel(replace(described, parcel=parcel))
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
        return (
            f"{time.monotonic() - start:.1f} s, {len(content) / (1 << 20):.1f} MiB; its process "
            f"has {memory} MiB of memory"
        )

    def _open(self, task: int, text: bytes) -> str:
        import cloudpickle

        if self._model is None:
            raise RuntimeError("no model is loaded")
        opened = _Task(self, task, self._model, cloudpickle.loads(text))
        self._tasks[task] = opened
        opened.start()
        return " ".join(map(str, (os.getpid(), *opened.descriptors)))


class _SharedModel:
    """A model that several tasks use at once, as far as it can be."""

    def __init__(self, model: ServedModel) -> None:
        from gridflow.ml import serving

        self._model = model
        self._load: Callable[[ServedModel], Predict] = serving.load
        self._spare = [self._load(model)]
        self._is_own = model.kind == "function"
        self._turn = threading.Lock()
        # The first call compiles the model, and on JAX Keras keeps the state of a call in it.
        self._takes_turns = True
        self._always_takes_turns = (
            model.backend is not None and backends.of(model.backend).compiles_each_size
        )

    def __call__(self, asked: Asked, columns: list[pa.Array]) -> pa.Array:
        """Return the predictions for columns of rows."""
        from gridflow.ml.serving import predicted

        def answered(predict: Predict) -> pa.Array:
            return predicted(asked.model, predict, columns, asked.batch_size, asked.nulls)

        if self._is_own:  # a function expects to be called by one thread
            try:
                predict = self._spare.pop()
            except IndexError:
                predict = self._load(self._model)
            try:
                return answered(predict)
            finally:
                self._spare.append(predict)
        if not self._takes_turns:
            return answered(self._spare[0])
        with self._turn:
            found = answered(self._spare[0])
        self._takes_turns = self._always_takes_turns
        return found

    @property
    def keeps_inputs(self) -> bool:
        """Whether it may keep its inputs, whose memory is used again."""
        return self._is_own


class _Task(threading.Thread):
    """Computes the batches of a task of Spark, one after the other."""

    def __init__(
        self, process: ModelProcess, number: int, model: _SharedModel, asked: Asked
    ) -> None:
        super().__init__(name=f"gridflow-task-{number}", daemon=True)
        self.batches: queue.SimpleQueue[tuple[int, int] | None] = queue.SimpleQueue()
        self._process, self._number = process, number
        self._model, self._asked = model, asked
        self.descriptors: list[int] = []
        try:
            for slot in range(_SLOTS):
                for what in ("rows", "predictions"):
                    self.descriptors.append(os.memfd_create(f"gridflow-{what}-{slot}"))
        except BaseException:
            self._close()
            raise
        self._maps: dict[int, mmap.mmap] = {}

    def run(self) -> None:
        """Compute until the task ends."""
        while (batch := self.batches.get()) is not None:
            slot, size = batch
            try:
                nanoseconds = self._compute(slot, size)
            except Exception:  # noqa: BLE001 (the task raises it)
                self._process.fail(self._number, slot)
            else:
                self._process.answer(self._number, slot, nanoseconds)
        self._close()

    def _compute(self, slot: int, size: int) -> int:
        import pyarrow as pa

        rows = pa.ipc.open_stream(self._rows(slot, size)).read_next_batch()
        start = time.perf_counter_ns()
        found = self._model(self._asked, rows.columns)
        nanoseconds = time.perf_counter_ns() - start
        predictions = pa.RecordBatch.from_arrays([found], ["prediction"])
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, predictions.schema) as stream:
            stream.write_batch(predictions)
        _write_whole(self.descriptors[2 * slot + 1], memoryview(sink.getvalue()))
        return nanoseconds

    def _rows(self, slot: int, size: int) -> pa.Buffer:
        import pyarrow as pa

        descriptor = self.descriptors[2 * slot]
        if self._model.keeps_inputs:
            return pa.py_buffer(os.pread(descriptor, size, 0))
        if slot not in self._maps or len(self._maps[slot]) < size:
            self._maps[slot] = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
        return pa.py_buffer(self._maps[slot]).slice(0, size)

    def _close(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors = []


def _write_whole(descriptor: int, data: memoryview) -> None:
    place = 0
    while place < len(data):
        place += os.pwrite(descriptor, data[place:], place)


def _own_channel() -> tuple[BinaryIO, BinaryIO]:
    """Return standard input and output as files; whatever prints, prints to standard error."""
    requests, answers = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return os.fdopen(requests, "rb"), os.fdopen(answers, "wb")


def main() -> None:
    """Serve until the executor ends or has no more work."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # also if it is frozen
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the driver
    requests, answers = _own_channel()
    os.environ.setdefault(VISIBLE, "-1")
    for name in ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"):
        os.environ.setdefault(name, os.environ.get("OMP_NUM_THREADS", "0"))
    ModelProcess(requests, answers).run()
    sys.stderr.flush()
    os._exit(0)  # nothing that was loaded has to end in order


if __name__ == "__main__":
    # As a module that pickles of this package name, too.
    from gridflow.ml.inference.process import main as run

    run()
