"""ParameterServerStrategy with both flavours of Keras: what fit promises, and what it learns."""

from __future__ import annotations

import contextlib
import importlib

import numpy as np
import pytest

from gridflow import Distribution, FixedShardsPartitioner

ROWS, BATCH, EPOCHS = 2048, 32, 5
TRAINED = 1792


def rows():
    """Return rows that a small model learns something from, uneven in number."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(ROWS, 4)).astype("float32")
    kind = rng.integers(0, 50, ROWS).astype("int64")
    noise = rng.normal(size=ROWS)  # what no training takes away
    y = (x @ [1.0, -2.0, 0.5, 3.0] + np.sin(kind) + noise).astype("float32")
    return {"x": x, "kind": kind, "y": y}


def data():
    """Return what is trained and what is validated."""
    every = rows()
    return {
        "train": {name: values[:TRAINED] for name, values in every.items()},
        "validation": {name: values[TRAINED:] for name, values in every.items()},
    }


def build(keras, steps):
    """Return a compiled model with an embedding and a learning rate that falls."""
    keras.utils.set_random_seed(3)
    x = keras.layers.Input((4,), name="x")
    kind = keras.layers.Input((), dtype="int64", name="kind")
    hidden = keras.layers.Dense(16, activation="tanh")(
        keras.layers.Concatenate()([x, keras.layers.Embedding(50, 8, name="table")(kind)])
    )
    model = keras.Model({"x": x, "kind": kind}, keras.layers.Dense(1)(hidden))
    rate = keras.optimizers.schedules.PolynomialDecay(0.02, steps, 0.002)
    model.compile(keras.optimizers.Adam(rate), "mse", metrics=["mae"])
    return model


COLUMNS = {"batch_size": BATCH, "features": ["x", "kind"], "label": "y"}
STEPS = EPOCHS * TRAINED // BATCH


def train(ctx, flavour):
    """Train by ctx.fit; return what there is to look at."""
    keras = importlib.import_module(flavour)

    class Seen(keras.callbacks.Callback):
        steps, epochs, losses = 0, [], []

        def on_train_batch_end(self, batch, logs=None):
            self.steps += 1
            self.losses.append(logs["loss"])

        def on_epoch_end(self, epoch, logs=None):
            self.epochs.append((epoch, sorted(logs)))

    with ctx.strategy.scope():
        model = build(keras, STEPS)
    seen = Seen()
    history = ctx.fit(
        model,
        "train",
        validation="validation",
        epochs=EPOCHS,
        callbacks=[*ctx.callbacks(), seen],
        **COLUMNS,
    )
    rate = model.optimizer.learning_rate
    found = {
        "history": history.history,
        "iterations": int(model.optimizer.iterations.numpy()),
        "rate": float(rate.numpy() if hasattr(rate, "numpy") else rate),
        "seen": (seen.steps, seen.epochs),
        "finite": bool(np.isfinite(seen.losses).all()),
        "evaluated": ctx.evaluate(model, "validation", **COLUMNS),
        "trained": ctx.evaluate(model, "train", **COLUMNS)["loss"],
        "devices": [variable.device for variable in _natives(model, flavour)],
        "shapes": [value.shape for value in model.get_weights()],
        "saved": _saved(keras, model),
    }
    print("WEIGHTS", len(found["shapes"]), flush=True)
    return found


def _saved(keras, model):
    """Return the largest difference of a weight after saving and loading."""
    model.save("model.keras")
    loaded = keras.models.load_model("model.keras", compile=False)
    weights = zip(loaded.get_weights(), model.get_weights(), strict=False)
    return max(float(np.abs(ours - theirs).max()) for ours, theirs in weights)


def _natives(model, flavour):
    """Return TensorFlow's own variables behind the weights."""
    from gridflow import trainable_variables

    if flavour == "keras":
        return [variable.value for variable in trainable_variables(model)]
    return model.trainable_weights


def synchronous(flavour):
    """Return the losses of a process that trains on the same rows, alone, for as many steps."""

    def alone(ctx):
        keras = importlib.import_module(flavour)
        model = build(keras, STEPS)
        train, validation = (ctx.dataset(name, **COLUMNS) for name in ("train", "validation"))
        model.fit(train, epochs=EPOCHS, verbose=0)
        return [model.evaluate(each, verbose=0)[0] for each in (train, validation)]

    return alone


