"""Today: fit on a DataFrame, predict by a column function."""

from __future__ import annotations

import common

from gridflow import TensorflowDistributor


def fit(ctx, epochs):
    """Train on the rows, and return the model."""
    import keras

    with ctx.strategy.scope():
        model = common.classifier(keras)
        model.compile("adam", "sparse_categorical_crossentropy")
    rows = ctx.dataset(batch_size=32, features="image", label="label")
    model.fit(rows, epochs=epochs, verbose=0)
    return model


def main(spark, rows=4000, epochs=4):
    """Return the accuracy on new digits."""
    images, labels = common.digits(500, 99)
    new = zip(images.tolist(), labels.tolist(), strict=True)
    frame = common.frame_of_digits(spark, rows)
    model = TensorflowDistributor(1, progress=False).run(fit, epochs, data=frame).model
    answers = (
        spark.createDataFrame(new, "image array<float>, label int")
        .withColumn("digit", model.predict_udf()("image"))
        .collect()
    )
    return sum(row.digit.index(max(row.digit)) == row.label for row in answers) / len(answers)


if __name__ == "__main__":
    print(f"accuracy: {main(common.session()):.3f}")
