"""Today: the rows of a DataFrame, a Keras model on two workers."""

from __future__ import annotations

import common

from gridflow import TensorflowDistributor


def train(ctx, epochs):
    """Train on the rows."""
    import keras

    with ctx.strategy.scope():
        model = common.classifier(keras)
        model.compile("adam", "sparse_categorical_crossentropy")
    model.fit(ctx.dataset(batch_size=32, features="image", label="label"), epochs=epochs, verbose=0)
    return common.accuracy(model)


def main(spark, rows=4000, epochs=4):
    """Return the accuracy on new digits."""
    frame = common.frame_of_digits(spark, rows)
    return TensorflowDistributor(2, progress=False).run(train, epochs, data=frame).value


if __name__ == "__main__":
    print(f"accuracy: {main(common.session()):.3f}")
