"""TensorFlowOnSpark: Spark pushes an RDD of digits into two nodes that train one Keras model."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import common

from gridflow.compat.tfos import TFCluster, compat


def main_fun(args, ctx):
    """Train on what is fed."""
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = common.classifier(tf.keras)
        model.compile("adam", "sparse_categorical_crossentropy")
    feed = ctx.get_data_feed()

    def rows():
        while not feed.should_stop():
            batch = feed.next_batch(1)
            if not batch:
                return
            yield batch[0]

    signature = (tf.TensorSpec([64]), tf.TensorSpec([], tf.int64))
    data = tf.data.Dataset.from_generator(rows, output_signature=signature)
    options = tf.data.Options()
    compat.disable_auto_shard(options)
    data = data.with_options(options).batch(args["batch_size"])
    # Nobody knows how many rows come to this node: nine tenths of its share are safe.
    steps = 0.9 * args["rows"] * args["epochs"] / args["batch_size"] / ctx.num_workers
    model.fit(data, steps_per_epoch=int(steps), verbose=0)
    feed.terminate()
    if ctx.job_name == "chief":
        Path(args["result"]).write_text(json.dumps(common.accuracy(model)))


def main(spark, rows=4000, epochs=4):
    """Return the accuracy on new digits."""
    images, labels = common.digits(rows)
    sc = spark.sparkContext
    rdd = sc.parallelize(list(zip(images.tolist(), labels.tolist(), strict=True)), 4)
    with tempfile.TemporaryDirectory() as folder:
        args = {"rows": rows, "epochs": epochs, "batch_size": 32, "result": f"{folder}/accuracy"}
        cluster = TFCluster.run(
            sc, main_fun, args, 2, 0, input_mode=TFCluster.InputMode.SPARK, master_node="chief"
        )
        cluster.train(rdd, num_epochs=epochs)
        cluster.shutdown()
        return json.loads(Path(args["result"]).read_text())


if __name__ == "__main__":
    print(f"accuracy: {main(common.session()):.3f}")
