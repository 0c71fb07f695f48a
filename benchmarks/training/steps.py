"""Milliseconds of a step of ``fit``, and its collectives: two workers beside one process.

Both train 784-128-10 with Adam on the same rows, and as many of them in a step: 64 for each of two
workers, 128 in one process of plain Keras. Run with the number of repetitions (3).
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

import numpy as np

from gridflow import LocalLauncher, TensorflowDistributor

WORKERS, BATCH, STEPS, EPOCHS = 2, 64, 200, 3


def rows():
    """Return the rows of an epoch."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(WORKERS * BATCH * STEPS, 784)).astype("float32")
    return x, rng.integers(0, 10, len(x))


def model_of():
    """Return the compiled model."""
    import keras

    layers = [
        keras.Input((784,)),
        keras.layers.Dense(128, "relu"),
        keras.layers.Dense(10, "softmax"),
    ]
    model = keras.Sequential(layers)
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def timed(model, data):
    """Return the milliseconds of a step, in each epoch but the first."""
    model.fit(data, epochs=1, verbose=0)
    found = []
    for _ in range(EPOCHS):
        began = time.perf_counter()
        model.fit(data, epochs=1, verbose=0)
        found.append(1000 * (time.perf_counter() - began) / STEPS)
    return found


def collectives():
    """Return the sizes of all collectives in the functions that were traced here."""
    import gc

    from tensorflow.python.framework.func_graph import FuncGraph

    graphs = [each for each in gc.get_objects() if isinstance(each, FuncGraph)]
    return [
        str(operation.inputs[0].shape)
        for graph in graphs
        for operation in graph.get_operations()
        if operation.type.startswith("CollectiveReduce")
    ]


def train(ctx):
    """Train as one of the workers."""
    with ctx.strategy.scope():
        model = model_of()
    found = timed(model, ctx.dataset("rows", batch_size=BATCH, features="x", label="y"))
    return found, collectives()


def alone():
    """Train in this process, and print the milliseconds."""
    import tensorflow as tf

    data = tf.data.Dataset.from_tensor_slices(rows()).batch(WORKERS * BATCH)
    print(*timed(model_of(), data))


def main():
    """Measure both, alternately."""
    x, y = rows()
    distributor = TensorflowDistributor(
        WORKERS, launcher=LocalLauncher(), logs="none", progress=False
    )
    ours, plain, sizes = [], [], []
    for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 3):
        found, sizes = distributor.run(train, data={"rows": {"x": x, "y": y}}).value
        ours += found
        command = [sys.executable, __file__, "alone"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        plain += map(float, done.stdout.split())
    one, two = statistics.median(plain), statistics.median(ours)
    print(f"ms a step, medians of {len(ours)} epochs")
    print(f"one process, plain Keras   {one:6.2f}")
    print(f"gridflow, two workers      {two:6.2f}   {two / one:.2f} x as long")
    print(f"collectives traced by a worker: {', '.join(sizes)}")


if __name__ == "__main__":
    alone() if sys.argv[1:] == ["alone"] else main()
