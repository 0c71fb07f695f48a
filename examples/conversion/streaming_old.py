"""TensorFlowOnSpark: a stream of digits (DStream) is trained until the program has enough."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import common

from gridflow.compat.tfos import TFCluster


def main_fun(args, ctx):
    """Train on what comes, then want no more."""
    import numpy as np
    import tensorflow as tf

    model = common.classifier(tf.keras)
    model.compile("adam", "sparse_categorical_crossentropy")
    feed = ctx.get_data_feed()
    steps = 0
    while not feed.should_stop() and steps < args["steps"]:
        images, labels = zip(*feed.next_batch(32), strict=True)
        model.train_on_batch(np.array(images, "float32"), np.array(labels))
        steps += 1
    feed.terminate()
    Path(args["folder"], str(ctx.task_index)).write_text(json.dumps(common.accuracy(model)))


def main(spark, steps=150):
    """Return the accuracy on new digits of each node's model."""
    from pyspark.streaming import StreamingContext

    sc = spark.sparkContext
    ssc = StreamingContext(sc, 1)
    images, labels = common.digits(4000)
    rdd = sc.parallelize(list(zip(images.tolist(), labels.tolist(), strict=True)), 4).cache()
    stream = ssc.queueStream([rdd] * 30)
    with tempfile.TemporaryDirectory() as folder:
        args = {"folder": folder, "steps": steps}
        cluster = TFCluster.run(sc, main_fun, args, 2, input_mode=TFCluster.InputMode.SPARK)
        cluster.train(stream, feed_timeout=60)
        ssc.start()
        cluster.shutdown(ssc)
        return [json.loads(path.read_text()) for path in sorted(Path(folder).iterdir())]


if __name__ == "__main__":
    print(f"accuracy: {main(common.session())}")
