"""TensorFlowOnSpark: rows are pushed to a cluster, and its answers come back as an RDD."""

from __future__ import annotations

import common

from gridflow.compat.tfos import TFCluster


def main_fun(args, ctx):
    """Answer each row."""
    import numpy as np
    import tensorflow as tf

    model = common.classifier(tf.keras)
    model.set_weights(args["weights"])
    feed = ctx.get_data_feed(train_mode=False)
    while not feed.should_stop():
        batch = feed.next_batch(100)
        if batch:
            feed.batch_results(model(np.array(batch, "float32")).numpy().argmax(1).tolist())


def main(spark, weights):
    """Return the accuracy on new digits."""
    images, labels = common.digits(500, 99)
    sc = spark.sparkContext
    args = {"weights": weights}
    cluster = TFCluster.run(sc, main_fun, args, 2, input_mode=TFCluster.InputMode.SPARK)
    answers = cluster.inference(sc.parallelize(images.tolist(), 4)).collect()
    cluster.shutdown()
    return sum(a == label for a, label in zip(answers, labels, strict=True)) / len(labels)


if __name__ == "__main__":
    session = common.session()
    print(f"accuracy: {main(session, common.trained(session)):.3f}")
