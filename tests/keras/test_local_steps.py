"""Workers that train on their own for some steps and then average their models."""

from __future__ import annotations

import numpy as np
import pytest

from gridflow import (
    CommunicationOptions,
    Distribution,
    InvalidArgument,
    LocalLauncher,
    LocalSteps,
    TensorflowDistributor,
    TrainingFailed,
)

ROWS = {"x": np.random.default_rng(0).normal(size=(160, 4)).astype("float32")}
ROWS["y"] = ROWS["x"] @ np.array([1.0, -2.0, 3.0, 0.5], "float32")
BATCH, EPOCHS, WORKERS = 8, 3, 2


def distributor(local_steps=None, communication=None, **options):
    return TensorflowDistributor(
        WORKERS,
        launcher=LocalLauncher(),
        logs="none",
        progress=False,
        distribution=Distribution(communication=communication, local_steps=local_steps),
        **options,
    )


def make_model(keras, optimizer):
    keras.utils.set_random_seed(1)
    layers = [keras.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile(optimizer, "mse", metrics=["mae"])
    return model


def train(ctx, optimizer, *, fails_at=None):
    """Train; return this rank's batches, weights, logs and the sizes of what was exchanged."""
    import os

    import keras
    from gridflow._collectives.host import HostGroup

    exchanged = []
    original = HostGroup._sum

    def counted(self, values):
        if values.dtype.kind == "f":
            exchanged.append(values.length)
        return original(self, values)

    HostGroup._sum = counted
    with ctx.strategy.scope():
        model = make_model(keras, optimizer)
    data = ctx.dataset("rows", batch_size=BATCH, features="x", label="y", shuffle=False)
    own = ctx.strategy.experimental_local_results
    batches = [[own(part)[0].numpy() for part in batch] for batch in data]

    class Failing(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if ctx.generation == 0 and self.model.optimizer.iterations == fails_at:
                os._exit(3)

    callbacks = [*ctx.callbacks(), *([Failing()] if fails_at and ctx.rank else [])]
    exchanged.clear()
    logs = model.fit(data, epochs=EPOCHS, verbose=0, callbacks=callbacks).history
    sizes = list(exchanged)
    scores = model.evaluate(data, verbose=0, return_dict=True)
    weights = model.get_weights()
    state = [v.numpy() for v in model.optimizer.variables if v.shape]
    model.train_on_batch(*batches[0])  # isn't averaged yet
    return {
        "batches": batches,
        "weights": weights,
        "optimizer": state,
        "again": [model.evaluate(data, verbose=0) for _ in range(2)],
        "logs": logs,
        "scores": scores,
        "exchanged": sizes,
        "generation": ctx.generation,
    }


def simulate(ctx, ranks, optimizer, options):
    """Train a model for each rank in one process, and average them; return the weights."""
    import keras

    models = [make_model(keras, optimizer) for _ in ranks]
    anchor, velocity, step = models[0].get_weights(), None, 0
    for _ in range(EPOCHS):
        for number in range(len(ranks[0])):
            for model, batches in zip(models, ranks, strict=True):
                model.train_on_batch(*batches[number])
            step += 1
            if step % options.sync_every and number + 1 < len(ranks[0]):
                continue
            means = [
                np.mean(each, axis=0)
                for each in zip(*(model.get_weights() for model in models), strict=True)
            ]
            moves = [old - new for old, new in zip(anchor, means, strict=True)]
            velocity = velocity or [np.zeros_like(each) for each in moves]
            momentum = options.outer_momentum
            velocity = [momentum * v + move for v, move in zip(velocity, moves, strict=True)]
            anchor = [
                old - options.outer_learning_rate * (move + momentum * v)
                for old, move, v in zip(anchor, moves, velocity, strict=True)
            ]
            states = [model.optimizer.variables for model in models]
            for model in models:
                model.set_weights(anchor)
            for variables in zip(*states, strict=True):
                if variables[0].shape:
                    mean = np.mean([each.numpy() for each in variables], axis=0)
                    for each in variables:
                        each.assign(mean)
    return anchor


def alone(function, *given):
    return TensorflowDistributor(
        1, "none", launcher=LocalLauncher(), logs="none", progress=False
    ).run(function, *given)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("optimizer", "options"),
    [
        ("adam", LocalSteps(sync_every=4)),
        ("sgd", LocalSteps(sync_every=3, outer_learning_rate=0.7, outer_momentum=0.9)),
    ],
    ids=["averages", "outer momentum"],
)
def test_the_weights_are_those_of_models_that_train_alone_and_are_averaged(
    optimizer, options, no_leaks
):
    ranks = distributor(options).run(train, optimizer, data={"rows": ROWS}).values
    expected = alone(simulate, [each["batches"] for each in ranks], optimizer, options).value
    for each in ranks:
        for got, wanted in zip(each["weights"], expected, strict=True):
            np.testing.assert_allclose(got, wanted, atol=2e-6)
    first, second = ranks
    for name in ("weights", "optimizer"):
        for one, other in zip(first[name], second[name], strict=True):
            np.testing.assert_array_equal(one, other)
    assert first["logs"] == second["logs"]
    assert first["scores"] == second["scores"]
    assert first["again"][0] == first["again"][1]
    # Ten steps in an epoch; there is an average at its end, too.
    averages = {n for n in range(1, 10 * EPOCHS + 1) if not n % options.sync_every or not n % 10}
    # With the notes of both ranks, a number for each byte.
    weights = sum(each.size for each in first["weights"]) + 2 * 13
    assert sum(size >= weights for size in first["exchanged"]) == len(averages)


@pytest.mark.slow
def test_an_average_after_each_step_of_sgd_is_synchronous_training(no_leaks):
    local = distributor(LocalSteps(sync_every=1)).run(train, "sgd", data={"rows": ROWS}).value
    together = distributor().run(train, "sgd", data={"rows": ROWS}).value
    for got, wanted in zip(local["weights"], together["weights"], strict=True):
        np.testing.assert_allclose(got, wanted, atol=1e-6)
    for name, values in together["logs"].items():
        np.testing.assert_allclose(local["logs"][name], values, rtol=1e-5)


@pytest.mark.slow
def test_it_is_the_same_through_tensorflows_own_operations(no_leaks):
    options = LocalSteps(sync_every=4)
    ours = distributor(options).run(train, "sgd", data={"rows": ROWS}).value
    ring = distributor(options, CommunicationOptions("ring"))
    theirs = ring.run(train, "sgd", data={"rows": ROWS}).value
    for got, wanted in zip(theirs["weights"], ours["weights"], strict=True):
        np.testing.assert_allclose(got, wanted, atol=1e-6)


@pytest.mark.slow
def test_a_killed_worker_changes_nothing(no_leaks):
    options = LocalSteps(sync_every=4, outer_learning_rate=0.7, outer_momentum=0.5)
    settings = {"checkpoint_every": 3, "max_restarts": 1}
    whole = distributor(options, **settings).run(train, "adam", data={"rows": ROWS})
    resumed = distributor(options, **settings).run(train, "adam", fails_at=17, data={"rows": ROWS})
    assert (whole.value["generation"], resumed.value["generation"]) == (0, 1)
    for name in ("weights", "optimizer"):
        for got, wanted in zip(resumed.value[name], whole.value[name], strict=True):
            np.testing.assert_allclose(got, wanted, atol=1e-6)


def own_steps(ctx):
    import tensorflow as tf

    import keras

    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1)

        def call(self, x):
            return self.dense(x)

        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self(x) - y) ** 2)
            weights = self.trainable_variables
            self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
            return {"rank": tf.constant(float(ctx.rank))}

    with ctx.strategy.scope():
        model = Own()
        model.compile("sgd")
    data = ctx.dataset("rows", batch_size=BATCH, features="x", label="y")
    return model.fit(data, epochs=1, verbose=0).history, model.get_weights()


