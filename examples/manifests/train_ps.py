"""The chief of an asynchronous training: workers and parameter servers run standard servers."""

import argparse
from pathlib import Path

import tensorflow as tf

import keras

COLUMNS = ("dep_delay", "distance", "hour_sin", "hour_cos", "temp", "wind_speed", "visib")
LABEL = "arr_delay"


def read(pattern, batch_size):
    """Return batches without end; this runs inside the workers' servers."""
    spec = {name: tf.io.FixedLenFeature([], tf.float32) for name in (*COLUMNS, LABEL)}

    def parse(rows):
        columns = tf.io.parse_example(rows, spec)
        label = columns.pop(LABEL)
        return tf.stack([columns[name] for name in COLUMNS], axis=1), label

    files = tf.data.Dataset.list_files(pattern, shuffle=True)
    rows = files.interleave(tf.data.TFRecordDataset).repeat().shuffle(10_000)
    return rows.batch(batch_size, drop_remainder=True).map(parse)


def main():
    """Hand out the steps, and save."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch-size", type=int, default=256)
    options = parser.parse_args()
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input([len(COLUMNS)]), keras.layers.Dense(32, "relu"), keras.layers.Dense(1)]
        )
        optimizer = keras.optimizers.Adam(1e-3)
        optimizer.build(model.trainable_variables)

    @tf.function
    def step(iterator):
        def one(x, y):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x, training=True)[:, 0] - y) ** 2)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        return strategy.run(one, args=next(iterator))

    pattern = str(Path(options.data) / "*.tfrecord*")
    batches = coordinator.create_per_worker_dataset(lambda: read(pattern, options.batch_size))
    iterator = iter(batches)
    for number in range(options.steps):
        loss = coordinator.schedule(step, args=(iterator,))
        if (number + 1) % 100 == 0:
            coordinator.join()
            print(f"step {number + 1}: loss {loss.fetch():.3f}", flush=True)
    coordinator.join()
    model.export(options.model)


if __name__ == "__main__":
    main()
