"""JAX and torch train one model on two processes: what one process computes, and what differs."""

from __future__ import annotations

import sys

import numpy as np
import pytest

ROWS, BATCH, EPOCHS = 96, 16, 3
STEPS = ROWS // BATCH


def rows(num_workers=1):
    """Return rows whose contiguous shares make up the batches that one process sees."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(ROWS, 4)).astype("float32")
    every = {
        "x": x,
        "y": np.sin(x @ [1.0, -2.0, 0.5, 3.0]).astype("float32"),
        "weight": rng.uniform(0.5, 2, ROWS).astype("float32"),
        "name": np.array([f"row {i}" for i in range(ROWS)]),
    }
    places = np.arange(ROWS).reshape(STEPS, num_workers, -1).transpose(1, 0, 2).reshape(-1)
    return {"rows": {name: values[places] for name, values in every.items()}}


def build(keras, seed, **options):
    """Return a compiled model; the options are Adam's."""
    inputs = keras.Input((4,))
    start = keras.initializers.GlorotUniform(seed=seed)
    hidden = keras.layers.Dense(8, activation="tanh", kernel_initializer=start)(inputs)
    model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
    model.compile(keras.optimizers.Adam(0.02, **options), "mse", metrics=["mae"])
    return model


def columns(ctx):
    """Return how the rows are read."""
    return {"batch_size": BATCH // ctx.num_workers, "features": "x", "label": "y"}


def train(ctx):
    """Train with weights of the rows and a validation; return what there is to compare."""
    import os
    import sys

    import keras

    has_tensorflow = "tensorflow" in sys.modules
    with ctx.strategy.scope():
        model = build(keras, 1)
    data = ctx.dataset("rows", sample_weight="weight", **columns(ctx))
    history = model.fit(
        data,
        validation_data=ctx.dataset("rows", **columns(ctx)),
        epochs=EPOCHS,
        verbose=0,
        callbacks=ctx.callbacks(),
    )
    return {
        "backend": keras.backend.backend(),
        "has_tensorflow": has_tensorflow,
        "replicas": ctx.strategy.num_replicas_in_sync,
        "tf_config": os.environ.get("TF_CONFIG"),
        "weights": model.get_weights(),
        "history": history.history,
        "evaluated": model.evaluate(data, verbose=0, return_dict=True),
    }


def everything(ctx, folder):
    """Do what can go wrong where several processes are one."""
    import keras
    from gridflow import SchemaError

    found = {}
    model = build(keras, ctx.rank)  # each rank makes weights of its own
    found["before"] = model.get_weights()

    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = batch == 1

    data = ctx.dataset("rows", shuffle=True, **columns(ctx))
    model.fit(data, epochs=2, verbose=0, callbacks=[Stop()])
    history = ctx.fit(model, "rows", shuffle=True, epochs=2, validation="rows", **columns(ctx))
    found["after"] = model.get_weights()
    found["logs"] = history.history
    found["evaluated"] = ctx.evaluate(model, "rows", **columns(ctx))
    weighed = model.fit(data, epochs=1, verbose=0, class_weight={0: 1.0, 1: 5.0})
    found["class_weight"] = weighed.history["loss"][0]

    batches = list(ctx.dataset("rows", sample_weight="weight", **columns(ctx)))
    found["shapes"] = [[part.shape for part in batch] for batch in batches]
    found["first"] = batches[0][0]
    try:
        ctx.dataset("rows", batch_size=8, features="name")
    except SchemaError as error:
        found["text"] = str(error)
    if ctx.is_chief:  # without the other rank, which must not be waited for
        x = np.ones((5, 4), "float32")
        found["predicted"] = model.predict(x, batch_size=2, verbose=0)
        model.save("alone.keras")
        loaded = keras.models.load_model("alone.keras")
        found["saved"] = [
            float(np.abs(ours - theirs).max())
            for ours, theirs in zip(loaded.get_weights(), model.get_weights(), strict=True)
        ]
    found["answers"] = model.predict(np.ones((5, 4), "float32"), verbose=0)
    np.save(f"{folder}/{ctx.rank}.npy", found, allow_pickle=True)
    return model


@pytest.fixture(scope="module")
def together(distribute, scratch):
    """Return what each of two ranks computes."""
    return distribute(seed=2).run(train, data=rows(2)).values


@pytest.fixture(scope="module")
def found(distribute, scratch, tmp_path_factory):
    """Return what each of two ranks found, and the job's result."""
    folder = tmp_path_factory.mktemp("ranks")
    result = distribute(seed=2).run(everything, str(folder), data=rows(2))
    ranks = [np.load(folder / f"{rank}.npy", allow_pickle=True).item() for rank in range(2)]
    return ranks, result


@pytest.fixture(scope="module")
def alone(distribute, scratch):
    """Return what one process computes on the same global batches."""
    return distribute(1, seed=2).run(train, data=rows()).value


def other_weights(ctx):
    """Train a model that each rank made with weights of its own; return what became of it."""
    import keras

    model = build(keras, ctx.rank, gradient_accumulation_steps=2)
    model.fit(ctx.dataset("rows", **columns(ctx)), epochs=1, verbose=0)
    return model.get_weights()


def test_processes_that_begin_warm_are_one_model_too(distribute, found, scratch):
    # `found` has started what they are forked from.
    first, second = distribute().run(other_weights, data=rows(2)).values
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, other)


