"""TensorFlowOnSpark: an estimator of Spark ML, and the model that it fits."""

from __future__ import annotations

import argparse
import tempfile

import common

from gridflow.compat.tfos import compat
from gridflow.compat.tfos.pipeline import TFEstimator


def train_fn(args, ctx):
    """Train on the columns that are fed, and export."""
    import numpy as np
    import tensorflow as tf

    model = common.classifier(tf.keras)
    model.compile("adam", "sparse_categorical_crossentropy")
    feed = ctx.get_data_feed(input_mapping=args.input_mapping)
    while not feed.should_stop():
        batch = feed.next_batch(args.batch_size)
        if batch["image"]:
            images = np.array(batch["image"], "float32")
            model.train_on_batch(images, np.array(batch["label"]))
    compat.export_saved_model(model, args.export_dir, ctx.job_name == "chief")


def main(spark, rows=4000, epochs=4):
    """Return the accuracy on new digits."""
    images, labels = common.digits(500, 99)
    new = spark.createDataFrame([(each,) for each in images.tolist()], "image array<float>")
    with tempfile.TemporaryDirectory() as folder:
        estimator = (
            TFEstimator(train_fn, argparse.Namespace())
            .setInputMapping({"image": "image", "label": "label"})
            .setExportDir(f"{folder}/model")
            .setClusterSize(1)
            .setBatchSize(32)
            .setEpochs(epochs)
        )
        model = estimator.fit(common.frame_of_digits(spark, rows))
        model.setInputMapping({"image": "image"}).setOutputMapping({"output_0": "digit"})
        answers = [row.digit for row in model.transform(new.coalesce(1)).collect()]
    right = [row.index(max(row)) == label for row, label in zip(answers, labels, strict=True)]
    return sum(right) / len(right)


if __name__ == "__main__":
    print(f"accuracy: {main(common.session()):.3f}")
