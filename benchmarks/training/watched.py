"""What it costs to watch a job: steps with all that ranks measure and without, and observers.

``python benchmarks/training/watched.py [PAIRS]``. Two workers train the small model of ``steps.py``
in short fits, in turn with everything that a rank measures and with nothing (switched off from
within, as users can't): jobs differ from each other by more than that costs. Prints the median of
the pairs' ratios. Observers work in the driver: the processor time that it takes there is printed
with two of them and without.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

from models import CASES, keras_model, rows
from peers import WORKERS

from gridflow import LocalLauncher, TensorflowDistributor
from gridflow.observers import Notify, Observer

CASE = "784-128-10"
PAIRS = int(sys.argv[1]) if len(sys.argv) > 1 else 40


class Writes(Observer):
    """Writes each report of metrics into a file."""

    def __init__(self, path):
        self._path = path

    def metrics(self, step, values, task):
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, "task": task, **values}) + "\n")


def switches():
    """Return a function that lets this process measure, or not; also what it traces then."""
    from tensorflow.python.data.ops.iterator_ops import OwnedIterator

    from gridflow._keras.due import Spent

    names = ("__next__", "get_next", "get_next_as_optional")
    wrapped = [vars(getattr(OwnedIterator, name))["_gridflow_wrappers"] for name in names]
    calls, during, report = [each.call for each in wrapped], Spent.during, Spent.report

    def switch(is_on):
        for each, call in zip(wrapped, calls, strict=True):
            each.call = call if is_on else each.original
        Spent.during = during if is_on else lambda self, event: contextlib.nullcontext()
        Spent.report = report if is_on else lambda self: {}

    return switch


def train(ctx, pairs):
    """Return the milliseconds of a step in each pair of fits, measured and not."""
    import keras

    switch, models = switches(), {}
    for is_on in (True, False):
        with ctx.strategy.scope():
            models[is_on] = keras_model(CASE, keras)
    data = ctx.dataset("rows", batch_size=CASES[CASE][0], features="x", label="y")
    callbacks = ctx.callbacks()

    def milliseconds(is_on):
        switch(is_on)
        began = time.perf_counter()
        models[is_on].fit(data, epochs=1, verbose=0, callbacks=callbacks)
        return 1000 * (time.perf_counter() - began) / CASES[CASE][1]

    for is_on in models:  # traced
        milliseconds(is_on)
    found = []
    for number in range(pairs):
        first = bool(number % 2)
        pair = {first: milliseconds(first), not first: milliseconds(not first)}
        found.append((pair[True], pair[False]))
    return found


def job(observers, pairs):
    """Return the pairs of a job, and the driver's processor time, in milliseconds a second."""
    x, y = rows(CASE, WORKERS)
    distributor = TensorflowDistributor(
        WORKERS,
        launcher=LocalLauncher(),
        observers=observers,
        logs="none",
        progress=False,
        env={"PYTHONPATH": str(Path(__file__).parent)},
    )
    began, worked = time.perf_counter(), time.process_time()
    found = distributor.run(train, pairs, data={"rows": {"x": x, "y": y}}).value
    return found, 1000 * (time.process_time() - worked) / (time.perf_counter() - began)


def main():
    """Measure pairs of fits, each in the other order than the one before."""
    with tempfile.TemporaryDirectory() as folder:
        observers = [Writes(Path(folder, "metrics")), Notify(command=["true"])]
        pairs, watched = job(observers, PAIRS)
    _, plain = job([], PAIRS)
    steps = [statistics.median(each) for each in zip(*pairs, strict=True)]
    ratio = statistics.median(measured / plain for measured, plain in pairs)
    print(f"a step: {steps[0]:.2f} ms measured, {steps[1]:.2f} ms not")
    print(f"median of {PAIRS} pairs: a measured step takes {ratio:.3f} x as long")
    print(f"the driver works {watched:.0f} ms a second with observers, {plain:.0f} without")


if __name__ == "__main__":
    main()