@pytest.mark.parametrize("flavour", ["keras", "tf_keras"])
def test_training_is_as_good_as_synchronous_and_counts_every_step(distribute, flavour):
    partitioner = FixedShardsPartitioner(2) if flavour == "keras" else None
    options = {"distribution": Distribution(variable_partitioner=partitioner)}
    result = distribute("parameter_server", ps=2, worker=2, options=options).run(
        train, flavour, data=data()
    )
    found = result.value
    assert found["iterations"] == STEPS
    # Keras tells the rate of the next step. tf_keras tells that of the last, or, where two workers
    # make theirs at once, of the one before.
    late = 2 if flavour == "tf_keras" else 0
    one_step = (0.02 - 0.002) / STEPS
    assert found["rate"] == pytest.approx(0.002, abs=(late + 0.01) * one_step)
    assert found["seen"] == (
        STEPS,
        [(epoch, ["loss", "mae", "val_loss", "val_mae"]) for epoch in range(EPOCHS)],
    )
    assert found["finite"]
    assert {"/job:ps/replica:0/task:0", "/job:ps/replica:0/task:1"} == {
        device.partition("/device")[0] for device in found["devices"]
    }
    assert found["evaluated"]["mae"] == pytest.approx(found["history"]["val_mae"][-1], rel=1e-4)
    assert result.history == found["history"]
    assert (50, 8) in found["shapes"]
    assert found["saved"] == 0
    alone = distribute("none", worker=1).run(synchronous(flavour), data=data()).value
    # Over all rows: an epoch's own loss is of the rows that happened to come in it.
    losses = [found["trained"], found["evaluated"]["loss"]]
    assert losses == pytest.approx(alone, rel=0.05)


def loop(ctx, path):
    """Train by a loop over the coordinator, and by fit from a file; count the steps."""
    import tensorflow as tf

    import keras
    from gridflow import trainable_variables

    with ctx.strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(0.01), "mse")
        weights = trainable_variables(model)
        model.optimizer.build(weights)

    @tf.function
    def step(iterator):
        def one(x, y):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x)[:, 0] - y) ** 2)
            gradients = tape.gradient(loss, [weight.value for weight in weights])
            model.optimizer.apply_gradients(zip(gradients, weights, strict=True))
            return loss

        return ctx.strategy.run(one, args=next(iterator))

    batches = ctx.dataset("train", batch_size=16, features="x", label="y")
    iterator = iter(ctx.coordinator.create_per_worker_dataset(batches))
    losses = [ctx.coordinator.schedule(step, args=(iterator,)) for _ in range(200)]
    ctx.coordinator.join()
    found = {"own": int(model.optimizer.iterations.numpy()), "first": losses[0].fetch()}

    def numbers():
        lines = tf.data.TextLineDataset(path).repeat().shuffle(100)
        columns = lines.batch(8).map(lambda text: tf.strings.to_number(tf.strings.split(text, ",")))
        return columns.map(lambda rows: (rows.to_tensor(shape=(8, 5))[:, :4], rows[:, 4:]))

    history = ctx.fit(
        model, numbers, epochs=2, steps_per_epoch=30, validation=numbers, validation_steps=5
    )
    found["fit"] = int(model.optimizer.iterations.numpy())
    found["logs"] = sorted(history.history)
    found["epochs"] = len(history.history["loss"])
    return found


def test_loops_of_ones_own_and_files_work_and_no_step_is_lost(distribute, tmp_path):
    every = rows()
    table = np.column_stack([every["x"], every["y"]])[:200]
    np.savetxt(tmp_path / "rows.csv", table, delimiter=",", fmt="%.5f")
    result = distribute("parameter_server", ps=1, worker=2).run(
        loop, str(tmp_path / "rows.csv"), data=data()
    )
    assert (result.value["own"], result.value["fit"]) == (200, 260)
    assert (result.value["epochs"], result.value["logs"]) == (2, ["loss", "val_loss"])


