"""Programs of their own under strategy="command": Keras is patched in each of their Pythons."""

from __future__ import annotations

import subprocess
import sys

import pytest

from gridflow import (
    InvalidArgument,
    LaunchOptions,
    LocalLauncher,
    Programs,
    TensorflowDistributor,
)
from suite.waiting import patience

QUIET = {
    "launcher": LocalLauncher(),
    "logs": "none",
    "progress": False,
    "launch_options": LaunchOptions(warm_seconds=0),
}

#: TensorFlow's own tutorial, shorter.
MAIN = """
import json, os
import numpy as np
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
rows = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(16).repeat()
with strategy.scope():
    tf.keras.utils.set_random_seed(1)
    model = tf.keras.Sequential([tf.keras.layers.Dense(8, "relu"), tf.keras.layers.Dense(1)])
    model.compile(tf.keras.optimizers.SGD(0.1), "mse")
losses = model.fit(rows, epochs=2, steps_per_epoch=4, verbose=0).history["loss"]
print("LOSSES", *losses)
"""
#: Its tutorial of a loop, shorter: the first step creates what the optimizer keeps.
LOOP = """
import numpy as np
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")

def rows_of(context):
    size = context.get_per_replica_batch_size(16)
    rows = tf.data.Dataset.from_tensor_slices((x, x[:, :1]))
    return rows.shard(context.num_input_pipelines, context.input_pipeline_id).batch(size)

with strategy.scope():
    tf.keras.utils.set_random_seed(1)
    layers = [tf.keras.layers.Dense(8, "relu", kernel_regularizer="l2"), tf.keras.layers.Dense(1)]
    model = tf.keras.Sequential(layers)
    model.build((None, 4))
    rows = strategy.distribute_datasets_from_function(rows_of)
    optimizer = tf.keras.optimizers.RMSprop(0.01)
    seen = tf.keras.metrics.MeanSquaredError()

@tf.function
def train(iterator):
    def step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            found = model(x, training=True)
            loss = tf.nn.compute_average_loss(tf.reduce_sum((found - y) ** 2, -1))
            loss += tf.nn.scale_regularization_loss(tf.add_n(model.losses))
        weights = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        seen.update_state(y, found)
        return loss

    losses = strategy.run(step, args=(next(iterator),))
    return strategy.reduce("SUM", losses, axis=None)

losses = []
for _ in range(2):
    iterator, total = iter(rows), 0.0
    for _ in range(4):
        total += float(train(iterator)) / 4
    losses.append(total)
assert np.isfinite(float(seen.result()))
print("LOSSES", *losses)
"""
#: What a program finds of gridflow, and of the user's own start.
LOOK = """
import sys
own = getattr(sys.modules.get("sitecustomize"), "OWN", None)
patches = any(type(each).__name__ == "_AfterImport" for each in sys.meta_path)
print("FOUND", patches, own, any("startup" in p for p in sys.path))
"""


def said(result, rank, word):
    """Return what a program printed behind a word."""
    (line,) = [line for line in result.logs(rank).splitlines() if line.startswith(word)]
    return line.split()[1:]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "env"),
    [(MAIN, {}), (LOOP, {}), (LOOP, {"TF_USE_LEGACY_KERAS": "1"})],
    ids=["fit", "loop", "loop of tf_keras"],
)
def test_a_program_of_plain_tensorflow_trains_on_two_workers(program, env, tmp_path):
    (tmp_path / "main.py").write_text(program)
    distributor = TensorflowDistributor(2, "command", env=env, **QUIET)
    result = distributor.run([sys.executable, str(tmp_path / "main.py")])
    first, second = ([float(loss) for loss in said(result, rank, "LOSSES")] for rank in (0, 1))
    assert first == pytest.approx(second)
    assert first[1] < first[0]


@pytest.mark.slow
@pytest.mark.parametrize("patches", [True, False])
@pytest.mark.parametrize("own", ["OWN = 'mine'", "import not_there", None])
def test_the_users_own_start_is_kept(patches, own, tmp_path):
    if own:
        (tmp_path / "sitecustomize.py").write_text(own)
    job = TensorflowDistributor(
        strategy="command",
        programs=Programs(patches=patches),
        env={"PYTHONPATH": str(tmp_path)},
        **QUIET,
    )
    result = job.run([sys.executable, "-c", LOOK])
    mine = "mine" if own == "OWN = 'mine'" else "None"
    assert said(result, 0, "FOUND") == [str(patches), mine, "False"]


@pytest.mark.slow
@pytest.mark.parametrize(("more", "patched"), [({}, True), ({"GRIDFLOW_PATCHES": "0"}, False)])
def test_programs_of_gridflow_launch_have_them_too(more, patched, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("OWN = 'mine'")
    ended = subprocess.run(
        [sys.executable, "-m", "gridflow.cli", "launch", "--", sys.executable, "-c", LOOK],
        env={"GRIDFLOW_ROLE": "worker", "GRIDFLOW_INDEX": "0", "PYTHONPATH": str(tmp_path), **more},
        capture_output=True,
        text=True,
        timeout=patience(),
        check=True,
    )
    assert f"FOUND {patched} mine False" in ended.stdout


def test_functions_are_not_trained_without():
    with pytest.raises(InvalidArgument, match="strategy='command'"):
        TensorflowDistributor(2, programs=Programs(patches=False), **QUIET)
