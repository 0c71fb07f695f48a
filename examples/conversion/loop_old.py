"""TensorFlowOnSpark: a training loop with checkpoints, and an evaluator that looks at them."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path

import common

from gridflow.compat.tfos import TFCluster


def main_fun(args, ctx):
    """Train, or evaluate what the chief has written."""
    import tensorflow as tf

    model = common.classifier(tf.keras)
    optimizer = tf.keras.optimizers.Adam(0.01)
    checkpoint = tf.train.Checkpoint(model=model)
    if ctx.job_name == "evaluator":
        seen = None
        while True:
            latest = tf.train.latest_checkpoint(args["folder"])
            if latest and latest != seen:
                checkpoint.restore(latest).expect_partial()
                found = {"step": int(latest.rpartition("-")[2]), "score": common.accuracy(model)}
                with Path(args["folder"], "scores").open("a") as file:
                    file.write(json.dumps(found) + "\n")
                seen = latest
            time.sleep(0.1)
    images, labels = common.digits(args["rows"])
    data = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(1000).repeat().batch(32)
    manager = tf.train.CheckpointManager(checkpoint, args["folder"], 3, checkpoint_name="model")
    loss = tf.keras.losses.SparseCategoricalCrossentropy()

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            value = loss(y, model(x, training=True))
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(value, variables), variables, strict=True))

    for number, (x, y) in enumerate(data.take(args["steps"]), start=1):
        step(x, y)
        if number % (args["steps"] // 2) == 0:
            manager.save(number)
            give_up = time.monotonic() + 30
            while str(number) not in _read(args["folder"]) and time.monotonic() < give_up:
                time.sleep(0.1)


def _read(folder):
    path = Path(folder, "scores")
    return path.read_text() if path.exists() else ""


def main(spark, rows=4000, steps=400):
    """Return the accuracy of each checkpoint on new digits."""
    with tempfile.TemporaryDirectory() as folder:
        args = {"folder": folder, "rows": rows, "steps": steps}
        cluster = TFCluster.run(
            spark.sparkContext, main_fun, args, 2, master_node="chief", eval_node=True
        )
        cluster.shutdown()
        return [json.loads(line)["score"] for line in _read(folder).splitlines()]


if __name__ == "__main__":
    print(f"accuracy: {main(common.session())}")
