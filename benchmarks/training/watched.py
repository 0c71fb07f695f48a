"""What it costs to watch a job: steps per second with all measuring and observers, and without.

``python benchmarks/training/watched.py [PAIRS]``. Jobs of two workers train the small model of
``steps.py``, alternately with three observers and everything that a rank measures, and with neither
(switched off from within, as users can't). Prints the median of the pairs' ratios.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import sys
import tempfile
from pathlib import Path

from models import CASES, keras_model, rows
from peers import WORKERS, timed

from gridflow import LocalLauncher, TensorflowDistributor
from gridflow.observers import Notify, Observer

CASE = "784-128-10"
PAIRS = int(sys.argv[1]) if len(sys.argv) > 1 else 10
#: Jobs differ from each other by more than what is measured, fits of a job by less.
ROUNDS = 6


class Writes(Observer):
    """Writes each report of metrics into a file."""

    def __init__(self, path):
        self._path = path

    def metrics(self, step, values, task):
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, "task": task, **values}) + "\n")


def switch_off():
    """Let this process measure nothing, before it makes a model."""
    from tensorflow.python.data.ops.iterator_ops import OwnedIterator

    from gridflow._keras.spent import Spent

    for name in ("__next__", "get_next", "get_next_as_optional"):
        wrappers = vars(getattr(OwnedIterator, name))["_gridflow_wrappers"]
        wrappers.call = wrappers.original
    Spent.during = lambda self, event: contextlib.nullcontext()
    Spent.report = lambda self: {}


def train(ctx, is_watched):
    """Return the milliseconds of a step in some fits."""
    import keras

    if not is_watched:
        switch_off()
    with ctx.strategy.scope():
        model = keras_model(CASE, keras)
    data = ctx.dataset("rows", batch_size=CASES[CASE][0], features="x", label="y")
    callbacks = ctx.callbacks()

    def fit():
        model.fit(data, epochs=1, verbose=0, callbacks=callbacks)

    return [each for _ in range(ROUNDS) for each in timed(fit, CASE)]


def milliseconds(is_watched, folder):
    """Return the milliseconds of a step of one job."""
    x, y = rows(CASE, WORKERS)
    observers = [Writes(folder / "metrics"), Notify(command=["true"])] if is_watched else []
    distributor = TensorflowDistributor(
        WORKERS,
        launcher=LocalLauncher(),
        observers=observers,
        logs="none",
        progress=False,
        env={"PYTHONPATH": str(Path(__file__).parent)},
    )
    found = distributor.run(train, is_watched, data={"rows": {"x": x, "y": y}}).value
    return statistics.median(found)


def main():
    """Measure pairs of jobs, each in the other order than the one before."""
    pairs = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(PAIRS):
            order = (True, False) if number % 2 else (False, True)
            found = {each: milliseconds(each, Path(folder)) for each in order}
            pairs.append((found[True], found[False]))
            print(f"{found[True]:8.2f} ms watched {found[False]:8.2f} ms not", flush=True)
    ratio = statistics.median(watched / plain for watched, plain in pairs)
    print(f"median of {PAIRS} pairs: a watched step takes {ratio:.3f} x as long")


if __name__ == "__main__":
    main()