@pytest.mark.slow
def test_a_step_of_ones_own(no_leaks):
    options = LocalSteps(sync_every=4)
    (logs, first), (_, second) = distributor(options).run(own_steps, data={"rows": ROWS}).values
    assert logs == {"rank": [0.5]}
    np.testing.assert_array_equal(first[0], second[0])


def test_what_becomes_trainable_starts_without_momentum():
    import keras
    from gridflow._keras.patches.hooks.local_steps import Averages

    model = make_model(keras, "sgd")
    options = LocalSteps(sync_every=1, outer_learning_rate=1.0, outer_momentum=0.5)
    averages = Averages(model, options)
    first, second = (layer.bias for layer in model.layers)

    def step(_):
        for weight in model.trainable_variables:
            weight.assign_sub(keras.ops.ones(weight.shape))

    model.layers[0].trainable = False
    averages.make_step(step, None)
    model.layers[0].trainable = True
    averages.make_step(step, None)
    np.testing.assert_allclose(first, [-1.5] * 8)  # a step, and half of its velocity
    np.testing.assert_allclose(second, [-1.5 - 1.75])


def unequal(ctx):
    import keras

    with ctx.strategy.scope():
        model = make_model(keras, "sgd")
    x = np.zeros((8, 4), "float32")
    for _ in range(4 + ctx.rank):
        model.train_on_batch(x, x[:, 0])
    model.evaluate(x, x[:, 0], verbose=0)


def legacy(ctx):
    import tf_keras

    with ctx.strategy.scope():
        model = make_model(tf_keras, "sgd")
    model.fit(ctx.dataset("rows", batch_size=8, features="x", label="y"), verbose=0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (unequal, "different (numbers of steps|collective operations)"),
        (legacy, "is for Keras 3, and this is a tf_keras model"),
    ],
)
def test_what_can_not_be_averaged_is_refused(function, reason, no_leaks):
    with pytest.raises(TrainingFailed, match=reason):
        distributor(LocalSteps(sync_every=4)).run(function, data={"rows": ROWS})


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"strategy": "none"}, "needs strategy='multi_worker_mirrored'"),
        ({"backend": "torch"}, "backend='torch' has its own"),
    ],
)
def test_what_has_no_steps_together_is_refused_at_the_call(options, reason):
    with pytest.raises(InvalidArgument, match=rf"Distribution\(local_steps=\).*{reason}"):
        distributor(LocalSteps(sync_every=4), **options)