def misuse(ctx):
    """Use ctx.fit in ways that it refuses; return what it says."""
    import tensorflow as tf

    import keras
    from gridflow import GridflowError

    class Own(keras.Model):
        def train_step(self, data):
            return {}

    outside = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    outside.compile("sgd", "mse")
    with ctx.strategy.scope():
        inside = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        inside.compile("sgd", "mse")
        own = Own(inside.inputs, inside.outputs)
        own.compile("sgd", "mse")
        adds_up = keras.Model(inside.inputs, inside.outputs)
        adds_up.compile(keras.optimizers.SGD(gradient_accumulation_steps=2), "mse")
    columns = {"batch_size": 8, "features": "x", "label": "y"}
    batches = ctx.dataset("train", **columns)
    slices = tf.data.Dataset.from_tensor_slices((np.zeros((9, 4)), np.zeros(9))).batch(3)
    of_python = tf.data.Dataset.from_generator(
        lambda: iter([(np.zeros((3, 4)), np.zeros(3))]), output_signature=slices.element_spec
    )
    attempts = {
        "outside": lambda: ctx.fit(outside, batches),
        "outside, of Keras": lambda: outside.fit(slices),
        "Python": lambda: ctx.fit(inside, of_python, steps_per_epoch=1),
        "Python in a function": lambda: inside.fit(lambda: of_python, steps_per_epoch=1),
        "arrays": lambda: inside.fit(np.zeros((9, 4)), np.zeros(9)),
        "steps": lambda: ctx.fit(inside, lambda: batches()),
        "array": lambda: ctx.fit(inside, np.zeros(3)),
        "own": lambda: ctx.fit(own, batches),
        "adds up": lambda: ctx.fit(adds_up, batches),
        "column": lambda: ctx.dataset("train", batch_size=8, features="xx"),
        "server": lambda: ctx.server(),
        "loop": lambda: ctx.loop(inside),
    }
    said = {}
    for name, attempt in attempts.items():
        try:
            attempt()
        except GridflowError as error:
            said[name] = str(error)
    return said


def test_what_fit_cant_do_is_refused_with_a_way_out(distribute):
    said = distribute("parameter_server", ps=1, worker=1).run(misuse, data=data()).value
    assert "with ctx.strategy.scope()" in said["outside"]
    assert "with ctx.alone()" in said["outside, of Keras"]
    assert "from_generator" in said["Python"]
    assert "from_generator" in said["Python in a function"]
    assert "doesn't support y with strategy" in said["arrays"]
    assert "steps_per_epoch is required" in said["steps"]
    assert "got ndarray" in said["array"]
    assert "overrides train_step" in said["own"]
    assert "use a larger batch_size" in said["adds up"]
    assert "Did you mean 'x'" in said["column"]
    assert "strategy='server'" in said["server"]
    assert "ctx.loop() isn't available with strategy" in said["loop"]


def one_step_beside_keras(ctx, class_weight):
    """Return losses and weights after a step on all rows: of ctx.fit, and of Keras by itself."""
    import keras

    class Costly(keras.layers.Layer):
        def call(self, x):
            self.add_loss(keras.ops.mean(keras.ops.square(x)))
            return x

    def make():
        l2 = keras.regularizers.L2
        model = keras.Sequential(
            [
                keras.Input((4,)),
                keras.layers.Dense(
                    8, kernel_initializer="ones", kernel_regularizer=l2(0.1), activation="tanh"
                ),
                keras.layers.Dense(
                    3, "softmax", kernel_initializer="ones", activity_regularizer=l2(0.01)
                ),
                Costly(),
            ]
        )
        model.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy")
        return model

    x = np.random.default_rng(0).normal(size=(24, 4)).astype("float32")
    kind = (np.arange(24) % 3).astype("int64")
    plain = make()
    with ctx.alone():
        expected = plain.train_on_batch(x, kind, class_weight=class_weight)
    with ctx.strategy.scope():
        model = make()
    columns = {"batch_size": 24, "features": "x", "label": "kind"}
    history = ctx.fit(model, initial_epoch=1, epochs=2, class_weight=class_weight, **columns)
    assert history.epoch == [1]
    weights = [model.get_weights(), plain.get_weights()]
    return history.history["loss"][0], float(expected), weights


