"""Train on the TFRecord files of a directory, on as many workers as TF_CONFIG names.

Every worker reads its share of the files; the first one writes logs and the model.
"""

import argparse
import json
import os
from pathlib import Path

import gridflow

gridflow.patch_keras()

import tensorflow as tf  # noqa: E402

import keras  # noqa: E402

COLUMNS = ("dep_delay", "distance", "hour_sin", "hour_cos", "temp", "wind_speed", "visib")
LABEL = "arr_delay"


def read(data, index, count, batch_size):
    """Return this worker's batches, the same number on every worker."""
    spec = {name: tf.io.FixedLenFeature([], tf.float32) for name in (*COLUMNS, LABEL)}

    def parse(rows):
        columns = tf.io.parse_example(rows, spec)
        label = columns.pop(LABEL)
        return tf.stack([columns[name] for name in COLUMNS], axis=1), label

    files = sorted(str(path) for path in Path(data).glob("*.tfrecord*"))
    rows = tf.data.TFRecordDataset(files)
    steps = sum(1 for _ in rows) // (batch_size * count)
    shard = rows.shard(count, index).shuffle(10_000, seed=1).batch(batch_size)
    return shard.map(parse).take(steps).apply(tf.data.experimental.assert_cardinality(steps))


def main():
    """Train, and let the first worker save."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--logs")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=256)
    options = parser.parse_args()
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    task = json.loads(os.environ["TF_CONFIG"])["task"]
    first = task["type"] == "chief" or (task["type"], task["index"]) == ("worker", 0)
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input([len(COLUMNS)]), keras.layers.Dense(32, "relu"), keras.layers.Dense(1)]
        )
        model.compile(keras.optimizers.Adam(1e-3), "mse", metrics=["mae"])
    batches = strategy.distribute_datasets_from_function(
        lambda context: read(
            options.data,
            context.input_pipeline_id,
            context.num_input_pipelines,
            options.batch_size,
        )
    )
    board = [keras.callbacks.TensorBoard(options.logs)] if first and options.logs else []
    model.fit(batches, epochs=options.epochs, callbacks=board, verbose=2 if first else 0)
    if first:
        model.export(options.model)


if __name__ == "__main__":
    main()
