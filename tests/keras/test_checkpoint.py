"""A run that dies at any step and goes on from its checkpoint ends as if nothing had happened."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import os

import numpy as np
import pytest
from harness import run_job
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from gridflow.errors import GridflowError, InvalidArgument
from gridflow.keras.checkpoint_file import Checkpoint, Entry, check_same

ROWS, BATCH, EPOCHS = 48, 8, 3
STEPS = ROWS // BATCH
rng = np.random.default_rng(0)
X = rng.normal(size=(ROWS, 4)).astype("float32")
DATA = {"rows": {"x": X, "y": (X @ np.arange(4, dtype="float32"))[:, None]}}

values = arrays_of.arrays(
    st.sampled_from(["float32", "float64", "int64", "uint32", "bool"]),
    arrays_of.array_shapes(min_dims=0, max_dims=3, max_side=3),
)


@given(
    named=st.lists(st.tuples(st.text(), values)), step=st.integers(0, 99), finished=st.booleans()
)
@settings(max_examples=40, deadline=None)
def test_what_is_written_is_read_back(named, step, finished, tmp_path_factory):
    path = tmp_path_factory.mktemp("checkpoint") / "c.npz"
    entries = [Entry("model", name, value) for name, value in named]
    written = Checkpoint(
        "keras", 1, 2, step, finished, 7, [(2, step)], {"loss": [1.5]}, [0], entries
    )
    written.write(path)
    read = Checkpoint.read(path)
    assert [path.name] == [each.name for each in path.parent.iterdir()]
    assert dataclasses.replace(read, entries=[]) == dataclasses.replace(written, entries=[])
    for have, want in zip(read.entries, entries, strict=True):
        assert (have.group, have.name) == (want.group, want.name)
        assert have.value.dtype == want.value.dtype
        np.testing.assert_array_equal(have.value, want.value)


def test_a_type_that_numpy_does_not_know_is_read_back(tmp_path):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    value = np.arange(6).reshape(2, 3).astype(ml_dtypes.bfloat16)
    Checkpoint("keras", 0, 0, 0, entries=[Entry("model", "w", value)]).write(tmp_path / "c.npz")
    read = Checkpoint.read(tmp_path / "c.npz").entries[0].value
    assert read.dtype == value.dtype
    np.testing.assert_array_equal(read, value)


@given(noise=st.binary(max_size=200), at=st.integers(0, 4000))
@settings(max_examples=40, deadline=None)
def test_a_damaged_file_is_an_error_of_ours_or_still_right(noise, at, tmp_path_factory):
    path = tmp_path_factory.mktemp("checkpoint") / "c.npz"
    entry = Entry("model", "w", np.arange(200.0))
    Checkpoint("keras", 0, 0, 0, entries=[entry]).write(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:at] + noise)
    with contextlib.suppress(GridflowError):
        # A few damages leave all of it intact: bytes after the end, the very same bytes.
        read = Checkpoint.read(path)
        np.testing.assert_array_equal(read.entries[0].value, entry.value)


def test_a_model_that_differs_is_refused_by_name():
    there = [Entry("model", "dense/kernel", np.zeros((4, 8)))]
    with pytest.raises(InvalidArgument, match=r"shape \(4, 16\).*'dense/kernel' with shape \(4, 8"):
        check_same(there, ["dense/kernel"], [(4, 16)], "model")
    with pytest.raises(InvalidArgument, match="1 variables for the model, which now has 2"):
        check_same(there, ["a", "b"], [(1,), (1,)], "model")


class DiedError(Exception):
    """What ends a run in the middle."""


def dying_callback(keras, at, die):
    class Dying(keras.callbacks.Callback):
        steps = 0

        def on_train_batch_end(self, batch, logs=None):
            type(self).steps += 1
            if self.steps == at:
                die()

    return [Dying()]


def raise_died():
    raise DiedError


def fitted(ctx, flavour, *, at=None, die=raise_died, epochs=EPOCHS):
    """Train, dying after `at` steps of this life; return weights, optimizer and History."""
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
    per_worker = BATCH // ctx.num_workers
    rows = ctx.dataset("rows", per_worker, ["x"], ["y"], shuffle=True)
    held_out = ctx.dataset("rows", per_worker, ["x"], ["y"])
    dying = dying_callback(keras, at, die) if at else []
    history = model.fit(
        rows,
        validation_data=held_out,
        epochs=epochs,
        verbose=0,
        callbacks=[*ctx.callbacks(), *dying],
    )
    return {
        "weights": [np.array(weight) for weight in model.get_weights()],
        "steps": int(model.optimizer.iterations.numpy()),
        "history": history.history,
        "epochs": history.epoch,
    }


def next_life(ctx, **changes):
    fresh = {"epoch_counters": [], "reports": [], "checkpoints": [], "epochs": []}
    return dataclasses.replace(ctx, generation=ctx.generation + 1, **{**fresh, **changes})


def dies_at_many_steps(ctx, flavour, deaths):
    """Return the run without a death, and for each (every, at) the run that died there."""
    through = fitted(ctx, flavour)
    resumed = {}
    for every, at in deaths:
        committed = ctx.committed.with_name(f"{every}-{at}.npz")
        life = next_life(ctx, checkpoint_every=every, committed=committed)
        try:
            fitted(life, flavour, at=at)
        except DiedError:
            pass
        else:
            raise AssertionError("the run was to die")
        again = next_life(life, resume_from=committed if committed.exists() else None)
        resumed[every, at] = fitted(again, flavour)
    return through, resumed


def assert_same_run(got, expected, label):
    assert got["steps"] == expected["steps"], label
    for have, want in zip(got["weights"], expected["weights"], strict=True):
        np.testing.assert_allclose(have, want, atol=1e-6, err_msg=str(label))
    assert got["epochs"] == expected["epochs"], label
    assert got["history"].keys() == expected["history"].keys()
    for name, want in expected["history"].items():
        np.testing.assert_allclose(got["history"][name], want, rtol=1e-5, err_msg=str(label))


@pytest.mark.slow
@pytest.mark.parametrize("flavour", ["keras", "tf_keras"])
@pytest.mark.parametrize(
    ("strategy", "workers"), [("none", 1), ("mirrored", 1), ("multi_worker_mirrored", 2)]
)
def test_a_run_that_died_at_any_step_ends_as_one_that_did_not(flavour, strategy, workers, tmp_path):
    # In the first epoch, at an epoch's end, just after it, in the last epoch; checkpoints at every
    # step, at some steps, and at the ends of epochs only.
    deaths = [(1, 2), (4, STEPS + 3), (None, STEPS), (None, STEPS + 1), (1, EPOCHS * STEPS)]
    ranks = run_job(
        lambda ctx: dies_at_many_steps(ctx, flavour, deaths),
        workers,
        strategy,
        data=DATA,
        committed=tmp_path / "committed.npz",
    )
    for through, resumed in ranks:
        for death, got in resumed.items():
            assert_same_run(got, through, death)
    for through, resumed in ranks[1:]:
        first = ranks[0][1]
        for death, got in resumed.items():
            for have, want in zip(got["weights"], first[death]["weights"], strict=True):
                np.testing.assert_array_equal(have, want, err_msg="ranks differ")
        assert through["history"] == ranks[0][0]["history"]


@pytest.mark.slow
def test_workers_that_are_killed_are_replaced_by_new_ones_that_go_on(tmp_path):
    committed = tmp_path / "committed.npz"
    job = {"data": DATA, "checkpoint_every": 2, "committed": committed}
    group = 2, "multi_worker_mirrored"
    through = run_job(lambda ctx: fitted(ctx, "keras"), *group, data=DATA)
    ended = run_job(
        lambda ctx: fitted(ctx, "keras", at=STEPS + 4, die=lambda: os._exit(9)),
        *group,
        allow_death=True,
        **job,
    )
    assert ended == [None, None]
    there = Checkpoint.read(committed)
    assert (there.epoch, there.step) in {(1, 2), (1, 4)}
    again = run_job(
        lambda ctx: fitted(ctx, "keras"), *group, generation=1, resume_from=committed, **job
    )
    for got, expected in zip(again, through, strict=True):
        assert_same_run(got, expected, "killed")


def more_situations(ctx):
    """Several small situations, in one process as each costs less than starting it."""
    import keras

    results = {}
    committed = ctx.committed
    at_epoch_ends = next_life(ctx, committed=committed)
    fitted(at_epoch_ends, "keras", epochs=2)
    results["complete"] = fitted(next_life(ctx, resume_from=committed), "keras", epochs=2)
    results["longer"] = fitted(next_life(ctx, resume_from=committed), "keras", epochs=3)

    def model_of(width=4):
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(width)])
        model.add(keras.layers.Dense(1))
        model.compile(keras.optimizers.SGD(0.01, momentum=0.9), "mse")
        return model

    def fit(life, model, callbacks=(), **options):
        y = DATA["rows"]["y"]
        options = {"epochs": 2, "batch_size": BATCH, "shuffle": False, "verbose": 0, **options}
        return model.fit(X, y, callbacks=[*life.callbacks(), *callbacks], **options)

    model = model_of()
    fit(next_life(ctx, committed=None), model)
    results["arrays, through"] = model.get_weights()
    life = next_life(ctx, committed=committed, checkpoint_every=1)
    with pytest.raises(DiedError):
        fit(life, model_of(), dying_callback(keras, STEPS + 2, raise_died))
    model = model_of()
    fit(next_life(ctx, resume_from=committed), model)
    results["arrays, resumed"] = model.get_weights()
    with pytest.raises(InvalidArgument, match=r"variable .* has shape"):
        fit(next_life(ctx, resume_from=committed), model_of(width=5))

    stopped = next_life(ctx, committed=committed)
    early = [keras.callbacks.EarlyStopping(monitor="loss", min_delta=1e9, patience=0)]
    results["stopped"] = fit(stopped, model_of(), early, epochs=9).epoch
    results["stopped, resumed"] = fit(
        next_life(ctx, resume_from=committed), model_of(), epochs=9
    ).epoch

    def two_fits(life, at=None):
        model = model_of()
        first = fit(life, model)
        model.compile(keras.optimizers.SGD(0.001), "mse")
        dying = dying_callback(keras, at, raise_died) if at else []
        second = fit(life, model, dying, epochs=3)
        return model.get_weights(), first.epoch, second.epoch

    results["two fits"] = two_fits(next_life(ctx))
    life = next_life(ctx, committed=committed, checkpoint_every=4)
    with pytest.raises(DiedError):
        two_fits(life, at=STEPS + 5)
    life = next_life(ctx, resume_from=committed, committed=None)
    results["two fits, resumed"] = two_fits(life)
    return results


@pytest.mark.slow
def test_other_situations_of_a_resume(tmp_path):
    (found,) = run_job(more_situations, data=DATA, committed=tmp_path / "committed.npz")
    through = run_job(lambda ctx: [fitted(ctx, "keras", epochs=n) for n in (2, 3)], data=DATA)[0]
    assert_same_run(found["complete"], through[0], "a complete run trains no further")
    assert_same_run(found["longer"], through[1], "a longer run goes on after the last epoch")
    for have, want in zip(found["arrays, resumed"], found["arrays, through"], strict=True):
        np.testing.assert_allclose(have, want, atol=1e-6)
    assert len(found["stopped"]) < 9
    assert found["stopped, resumed"] == found["stopped"]
    assert found["two fits, resumed"][1:] == found["two fits"][1:] == ([0, 1], [0, 1, 2])
    for have, want in zip(found["two fits, resumed"][0], found["two fits"][0], strict=True):
        np.testing.assert_allclose(have, want, atol=1e-6)
