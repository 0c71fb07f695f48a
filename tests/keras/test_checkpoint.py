"""A run that dies at any step and goes on from its checkpoint ends as if nothing had happened."""

from __future__ import annotations

import importlib
import os
import re

import numpy as np
import pytest
from ranks import run_job

from gridflow._keras import callbacks as gridflow_callbacks
from gridflow._keras.resume.checkpoint_file import Checkpoint
from gridflow.errors import InvalidArgument
from suite.lives import Life
from suite.new_process import skip_without
from suite.waiting import wait_for

ROWS, BATCH, EPOCHS = 48, 8, 3
STEPS = ROWS // BATCH
rng = np.random.default_rng(0)
X = rng.normal(size=(ROWS, 4)).astype("float32")
DATA = {"rows": {"x": X, "y": (X @ np.arange(4, dtype="float32"))[:, None]}}


def diverges(ctx, flavour):
    """Train until a row makes the weights NaN; die of it, and the second time stop."""
    keras = importlib.import_module(flavour)

    class Dies(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if ctx.generation == 0 and np.isnan(self.model.get_weights()[0]).any():
                raise_died()

    with ctx.strategy.scope():
        model = keras.Sequential([keras.layers.InputLayer((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    rows = ctx.dataset("rows", batch_size=BATCH, features="x", label="y", shuffle=False)
    stops = [Dies()] if ctx.generation == 0 else [keras.callbacks.TerminateOnNaN()]
    callbacks = [*ctx.callbacks(tensorboard=False), *stops]
    model.fit(rows, epochs=EPOCHS, verbose=0, callbacks=callbacks)


@pytest.mark.slow
@pytest.mark.usefixtures("by_value", "no_leaks")
@pytest.mark.parametrize("flavour", ["keras", "tf_keras"])
def test_the_last_finite_checkpoint_is_resumed_from_and_outlives_a_training_that_ends_with_nan(
    flavour, tmp_path, capsys
):
    labels = DATA["rows"]["y"].copy()
    labels[3 * BATCH] = np.nan  # in the fourth step
    _, result = run_job(
        diverges,
        arguments=(flavour,),
        data={"rows": {"x": X, "y": labels}},
        checkpoint_every=1,
        checkpoint_dir=tmp_path,
        max_restarts=1,
    )
    assert result.attempts[1].resumed_from == (0, 3)
    assert "NaN or infinity in variable" in result.not_finite
    assert result.not_finite.endswith("at epoch 1, step 0")
    left = [Checkpoint.read(path) for path in sorted(tmp_path.glob("*.npz"))]
    assert [(each.step, each.not_finite()) for each in left] == [(2, ""), (3, "")]
    said = capsys.readouterr().out
    assert f"stay in {tmp_path}" in said


class DiedError(Exception):
    """What ends a life in the middle."""


def dying_callback(keras, at, die):
    class Dying(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if int(self.model.optimizer.iterations.numpy()) == at:
                die()

    return [Dying()] if at is not None else []


def raise_died():
    raise DiedError


def exit_at_once():
    os._exit(9)


def life_of(ctx, deaths):
    """Return the step at which this generation is to die, or None."""
    return deaths[ctx.generation] if ctx.generation < len(deaths) else None


def fitted(ctx, flavour, deaths=(), die=raise_died, epochs=EPOCHS):
    """Train, dying after some steps; return weights, optimizer and History."""
    keras = importlib.import_module(flavour)
    keras.utils.set_random_seed(3)
    with ctx.strategy.scope():
        layers = [
            keras.layers.Dense(8, activation="tanh"),
            keras.layers.BatchNormalization(momentum=0.9),
            keras.layers.Dense(1),
        ]
        if flavour == "keras":
            layers.insert(2, keras.layers.Dropout(0.25))
        model = keras.Sequential(layers)
        model.compile(keras.optimizers.Adam(0.02), "mse", metrics=["mae"])
    columns = {"batch_size": BATCH // ctx.num_workers, "features": "x", "label": "y"}
    dying = dying_callback(keras, life_of(ctx, deaths), die)
    history = model.fit(
        ctx.dataset("rows", shuffle=True, **columns),
        validation_data=ctx.dataset("rows", **columns),
        epochs=epochs,
        verbose=0,
        callbacks=[*ctx.callbacks(tensorboard=False), *dying],
    )
    return {
        "weights": [np.array(weight) for weight in model.get_weights()],
        "steps": int(model.optimizer.iterations.numpy()),
        "history": history.history,
        "epochs": history.epoch,
    }


def assert_same_run(got, expected, label):
    assert got["steps"] == expected["steps"], label
    for have, want in zip(got["weights"], expected["weights"], strict=True):
        np.testing.assert_allclose(have, want, atol=1e-6, err_msg=str(label))
    assert got["epochs"] == expected["epochs"], label
    assert got["history"].keys() == expected["history"].keys()
    for name, want in expected["history"].items():
        np.testing.assert_allclose(got["history"][name], want, rtol=1e-5, err_msg=str(label))


#: Steps between checkpoints, and the steps at which the lives of a job die: in the first epoch, at
#: an epoch's end, just after it, in the last epoch.
DEATHS = {1: (2, EPOCHS * STEPS), 4: (STEPS + 3,), None: (STEPS, STEPS + 1)}


@pytest.mark.slow
@pytest.mark.usefixtures("by_value", "no_leaks")
@pytest.mark.parametrize("flavour", ["keras", "tf_keras"])
@pytest.mark.parametrize(("strategy", "workers"), [("none", 1), ("multi_worker_mirrored", 2)])
def test_a_run_that_died_at_any_step_ends_as_one_that_did_not(flavour, strategy, workers):
    group = {"num_workers": workers, "strategy": strategy, "data": DATA}
    through, _ = run_job(fitted, arguments=(flavour,), **group)
    for every, deaths in DEATHS.items():
        ranks, result = run_job(
            fitted,
            arguments=(flavour, deaths),
            checkpoint_every=every,
            max_restarts=len(deaths),
            **group,
        )
        assert len(result.attempts) == len(deaths) + 1
        for got, expected in zip(ranks, through, strict=True):
            assert_same_run(got, expected, (every, deaths))
        for got in ranks[1:]:
            for have, want in zip(got["weights"], ranks[0]["weights"], strict=True):
                np.testing.assert_array_equal(have, want, err_msg="ranks differ")
    assert all(rank["history"] == through[0]["history"] for rank in through)


class Own:
    """Something of the user's that a callback refers to."""

    def __init__(self):
        self.seen, self.random = [], np.random.default_rng(5)


def remembering(ctx, flavour, folder, runtime, death=None):
    """Fit with callbacks of every kind that remember something; return all of it.

    The death is where the last callback raises: a method, and how often it was called.
    """
    keras = importlib.import_module(flavour)
    kinds, rows, losses = keras.callbacks, ctx.dataset("rows", batch_size=16, **COLUMNS), []
    folder.mkdir(exist_ok=True)

    class Mine(kinds.Callback):
        """It takes the rates of the epochs one after the other, and remembers in many ways."""

        total = 0

        def __init__(self, own):
            super().__init__()
            self.own, self.rates, self.sums = own, [0.02, 0.01], np.zeros(4)
            self.best, self.names = None, {}
            make = keras.Variable if flavour == "keras" else keras.backend.variable
            self.weight = make(0.0)

        def on_train_begin(self, logs=None):
            self.model.optimizer.learning_rate.assign(0.5)

        def on_epoch_begin(self, epoch, logs=None):
            self.model.optimizer.learning_rate.assign(self.rates.pop(0))

        def on_train_batch_end(self, batch, logs=None):
            losses.append(round(float(logs["loss"]), 4))
            self.total += 1
            self.sums += self.total
            self.own.seen.append((batch, float(self.own.random.random())))
            self.weight.assign(self.total / 10)

        def on_epoch_end(self, epoch, logs=None):
            self.best = [np.array(each) for each in self.model.get_weights()]
            self.names[epoch] = {f"epoch {epoch}", "done"}

    class Dies(kinds.Callback):
        def __init__(self):
            super().__init__()
            self.calls = 0

        def dies(self, occasion, count):
            if death == (occasion, count):
                raise_died()

        def on_epoch_begin(self, epoch, logs=None):
            self.dies("epoch begins", epoch)

        def on_train_batch_end(self, batch, logs=None):
            self.dies("step ends", int(self.model.optimizer.iterations.numpy()))

        def on_epoch_end(self, epoch, logs=None):
            self.dies("epoch ends", epoch)

    keras.utils.set_random_seed(3)
    with ctx.strategy.scope():
        model = keras.Sequential([keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(1)])
        ema = {"use_ema": True} if flavour == "keras" else {}
        model.compile(keras.optimizers.SGD(0.1, momentum=0.5, **ema), "mse")
    mine, steps = Mine(Own()), []
    early = kinds.EarlyStopping("loss", min_delta=0.01, patience=9, restore_best_weights=True)
    callbacks = [
        *gridflow_callbacks.build(runtime, tensorboard=False),
        mine,
        kinds.LearningRateScheduler(lambda epoch, lr: lr * 0.5),
        kinds.ReduceLROnPlateau("loss", factor=0.5, patience=1, min_delta=1e9),
        early,
        kinds.ModelCheckpoint(str(folder / "best.keras"), monitor="loss", save_best_only=True),
        kinds.CSVLogger(str(folder / "log.csv")),
        kinds.LambdaCallback(on_train_batch_end=lambda batch, logs: steps.append(batch)),
        *([kinds.SwapEMAWeights(swap_on_epoch=True)] if ema else []),
        Dies(),
    ]
    history = model.fit(rows, epochs=2, verbose=0, callbacks=callbacks)
    found = [
        *([each.tolist() for each in model.get_weights()], history.history, history.epoch),
        *(mine.rates, mine.sums.tolist(), mine.total, mine.own.seen, mine.names, losses, steps),
        *(float(mine.weight.numpy()), float(mine.own.random.random())),
        *(early.wait, early.best, float(model.optimizer.learning_rate.numpy())),
        *([each.tolist() for each in mine.best], (folder / "log.csv").read_text()),
    ]
    return [repr(each) for each in found]


COLUMNS = {"features": "x", "label": "y", "shuffle": True}
OCCASIONS = [
    *(("epoch begins", 0), ("epoch begins", 1), ("epoch ends", 0), ("epoch ends", 1)),
    *(("step ends", step) for step in range(1, 2 * ROWS // 16 + 1)),
]


def lives_and_deaths(ctx, flavour, folder):
    """Return what differs from an undisturbed fit after a death at each occasion."""
    wrong = {}
    expected = remembering(ctx, flavour, folder / "through", Life(ctx, folder / "through.npz"))
    for number, death in enumerate(OCCASIONS):
        committed = folder / f"{number}.npz"
        try:
            remembering(ctx, flavour, folder / f"{number}", Life(ctx, committed), death)
        except DiedError:
            second = Life(ctx, committed, resume_from=committed if committed.exists() else None)
            got = remembering(ctx, flavour, folder / f"{number}", second)
            if got != expected:
                pairs = zip(got, expected, strict=True)
                wrong[death] = [(have, want) for have, want in pairs if have != want]
    return wrong


@pytest.mark.slow
@pytest.mark.usefixtures("by_value", "no_leaks")
@pytest.mark.parametrize("flavour", ["keras", "tf_keras"])
def test_all_callbacks_remember_what_they_knew_at_any_death(flavour, tmp_path):
    (wrong,), _ = run_job(lives_and_deaths, arguments=(flavour, tmp_path), data=DATA)
    assert wrong == {}


def fitted_by_two(ctx, flavour, deaths=()):
    """Train a model whose step uses two optimizers, neither of which it was compiled with."""
    import tensorflow as tf

    keras = importlib.import_module(flavour)

    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.parts = [keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(1)]
            self.mine = [keras.optimizers.Adam(0.05), keras.optimizers.SGD(0.03, momentum=0.5)]
            self.mean = keras.metrics.Mean(name="mean")

        def call(self, x):
            return self.parts[1](self.parts[0](x))

        @property
        def metrics(self):
            return [self.mean]

        def train_step(self, data):
            x, y = data
            with tf.GradientTape(persistent=True) as tape:
                loss = tf.reduce_mean((self(x, training=True) - y) ** 2)
            for optimizer, part in zip(self.mine, self.parts, strict=True):
                variables = part.trainable_variables
                optimizer.apply_gradients(
                    zip(tape.gradient(loss, variables), variables, strict=True)
                )
            self.mean.update_state(loss)
            return {"mean": self.mean.result()}

    class Dying(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if int(self.model.mine[0].iterations.numpy()) == life_of(ctx, deaths):
                raise_died()

    keras.utils.set_random_seed(3)
    with ctx.strategy.scope():
        model = Model()
        model.compile()
    history = model.fit(
        ctx.dataset("rows", batch_size=BATCH // ctx.num_workers, features="x", label="y"),
        epochs=EPOCHS,
        verbose=0,
        callbacks=[*ctx.callbacks(tensorboard=False), Dying()],
    )
    return {
        "weights": [np.array(weight) for weight in model.get_weights()],
        "steps": [int(each.iterations.numpy()) for each in model.mine],
        "history": history.history,
        "epochs": history.epoch,
    }


@pytest.mark.slow
@pytest.mark.usefixtures("by_value", "no_leaks")
@pytest.mark.parametrize(("flavour", "workers"), [("keras", 1), ("keras", 2), ("tf_keras", 1)])
def test_each_of_several_optimizers_goes_on_where_it_was(flavour, workers):
    strategy = "none" if workers == 1 else "multi_worker_mirrored"
    group = {"num_workers": workers, "strategy": strategy, "data": DATA}
    (through, *_), _ = run_job(fitted_by_two, arguments=(flavour,), **group)
    again, _ = run_job(
        fitted_by_two,
        arguments=(flavour, (STEPS + 4,)),
        checkpoint_every=2,
        max_restarts=1,
        **group,
    )
    for got in again:
        assert_same_run(got, through, "two optimizers")


@pytest.mark.slow
@pytest.mark.usefixtures("by_value", "no_leaks")
def test_workers_that_are_killed_are_replaced_by_new_ones_that_go_on():
    group = {"num_workers": 2, "strategy": "multi_worker_mirrored", "data": DATA}
    through, _ = run_job(fitted, arguments=("keras",), **group)
    deaths = (STEPS + 4,)
    again, result = run_job(
        fitted,
        arguments=("keras", deaths, exit_at_once),
        checkpoint_every=2,
        max_restarts=1,
        **group,
    )
    first, second = result.attempts
    assert first.failure.exit_code == 9
    # Of the checkpoints of the second epoch those count that had arrived by then.
    assert second.resumed_from in {(1, 0), (1, 2), (1, 4)}
    for got, expected in zip(again, through, strict=True):
        assert_same_run(got, expected, "killed")


def model_of(keras, width=4):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(width)])
    model.add(keras.layers.Dense(1))
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), "mse")
    return model


def fit_arrays(ctx, model, callbacks=(), **options):
    y = DATA["rows"]["y"]
    options = {"epochs": 2, "batch_size": BATCH, "shuffle": False, "verbose": 0, **options}
    callbacks = [*ctx.callbacks(tensorboard=False), *callbacks]
    return model.fit(X, y, callbacks=callbacks, **options)


def two_fits(ctx, deaths=()):
    import keras

    model = model_of(keras)
    first = fit_arrays(ctx, model)
    model.compile(keras.optimizers.SGD(0.001), "mse")
    dying = dying_callback(keras, life_of(ctx, deaths), raise_died)
    second = fit_arrays(ctx, model, dying, epochs=3)
    return model.get_weights(), first.epoch, second.epoch


def undisturbed(ctx):
    """Do what the others do, without a death."""
    import keras

    arrays = model_of(keras)
    fit_arrays(ctx, arrays)
    return {
        "complete": fitted(ctx, "keras", epochs=2),
        "longer": fitted(ctx, "keras", epochs=3),
        "arrays": arrays.get_weights(),
        "two fits": two_fits(ctx),
    }


def completes(ctx, place):
    """Train to the end and die; find all done and die; train for longer."""
    if ctx.generation < 2:
        complete = fitted(ctx, "keras", epochs=2)
        if ctx.generation == 1:
            np.save(place, complete, allow_pickle=True)
        raise_died()
    return fitted(ctx, "keras", epochs=3)


def resumes_arrays(ctx, place):
    """Die; resume with another model, which is refused, and die; resume."""
    import keras

    if ctx.generation == 1:
        try:
            fit_arrays(ctx, model_of(keras, width=5))
        except InvalidArgument as error:
            np.save(place, str(error))
        raise_died()
    model = model_of(keras)
    fit_arrays(ctx, model, dying_callback(keras, life_of(ctx, (STEPS + 2,)), raise_died))
    return model.get_weights()


def stops_early(ctx, place):
    """Stop before the last epoch, and die; find that it was so."""
    import keras

    if ctx.generation == 0:
        early = keras.callbacks.EarlyStopping(monitor="loss", min_delta=1e9, patience=0)
        np.save(place, fit_arrays(ctx, model_of(keras), [early], epochs=9).epoch)
        raise_died()
    return fit_arrays(ctx, model_of(keras), epochs=9).epoch


def passes_and_epochs(ctx, flavour, steps, rows, deaths=(), saved=()):
    """Train in epochs of some steps on data of others, of gridflow's or of one's own.

    Who dies does so when the checkpoint is there from which the next generation is to go on.
    """
    keras = importlib.import_module("tf_keras" if flavour == "tf_keras" else "keras")
    keras.utils.set_random_seed(1)
    with ctx.strategy.scope():
        model = keras.Sequential([keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(1)])
        model.compile("adam", "mse")
    columns = {"batch_size": BATCH // ctx.num_workers, "features": "x", "label": "y"}
    if rows == "own":
        import tensorflow as tf

        data = tf.data.Dataset.from_tensor_slices((X, DATA["rows"]["y"])).batch(BATCH).repeat()
    else:
        data = ctx.dataset("rows", shuffle=rows != "in order", **columns)
    if rows == "first five":
        data = data.take(5)

    def die():
        wait_for(saved[ctx.generation].exists, "the checkpoint to go on from")
        raise DiedError

    dying = dying_callback(keras, life_of(ctx, deaths), die)
    history = model.fit(
        data,
        epochs=4,
        steps_per_epoch=steps,
        verbose=0,
        callbacks=[*ctx.callbacks(tensorboard=False), *dying],
    )
    weights = np.concatenate([np.ravel(weight) for weight in model.get_weights()])
    return weights, history.history["loss"], int(np.array(model.optimizer.iterations))


@pytest.mark.slow
@pytest.mark.usefixtures("by_value", "no_leaks")
@pytest.mark.parametrize(
    ("flavour", "strategy", "workers", "steps", "rows"),
    [
        ("keras", "multi_worker_mirrored", 2, 4, "shuffled"),
        ("tf_keras", "none", 1, 4, "in order"),
        ("keras", "multi_worker_mirrored", 2, 4, "first five"),
        ("keras", "none", 1, STEPS, "shuffled"),
        ("keras", "none", 1, 4, "own"),
        ("tf_keras", "none", 1, 4, "own"),
        ("jax", "none", 1, 4, "shuffled"),
        ("jax", "none", 1, STEPS, "first five"),
    ],
)
def test_with_steps_per_epoch_a_resume_goes_on_in_the_middle_of_a_pass(
    flavour, strategy, workers, steps, rows, tmp_path
):
    group = {"num_workers": workers, "strategy": strategy, "data": DATA}
    if flavour == "jax":
        skip_without("jax")
        group["backend"] = "jax"
    (through, *_), _ = run_job(passes_and_epochs, arguments=(flavour, steps, rows), **group)
    assert through[2] == 4 * steps
    # After an epoch's end in the middle of a pass, and in an epoch.
    deaths = (2 * steps + 1, 2 * steps + 4)
    saved = [tmp_path / f"checkpoint-0000-000002-{step:09}.npz" for step in (0, 3)]
    (again, *_), result = run_job(
        passes_and_epochs,
        arguments=(flavour, steps, rows, deaths, saved),
        checkpoint_every=3,
        checkpoint_dir=str(tmp_path),
        max_restarts=2,
        **group,
    )
    assert [life.resumed_from for life in result.attempts] == [None, (2, 0), (2, 3)]
    for have, want in zip(again, through, strict=True):
        np.testing.assert_allclose(have, want, atol=1e-6)
    assert result.ledger.check() == []


@pytest.mark.slow
@pytest.mark.usefixtures("by_value", "no_leaks")
def test_other_situations_of_a_resume(tmp_path):
    (through,), _ = run_job(undisturbed, data=DATA)
    place = str(tmp_path / "found.npy")

    (longer,), _ = run_job(completes, arguments=(place,), data=DATA, max_restarts=2)
    complete = np.load(place, allow_pickle=True).item()
    assert_same_run(complete, through["complete"], "a complete run trains no further")
    assert_same_run(longer, through["longer"], "a longer run goes on after the last epoch")

    (arrays,), _ = run_job(resumes_arrays, arguments=(place,), checkpoint_every=1, max_restarts=2)
    assert re.search("variable .* has shape", str(np.load(place)))
    for have, want in zip(arrays, through["arrays"], strict=True):
        np.testing.assert_allclose(have, want, atol=1e-6)

    (epochs,), _ = run_job(stops_early, arguments=(place,), max_restarts=1)
    assert epochs == np.load(place).tolist()
    assert len(epochs) < 9

    (found,), _ = run_job(two_fits, arguments=((STEPS + 5,),), checkpoint_every=4, max_restarts=1)
    assert found[1:] == through["two fits"][1:] == ([0, 1], [0, 1, 2])
    for have, want in zip(found[0], through["two fits"][0], strict=True):
        np.testing.assert_allclose(have, want, atol=1e-6)