@pytest.mark.parametrize("class_weight", [None, {0: 1.0, 1: 3.0, 2: 0.5}])
@pytest.mark.parametrize("servers", [1, 2])
def test_losses_of_layers_weights_and_classes_count_as_in_keras(distribute, servers, class_weight):
    """With two servers the kernels are cut into shards."""
    x = np.random.default_rng(0).normal(size=(24, 4)).astype("float32")
    rows = {"train": {"x": x, "kind": (np.arange(24) % 3).astype("int64")}}
    partitioner = FixedShardsPartitioner(2) if servers > 1 else None
    distributor = distribute(
        "parameter_server",
        ps=servers,
        worker=1,
        options={"distribution": Distribution(variable_partitioner=partitioner)},
    )
    ours, keras_own, (weights, expected) = distributor.run(
        one_step_beside_keras, class_weight, data=rows
    ).value
    assert ours == pytest.approx(keras_own, rel=1e-5)
    for one, other in zip(weights, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def programs_of_others(ctx, folder):
    """Do what programs for plain Keras and TensorFlow do; return what came of it."""
    import tensorflow as tf

    import keras

    x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
    y = x[:, :1].copy()

    def made(scope):
        keras.utils.set_random_seed(1)
        with scope:
            model = keras.Sequential(
                [keras.Input((4,)), keras.layers.Dense(8), keras.layers.Dense(1)]
            )
            model.compile(keras.optimizers.SGD(0.05), "mse", metrics=["mae"])
        return model

    made_before = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(10).batch(8)
    tensors = tf.constant(x), tf.constant(y)

    def using_values():
        size = int(tf.constant(8).numpy())
        return tf.data.Dataset.from_tensor_slices((x, y)).batch(size)

    model = made(ctx.strategy.scope())
    plain = made(contextlib.nullcontext())
    plain.set_weights(model.get_weights())  # shards draw numbers of their own
    found = {"predicted": np.abs(model.predict(x, verbose=0) - plain.predict(x, verbose=0)).max()}
    of_ours, of_keras = (each.evaluate(x, y, verbose=0) for each in (model, plain))
    found["evaluated"] = np.abs(np.subtract(of_ours, of_keras)).max()
    found["data"] = {}
    for name, data in {
        "a dataset": made_before,
        "made before": lambda: made_before,
        "of one made before": lambda: made_before.unbatch().batch(4),
        "of tensors": lambda: tf.data.Dataset.from_tensor_slices(tensors).batch(8),
        "of values": using_values,
    }.items():
        before = int(model.optimizer.iterations.numpy())
        history = model.fit(
            data,
            epochs=2,
            steps_per_epoch=9,  # more than there are batches
            validation_data=made_before,
            validation_steps=3,
            verbose=0,
        )
        found["data"][name] = (
            int(model.optimizer.iterations.numpy()) - before,
            sorted(history.history),
            history.history["loss"][-1] < 2,
        )
    found["on workers"] = model.evaluate(lambda: made_before, steps=4, return_dict=True)["loss"]
    with ctx.alone():
        found["alone"] = plain.fit(x, y, verbose=0).history["loss"][0]

    weights = model.get_weights()
    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    path = tf.train.CheckpointManager(checkpoint, folder, max_to_keep=1).save()
    model.set_weights([0 * each for each in weights])
    checkpoint.restore(path)
    pairs = zip(model.get_weights(), weights, strict=True)
    found["restored"] = max(np.abs(one - other).max() for one, other in pairs)
    return found


def test_programs_for_plain_keras_run_as_they_are(distribute, tmp_path):
    options = {"distribution": Distribution(variable_partitioner=FixedShardsPartitioner(2))}
    found = (
        distribute("parameter_server", ps=2, worker=2, options=options)
        .run(programs_of_others, str(tmp_path / "checkpoints"))
        .value
    )
    names = ["loss", "mae", "val_loss", "val_mae"]
    assert found["predicted"] < 1e-6
    assert found["evaluated"] < 1e-6
    assert found["data"] == dict.fromkeys(found["data"], (18, names, True))
    assert len(found["data"]) == 5
    assert found["on workers"] < 2
    assert found["alone"] > 0
    assert found["restored"] == 0


def one_step_on_words(ctx, flavour):
    """Return loss and weights after a step on all words: of ctx.fit, and of Keras by itself."""
    keras = importlib.import_module(flavour)
    words, numbers = np.array(list("abcd") * 6), np.arange(24.0).astype("float32")

    def made(scope):
        with scope:
            word = keras.layers.Input((), dtype="string")
            place = keras.layers.StringLookup(vocabulary=["a", "b", "c"])(word)
            table = keras.layers.Embedding(4, 2, embeddings_initializer="ones")(place)
            model = keras.Model(word, keras.layers.Dense(1, kernel_initializer="ones")(table))
            model.compile(keras.optimizers.SGD(0.01), "mse")
        return model

    model, plain = made(ctx.strategy.scope()), made(contextlib.nullcontext())
    with ctx.alone():
        expected = plain.train_on_batch(words, numbers)
    columns = {"batch_size": 24, "features": "word", "label": "number"}
    ours = ctx.fit(model, **columns).history["loss"][0]
    return [ours, expected], [model.get_weights(), plain.get_weights()]


@pytest.mark.parametrize("flavour", ["keras", "tf_keras"])
def test_words_are_looked_up_in_the_model(distribute, flavour):
    words = {"word": np.array(list("abcd") * 6), "number": np.arange(24.0).astype("float32")}
    job = distribute("parameter_server", ps=1, worker=1)
    (ours, expected), (weights, plain) = job.run(
        one_step_on_words, flavour, data={"train": words}
    ).value
    assert ours == pytest.approx(expected, rel=1e-5)
    for one, other in zip(weights, plain, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
