"""What the old programs and their twins share: data that they draw themselves, and models."""

from __future__ import annotations

import numpy as np

#: The seven bars of a digit on a pocket calculator: rows and columns of an image of 8 x 8.
BARS = {
    "a": (slice(0, 1), slice(2, 6)),
    "b": (slice(1, 4), slice(6, 7)),
    "c": (slice(4, 7), slice(6, 7)),
    "d": (slice(7, 8), slice(2, 6)),
    "e": (slice(4, 7), slice(1, 2)),
    "f": (slice(1, 4), slice(1, 2)),
    "g": (slice(3, 5), slice(2, 6)),
}
DIGITS = ("abcdef", "bc", "abged", "abgcd", "fgbc", "afgcd", "afgedc", "abc", "abcdefg", "abcdfg")


def digits(rows, seed=0):
    """Return images of digits, 64 numbers each, and which digits they are."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, 10, rows)
    images = random.normal(0.0, 0.3, (rows, 8, 8)).astype("float32")
    for image, label in zip(images, labels, strict=True):
        for bar in DIGITS[label]:
            image[BARS[bar]] += 1.0
    return images.reshape(rows, 64), labels


def shapes(rows, seed=0):
    """Return images of 16 x 16 with a square, a disc or a cross, where it is, and which it is."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, 3, rows)
    masks = np.zeros((rows, 16, 16, 1), "float32")
    down, right = np.mgrid[0:16, 0:16]
    for mask, label in zip(masks, labels, strict=True):
        y, x = random.integers(5, 11, 2)
        away = abs(down - y), abs(right - x)
        here = {
            0: (away[0] <= 3) & (away[1] <= 3),
            1: away[0] ** 2 + away[1] ** 2 <= 14,
            2: ((away[0] <= 1) | (away[1] <= 1)) & (away[0] + away[1] <= 5),
        }[int(label)]
        mask[here] = 1.0
    images = masks + random.normal(0.0, 0.2, masks.shape).astype("float32")
    return images, masks, labels


def frame_of_digits(spark, rows):
    """Return a DataFrame of digits: ``image`` and ``label``."""
    images, labels = digits(rows)
    pairs = zip(images.tolist(), labels.tolist(), strict=True)
    return spark.createDataFrame(pairs, "image array<float>, label long").repartition(4).cache()


def classifier(keras):
    """Return a small network that knows digits, not compiled."""
    return keras.Sequential(
        [
            keras.layers.Input((64,), name="image"),
            keras.layers.Dense(32, "relu"),
            keras.layers.Dense(10, "softmax", name="digit"),
        ]
    )


def residual_network(keras):
    """Return a small residual network for shapes, not compiled."""
    image = keras.layers.Input((16, 16, 1))
    values = keras.layers.Conv2D(8, 3, padding="same", activation="relu")(image)
    for size in (8, 16):
        shortcut = keras.layers.Conv2D(size, 1, strides=2)(values)
        values = keras.layers.Conv2D(size, 3, strides=2, padding="same", activation="relu")(values)
        values = keras.layers.Conv2D(size, 3, padding="same")(values)
        values = keras.layers.Activation("relu")(keras.layers.Add()([values, shortcut]))
    values = keras.layers.GlobalAveragePooling2D()(values)
    return keras.Model(image, keras.layers.Dense(3, "softmax")(values))


def u_net(keras):
    """Return a small U-Net that says of each pixel whether it belongs to a shape, not compiled."""
    image = keras.layers.Input((16, 16, 1))
    first = keras.layers.Conv2D(8, 3, padding="same", activation="relu")(image)
    deep = keras.layers.Conv2D(16, 3, strides=2, padding="same", activation="relu")(first)
    deep = keras.layers.Conv2D(16, 3, padding="same", activation="relu")(deep)
    up = keras.layers.Conv2DTranspose(8, 2, strides=2, activation="relu")(deep)
    both = keras.layers.Concatenate()([first, up])
    return keras.Model(image, keras.layers.Conv2D(1, 3, padding="same", activation="sigmoid")(both))


def trained(spark):
    """Return the weights of a classifier that has learned digits."""
    from gridflow import TensorflowDistributor

    def fit():
        import keras

        model = classifier(keras)
        model.compile(keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy")
        model.fit(*digits(2000), batch_size=32, epochs=3, verbose=0)
        return model.get_weights()

    del spark
    return TensorflowDistributor(1, progress=False).run(fit).value


def accuracy(model, seed=99):
    """Return the part of new digits that a model knows.

    By a call of the model: ``predict`` is something that all nodes of a strategy do together.
    """
    images, labels = digits(500, seed)
    return float((np.asarray(model(images)).argmax(1) == labels).mean())


def session():
    """Return a Spark session on two executors of this machine, with one slot each."""
    from pyspark.sql import SparkSession

    from gridflow import tfrecord

    builder = SparkSession.builder.master("local-cluster[2,1,1024]")
    return tfrecord.configure(builder.config("spark.executor.memory", "900m")).getOrCreate()
