"""Today: rows are pushed into a job that runs, as long as there are some."""

from __future__ import annotations

import common

from gridflow import TensorflowDistributor


def train(ctx):
    """Train on what comes."""
    import keras

    with ctx.strategy.scope():
        model = common.classifier(keras)
        model.compile("adam", "sparse_categorical_crossentropy")
    model.fit(ctx.stream(32, features="image", label="label"), verbose=0)
    return common.accuracy(model)


def main(spark, times=3):
    """Return the accuracy on new digits."""
    frame = common.frame_of_digits(spark, 2000)
    with TensorflowDistributor(1, progress=False).start(train) as job:
        for _ in range(times):  # or writeStream.foreachBatch(lambda rows, _: job.feed(rows))
            job.feed(frame)
        job.stop()
        return job.result().value


if __name__ == "__main__":
    print(f"accuracy: {main(common.session()):.3f}")
