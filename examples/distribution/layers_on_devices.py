"""Model parallelism in one task: the layers of a Keras model lie on different devices.

``python examples/distribution/layers_on_devices.py``: two blocks of layers, each with its variables
on a device of its own; activations go over from one to the other, gradients come back. With
``--gpus=2`` the devices are two GPUs of the task. Without, they are two logical CPUs, which is what
the example is tested with.
"""

from __future__ import annotations

import argparse

from gridflow import LocalLauncher, TensorflowDistributor


def train(ctx, steps):
    """Train on two devices, and again on one; return the losses and where things were."""
    import numpy as np
    import tensorflow as tf

    if not ctx.gpus:
        (cpu,) = tf.config.list_physical_devices("CPU")
        parts = [tf.config.LogicalDeviceConfiguration()] * 2
        tf.config.set_logical_device_configuration(cpu, parts)
    devices = [each.name for each in tf.config.list_logical_devices("GPU" if ctx.gpus else "CPU")]

    import keras

    def fit(first, second):
        keras.utils.set_random_seed(0)
        with tf.device(first):
            lower = keras.Sequential([keras.Input((8,)), keras.layers.Dense(32, "relu")])
        with tf.device(second):
            upper = keras.Sequential([keras.Input((32,)), keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(0.01)
        weights = lower.trainable_variables + upper.trainable_variables

        def predict(x):
            with tf.device(first):
                hidden = lower(x)
            with tf.device(second):
                return hidden, upper(hidden)

        @tf.function
        def step(x, y):
            with tf.GradientTape() as tape:
                _, output = predict(x)
                with tf.device(second):
                    loss = tf.reduce_mean((output - y) ** 2)
            optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
            return loss

        rng = np.random.default_rng(0)
        losses = []
        for _ in range(steps):
            x = rng.normal(size=(64, 8)).astype("float32")
            y = np.abs(x).sum(axis=1, keepdims=True)
            losses.append(float(step(x, y)))
        hidden, output = predict(x)
        where = {"hidden": hidden.device, "output": output.device}
        where |= {f"weights {n}": v.value.device for n, v in enumerate(weights)}
        return losses, where

    apart, where = fit(*devices[:2])
    together, _ = fit(devices[0], devices[0])
    return apart, together, where


def main():
    """Run it on this machine."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpus", type=int, default=0)
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    distributor = TensorflowDistributor(gpus=options.gpus, launcher=LocalLauncher())
    apart, together, where = distributor.run(train, options.steps).value
    print(f"loss: {apart[0]:.3f} at first, {apart[-1]:.3f} at last")
    difference = max(abs(a - b) for a, b in zip(apart, together, strict=True))
    print(f"largest difference from one device: {difference:.2g}")
    for name, device in where.items():
        print(f"{name}: {device}")


if __name__ == "__main__":
    main()
