"""Images that are decoded and augmented on data workers, by TensorFlow's data service.

``python examples/distribution/images_elsewhere.py``: two workers train one model to tell bright
images from dark ones. Two data workers read the JPEG files, decode them, cut a random piece out of
each and change its colours; the trainers get finished batches.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from gridflow import LocalLauncher, Role, TensorflowDistributor


def write_images(folder, count):
    """Write JPEG files of 96 x 96 pixels, dark ones and bright ones by turns."""
    import numpy as np
    import tensorflow as tf

    random = np.random.default_rng(0)
    for number in range(count):
        low = 128 * (number % 2)
        pixels = random.integers(low, low + 128, (96, 96, 3), dtype=np.uint8)
        name = f"{'bright' if number % 2 else 'dark'}-{number}.jpeg"
        (folder / name).write_bytes(tf.io.encode_jpeg(pixels).numpy())


def train(ctx, pattern, epochs):
    """Train on what the data workers make of the files; return the accuracy of each epoch."""
    import tensorflow as tf

    import keras

    def prepared(path):  # runs on the data workers: TensorFlow's operations alone
        image = tf.io.decode_jpeg(tf.io.read_file(path), channels=3)
        image = tf.image.random_crop(image, (64, 64, 3))
        image = tf.image.random_saturation(tf.cast(image, tf.float32) / 255, 0.8, 1.2)
        is_bright = tf.strings.regex_full_match(path, ".*bright-.*")
        return image, tf.cast(is_bright, tf.float32)[tf.newaxis]

    files = tf.data.Dataset.list_files(pattern, shuffle=True)
    images = files.map(prepared, num_parallel_calls=tf.data.AUTOTUNE).batch(16)
    batches = ctx.data_service(images, sharding="dynamic")

    with ctx.strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((64, 64, 3)),
                keras.layers.Rescaling(2.0, -1.0),
                keras.layers.Conv2D(4, 5, strides=4, activation="tanh"),
                keras.layers.GlobalAveragePooling2D(),
                keras.layers.Dense(1, "sigmoid"),
            ]
        )
        model.compile(keras.optimizers.Adam(0.02), "binary_crossentropy", metrics=["accuracy"])
    history = model.fit(batches, epochs=epochs, verbose=0, callbacks=ctx.callbacks())
    return history.history["accuracy"]


def main():
    """Write the images, and train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--images", type=int, default=400)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--data-workers", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write_images(Path(folder), options.images)
        distributor = TensorflowDistributor(
            roles=[Role("worker", 2), Role("data", options.data_workers)],
            launcher=LocalLauncher(),
        )
        arguments = (f"{folder}/*.jpeg", options.epochs)
        print(distributor.plan(train, *arguments))
        result = distributor.run(train, *arguments)
    print("accuracy by epoch:", *(f"{value:.2f}" for value in result.value))


if __name__ == "__main__":
    main()
