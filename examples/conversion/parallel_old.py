"""TensorFlowOnSpark: copies of a function, each on its own part of the files."""

from __future__ import annotations

import tempfile
from pathlib import Path

import common
import numpy as np

from gridflow.compat.tfos import TFParallel


def main_fun(args, ctx):
    """Answer this copy's part."""
    import tensorflow as tf

    model = common.classifier(tf.keras)
    model.set_weights(args["weights"])
    images = np.load(f"{args['folder']}/images.npy")[ctx.worker_num :: ctx.num_workers]
    answers = model.predict(images, verbose=0).argmax(1)
    np.save(f"{args['folder']}/answers-{ctx.worker_num}.npy", answers)


def main(spark, weights):
    """Return the accuracy on new digits."""
    images, labels = common.digits(500, 99)
    with tempfile.TemporaryDirectory() as folder:
        np.save(Path(folder, "images.npy"), images)
        args = {"weights": weights, "folder": folder}
        TFParallel.run(spark.sparkContext, main_fun, args, 2)
        right = [
            np.load(f"{folder}/answers-{number}.npy") == labels[number::2] for number in range(2)
        ]
    return float(np.concatenate(right).mean())


if __name__ == "__main__":
    session = common.session()
    print(f"accuracy: {main(session, common.trained(session)):.3f}")
