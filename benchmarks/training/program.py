"""The training that is timed: the same code under gridflow and started by hand."""

from __future__ import annotations


def timed_fit(steps, strategy=None, batch_size=256):
    """Train on made-up rows; return the moment of the first step and the steps per second after it.

    Without a strategy it makes one from TF_CONFIG, as a script started by hand does.
    """
    import time

    import numpy as np
    import tensorflow as tf

    from gridflow._keras.patches import registry

    registry.apply()
    import keras

    strategy = strategy or tf.distribute.MultiWorkerMirroredStrategy()
    rng = np.random.default_rng(0)
    x = rng.normal(size=(8 * batch_size, 784)).astype("float32")
    y = rng.integers(0, 10, 8 * batch_size)

    def rows(_):
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
        made = tf.data.Dataset.from_tensor_slices((x, y)).batch(batch_size, drop_remainder=True)
        return made.repeat().with_options(options)

    class Clock(keras.callbacks.Callback):
        first = last = warm = 0.0

        def on_train_batch_end(self, batch, logs=None):
            now = time.time()
            if batch == 0:
                self.first = now
            if batch == steps // 5:  # by then caches and threads are warm
                self.warm = now
            self.last = now

    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((784,)),
                keras.layers.Dense(512, activation="relu"),
                keras.layers.Dense(512, activation="relu"),
                keras.layers.Dense(10),
            ]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(), loss)
    clock = Clock()
    model.fit(
        strategy.distribute_datasets_from_function(rows),
        steps_per_epoch=steps,
        epochs=1,
        verbose=0,
        callbacks=[clock],
    )
    per_second = (steps - 1 - steps // 5) / (clock.last - clock.warm)
    return {"first": clock.first, "steps_per_second": per_second}


if __name__ == "__main__":
    import json
    import sys

    print(json.dumps(timed_fit(int(sys.argv[1]))))
