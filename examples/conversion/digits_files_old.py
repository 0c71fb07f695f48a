"""TensorFlowOnSpark: the nodes read TFRecord files themselves."""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import common

from gridflow.compat.tfos import TFCluster, compat, dfutil


def main_fun(args, ctx):
    """Train on the node's part of the files."""
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    spec = {
        "image": tf.io.FixedLenFeature([64], tf.float32),
        "label": tf.io.FixedLenFeature([], tf.int64),
    }

    def parsed(records):
        cells = tf.io.parse_example(records, spec)
        return cells["image"], cells["label"]

    files = tf.data.Dataset.list_files(ctx.absolute_path(args.data) + "/part-*", shuffle=False)
    data = tf.data.TFRecordDataset(files).shard(ctx.num_workers, ctx.executor_id).repeat()
    options = tf.data.Options()
    compat.disable_auto_shard(options)
    data = data.shuffle(1000).batch(args.batch_size).map(parsed).with_options(options)
    with strategy.scope():
        model = common.classifier(tf.keras)
        model.compile("adam", "sparse_categorical_crossentropy")
    steps = args.rows // (args.batch_size * ctx.num_workers)
    model.fit(data, epochs=args.epochs, steps_per_epoch=steps, verbose=0)
    if ctx.job_name == "chief":
        Path(args.result).write_text(json.dumps(common.accuracy(model)))


def main(spark, rows=4000, epochs=4):
    """Return the accuracy on new digits."""
    with tempfile.TemporaryDirectory() as folder:
        args = argparse.Namespace(
            data=f"{folder}/digits",
            result=f"{folder}/accuracy",
            rows=rows,
            epochs=epochs,
            batch_size=32,
        )
        dfutil.saveAsTFRecords(common.frame_of_digits(spark, rows), args.data)
        cluster = TFCluster.run(spark.sparkContext, main_fun, args, 2, 0, master_node="chief")
        cluster.shutdown()
        return json.loads(Path(args.result).read_text())


if __name__ == "__main__":
    print(f"accuracy: {main(common.session()):.3f}")
