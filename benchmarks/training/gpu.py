"""Milliseconds of a step on a GPU: gridflow's workers beside plain Keras in one process.

``python benchmarks/training/gpu.py [REPETITIONS] [PART OF A CASE'S NAME]``. It needs one GPU. All
train the same model on the same rows, one after the other: on TensorFlow, JAX and torch in one
process with the whole GPU, and on TensorFlow in two workers with half of the GPU each, whose values
are exchanged by gridflow or by TensorFlow's ring (NCCL refuses two ranks on one GPU). The ratios
are of medians, to plain Keras on the same backend.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from models import keras_model

from gridflow import CommunicationOptions, Distribution, LocalLauncher, TensorflowDistributor

#: Rows of a step, of all workers together, and steps of an epoch.
CASES = {"10 M parameters": (512, 60), "convolutions, 64x64": (256, 20)}
EPOCHS = 3
BACKENDS = ("tensorflow", "jax", "torch")
_PATHS = [each for each in [os.environ.get("PYTHONPATH")] if each]
SHARED = {"gridflow": "gridflow", "ring": "TensorFlow's ring"}


def rows(case):
    """Return the rows of an epoch, and their classes."""
    count = CASES[case][0] * CASES[case][1]
    rng = np.random.default_rng(0)
    shape = (count, 64, 64, 3) if case.startswith("convolutions") else (count, 784)
    return rng.normal(size=shape).astype("float32"), rng.integers(0, 10, count)


def timed(fit, case):
    """Return the milliseconds of a step, in each epoch but the first."""
    found = []
    fit()
    for _ in range(EPOCHS):
        began = time.perf_counter()
        fit()
        found.append(1000 * (time.perf_counter() - began) / CASES[case][1])
    return found


def alone(case):
    """Train with Keras alone."""
    import tensorflow as tf

    if os.environ["KERAS_BACKEND"] != "tensorflow":  # tf.data alone wouldn't take the GPU's memory
        tf.config.set_visible_devices([], "GPU")
    import keras

    data = tf.data.Dataset.from_tensor_slices(rows(case)).batch(CASES[case][0]).prefetch(2)
    model = keras_model(case, keras)
    return timed(lambda: model.fit(data, epochs=1, verbose=0), case)


def train(ctx, case):
    """Train as one of gridflow's workers."""
    import keras

    with ctx.strategy.scope():
        model = keras_model(case, keras)
    batch = CASES[case][0] // ctx.num_workers
    data = ctx.dataset("rows", batch_size=batch, features="x", label="y")
    return timed(lambda: model.fit(data, epochs=1, verbose=0), case)


def by_gridflow(case, workers=1, strategy="none", **options):
    """Return the milliseconds of the steps of gridflow's workers."""
    x, y = rows(case)
    distributor = TensorflowDistributor(
        workers,
        strategy,
        gpus=1 if workers == 1 else 1 / workers,
        launcher=LocalLauncher(),
        logs="none",
        progress=False,
        env={"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *_PATHS])},
        **options,
    )
    return distributor.run(train, case, data={"rows": {"x": x, "y": y}}).value


def by_keras(case, backend):
    """Return the milliseconds of plain Keras."""
    done = subprocess.run(
        [sys.executable, __file__, "alone", case],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    return json.loads(done.stdout.splitlines()[-1])


def shared(case, implementation):
    """Return the milliseconds of two workers with half of the GPU each."""
    distribution = Distribution(communication=CommunicationOptions(implementation))
    return by_gridflow(case, 2, "multi_worker_mirrored", distribution=distribution)


def main():
    """Measure all, alternately."""
    repetitions = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    for case, (batch, _) in CASES.items():
        if sys.argv[2:] and sys.argv[2] not in case:
            continue
        found = {}
        for _ in range(repetitions):
            for backend in BACKENDS:
                found.setdefault((backend, "Keras"), []).extend(by_keras(case, backend))
                ours = by_gridflow(case, backend=backend)
                found.setdefault((backend, "gridflow"), []).extend(ours)
            for name, words in SHARED.items():
                key = ("tensorflow", f"gridflow, 2 workers, {words}")
                found.setdefault(key, []).extend(shared(case, name))
        print(f"{case}, {batch} rows a step: ms a step, and its ratio to plain Keras")
        medians = {key: statistics.median(each) for key, each in found.items()}
        for (backend, who), each in medians.items():
            ratio = each / medians[backend, "Keras"]
            print(f"  {backend:12}{who:40}{each:8.2f}{ratio:8.2f}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["alone"]:
        print(json.dumps(alone(sys.argv[2])))
    else:
        main()
