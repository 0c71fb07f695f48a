"""TensorFlowOnSpark: a residual network knows shapes, its arguments a command line."""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import common

from gridflow.compat.tfos import TFCluster


def main_fun(argv, ctx):
    """Train on images that the program draws."""
    import tensorflow as tf

    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--rows", type=int)
    parser.add_argument("--result")
    args = parser.parse_args(argv)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = common.residual_network(tf.keras)
        model.compile(
            tf.keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy", metrics=["accuracy"]
        )
    images, _, labels = common.shapes(args.rows)
    data = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(1000).repeat()
    steps = args.rows // (32 * ctx.num_workers)
    batches = data.batch(32 * ctx.num_workers)
    model.fit(batches, epochs=args.epochs, steps_per_epoch=steps, verbose=0)
    images, _masks, labels = common.shapes(300, 99)
    _, found = model.evaluate(images, labels, batch_size=100, verbose=0)
    if ctx.job_name == "chief":
        Path(args.result).write_text(json.dumps(found))


def main(spark, rows=1024, epochs=6):
    """Return the accuracy on new images."""
    with tempfile.TemporaryDirectory() as folder:
        argv = [f"--epochs={epochs}", f"--rows={rows}", f"--result={folder}/accuracy"]
        cluster = TFCluster.run(spark.sparkContext, main_fun, argv, 2, master_node="chief")
        cluster.shutdown()
        return json.loads(Path(folder, "accuracy").read_text())


if __name__ == "__main__":
    print(f"accuracy: {main(common.session()):.3f}")
