"""Today: a residual network knows shapes."""

from __future__ import annotations

import common

from gridflow import TensorflowDistributor


def train(ctx, epochs):
    """Train on the rows."""
    import keras

    with ctx.strategy.scope():
        model = common.residual_network(keras)
        model.compile(
            keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy", metrics=["accuracy"]
        )
    model.fit(ctx.dataset(batch_size=32, features="x", label="y"), epochs=epochs, verbose=0)
    new = ctx.dataset("new", batch_size=32, features="x", label="y")
    return model.evaluate(new, verbose=0)[1]


def main(spark, rows=1024, epochs=6):
    """Return the accuracy on new images."""
    del spark
    data = {}
    for name, count, seed in (("train", rows, 0), ("new", 300, 99)):
        images, _masks, labels = common.shapes(count, seed)
        data[name] = {"x": images, "y": labels}
    return TensorflowDistributor(2, progress=False).run(train, epochs, data=data).value


if __name__ == "__main__":
    print(f"accuracy: {main(common.session()):.3f}")
