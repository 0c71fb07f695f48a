"""Today: the workers read TFRecord files themselves."""

from __future__ import annotations

import tempfile

import common

from gridflow import TensorflowDistributor, tfrecord


def train(ctx, folder, rows, epochs):
    """Train on the worker's part of the files."""
    import pyarrow as pa
    import tensorflow as tf

    import keras

    schema = pa.schema([("image", pa.list_(pa.float32())), ("label", pa.int64())])
    spec = tfrecord.feature_spec(schema, shapes={"image": [64]})

    def parsed(records):
        cells = tf.io.parse_example(records, spec)
        return cells["image"], cells["label"]

    def mine(context):
        del context
        data = tf.data.Dataset.list_files(f"{folder}/part-*", shuffle=False)
        data = tf.data.TFRecordDataset(data).shard(ctx.num_workers, ctx.rank).repeat()
        return data.shuffle(1000).batch(32).map(parsed)

    with ctx.strategy.scope():
        model = common.classifier(keras)
        model.compile("adam", "sparse_categorical_crossentropy")
    data = ctx.strategy.distribute_datasets_from_function(mine)
    steps = rows // (32 * ctx.num_workers)
    model.fit(data, epochs=epochs, steps_per_epoch=steps, verbose=0)
    return common.accuracy(model)


def main(spark, rows=4000, epochs=4):
    """Return the accuracy on new digits."""
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/digits"
        common.frame_of_digits(spark, rows).write.format("tfrecord").save(path)
        distributor = TensorflowDistributor(2, progress=False)
        return distributor.run(train, path, rows, epochs).value


if __name__ == "__main__":
    print(f"accuracy: {main(common.session()):.3f}")
