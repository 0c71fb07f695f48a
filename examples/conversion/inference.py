"""Today: the model as a column function."""

from __future__ import annotations

import common

from gridflow import TensorflowDistributor


def load(weights):
    """Return the model."""
    import keras

    model = common.classifier(keras)
    model.set_weights(weights)
    return model


def main(spark, weights):
    """Return the accuracy on new digits."""
    images, labels = common.digits(500, 99)
    new = zip(images.tolist(), labels.tolist(), strict=True)
    frame = spark.createDataFrame(new, "image array<float>, label int")
    model = TensorflowDistributor(1, progress=False).run(load, weights).model
    answers = frame.withColumn("digit", model.predict_udf()("image")).collect()
    return sum(row.digit.index(max(row.digit)) == row.label for row in answers) / len(answers)


if __name__ == "__main__":
    session = common.session()
    print(f"accuracy: {main(session, common.trained(session)):.3f}")