def test_two_processes_compute_what_one_computes(together, alone, backend):
    for got in together:
        assert (got["backend"], got["replicas"], got["tf_config"]) == (backend, 2, None)
        assert not got["has_tensorflow"]
        for have, want in zip(got["weights"], alone["weights"], strict=True):
            assert np.abs(have - want).max() <= 1e-5
        assert got["history"].keys() == alone["history"].keys()
        for name, values in alone["history"].items():
            np.testing.assert_allclose(got["history"][name], values, rtol=1e-5)
        for name, value in alone["evaluated"].items():
            assert got["evaluated"][name] == pytest.approx(value, rel=1e-5)


def test_all_ranks_hold_the_chiefs_model_whatever_each_began_with(found):
    ranks, _ = found
    kernels = [rank["before"][0] for rank in ranks]
    assert np.abs(kernels[0] - kernels[1]).max() > 0.1
    for one, other in zip(ranks[0]["after"], ranks[1]["after"], strict=True):
        np.testing.assert_array_equal(one, other)
    assert ranks[0]["logs"] == ranks[1]["logs"]
    assert sorted(ranks[0]["logs"]) == ["loss", "mae", "val_loss", "val_mae"]
    assert ranks[0]["evaluated"]["mae"] == pytest.approx(ranks[0]["logs"]["val_mae"][-1], rel=1e-5)
    assert ranks[0]["class_weight"] > ranks[0]["logs"]["loss"][-1]


def test_batches_are_arrays_of_each_ranks_own_rows(found):
    ranks, result = found
    rows_of = rows(2)["rows"]["x"]
    for number, rank in enumerate(ranks):
        assert rank["shapes"] == [[(8, 4), (8,), (8,)]] * STEPS
        np.testing.assert_array_equal(rank["first"], rows_of[number * ROWS // 2 :][:8])
        assert "'name'" in rank["text"]
        assert "backend='tensorflow'" in rank["text"]
    assert result.ledger.check() == []
    records = result.ledger.records
    assert {(epoch.rows_fed, epoch.rows_repeated) for epoch in records} == {(ROWS // 2, 0)}
    # A fit of two epochs with validation, two of one epoch, an evaluation, and an iteration: no
    # epoch begins by building a model.
    assert len(records) == 2 * (4 + 2 + 1 + 1)


def test_the_chief_predicts_saves_and_loads_without_the_others(found):
    ranks, result = found
    assert ranks[0]["predicted"].shape == (5, 1)
    assert ranks[0]["saved"] == [0.0] * 4
    loaded = result.model.load()  # by TensorFlow, which wouldn't survive torch beside it
    assert "torch" not in sys.modules
    answers = loaded.predict(np.ones((5, 4), "float32"), verbose=0)
    np.testing.assert_allclose(answers, ranks[0]["answers"], atol=1e-5)
    assert result.history["loss"][:2] == pytest.approx(ranks[0]["logs"]["loss"])
