"""Today: checkpoints by ``ctx.callbacks()``, each looked at by an evaluator."""

from __future__ import annotations

import common

from gridflow import Role, TensorflowDistributor


def train(ctx, rows):
    """Train, or evaluate each checkpoint."""
    import tensorflow as tf

    import keras

    model = common.classifier(keras)
    model.compile(
        keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy", metrics=["accuracy"]
    )
    if ctx.is_evaluator:
        data = tf.data.Dataset.from_tensor_slices(common.digits(500, 99)).batch(100)
        ctx.evaluate_checkpoints(model, data)
        return
    images, labels = common.digits(rows)
    model.fit(images, labels, batch_size=32, epochs=2, verbose=0, callbacks=ctx.callbacks())


def main(spark, rows=4000):
    """Return the accuracy of each checkpoint on new digits."""
    del spark
    distributor = TensorflowDistributor(
        roles=[Role("worker", 1), Role("evaluator")], strategy="none", progress=False
    )
    return [found["accuracy"] for found in distributor.run(train, rows).evaluation]


if __name__ == "__main__":
    print(f"accuracy: {main(common.session())}")
