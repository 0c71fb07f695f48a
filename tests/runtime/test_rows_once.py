"""Each row once outside of training, and none repeated in it that needn't be."""

from __future__ import annotations

import json

import numpy as np
import pytest

from gridflow import LocalLauncher, Role, TensorflowDistributor
from suite.new_process import skip_without

pytestmark = pytest.mark.slow

TEXTS = [f"word{i} common" for i in range(70)]


def run(function, *arguments, num_workers=2, **options):
    data = {
        "train": {"x": np.arange(70, dtype="f4"), "y": np.arange(70, dtype="f4") / 9},
        "validation": {"x": np.arange(66, dtype="f4"), "y": np.ones(66, "f4")},
        "one": {"x": np.full(1, 3, "f4"), "y": np.ones(1, "f4")},
    }
    if options.get("backend", "tensorflow") == "tensorflow":
        data["train"]["text"] = np.array(TEXTS)
    options = {"logs": "none", "progress": False, "launcher": LocalLauncher(), **options}
    if "roles" not in options:
        options["num_workers"] = num_workers
    return TensorflowDistributor(**options).run(function, *arguments, data=data)


def told(result, rank):
    (line,) = [each for each in result.logs(rank).splitlines() if each.startswith("TOLD ")]
    return json.loads(line.removeprefix("TOLD "))


def tell(**what):
    print("TOLD", json.dumps(what), flush=True)


def model_of(ctx):
    """Return a model that answers 2 x + 1."""
    import keras

    with ctx.strategy.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", metrics=["mae"])
    model.set_weights([np.array([[2.0]]), np.array([1.0])])
    return model


def several_ranks(ctx):
    import keras

    model = model_of(ctx)
    columns = {"batch_size": 32, "features": [["x"]], "label": "y"}
    validation = ctx.dataset("validation", **columns)
    doubled = ctx.dataset("validation", map=lambda x, y: (2 * x, y), prefetch=1, **columns)
    layer = keras.layers.TextVectorization()
    layer.adapt(ctx.adapt_dataset("train", features="text"))
    some = ctx.adapt_dataset("train", features="x", rows=10, batch_size=4)
    train = ctx.dataset("train", **columns)
    tell(
        predicted=model.predict(validation, verbose=0)[:, 0].tolist(),
        one=model.predict(ctx.dataset("one", **columns), verbose=0)[:, 0].tolist(),
        doubled=model.predict(doubled, verbose=0)[:, 0].tolist(),
        mapped=model.predict(validation.map(lambda x, y: (3 * x, y)), verbose=0)[:, 0].tolist(),
        words=sorted(layer.get_vocabulary()),
        some=[batch.tolist() for batch in some.as_numpy_iterator()],
        steps=[len(train), len(train.take(1)), len(list(train.take(1)))],
    )
    model.fit(train, validation_data=validation, epochs=2, verbose=0)


def test_several_ranks_count_each_row_once_and_adapt_layers_alike():
    result = run(several_ranks, strategy="multi_worker_mirrored")
    rows = np.arange(66)
    for found in (told(result, 0), told(result, 1)):
        np.testing.assert_allclose(found["predicted"], 2 * rows + 1)
        np.testing.assert_allclose(found["doubled"], 4 * rows + 1)
        np.testing.assert_allclose(found["mapped"], 6 * rows + 1)
        assert found["one"] == [7]
        assert found["words"] == sorted({"", "[UNK]", *" ".join(TEXTS).split()})
        assert found["some"] == [[0, 1, 2, 3], [4, 35, 36, 37], [38, 39]]
        assert found["steps"] == [2, 1, 1]
    records = result.ledger.records
    assert result.ledger.check() == []
    assert {r.rows_repeated for r in records} == {0}
    assert {(r.rank, r.rows_fed) for r in records if r.dataset == "one"} == {(0, 0), (1, 1)}
    fed = {(r.dataset, r.rank, r.rows_fed) for r in records if r.complete}
    assert {("train", 0, 35), ("train", 1, 35), ("validation", 0, 33)} <= fed


def alone(ctx):
    import keras

    layer = keras.layers.TextVectorization()
    layer.adapt(ctx.dataset("train", batch_size=8, features="text"))
    x = ctx.dataset("train", batch_size=8, features="x", shuffle=False, map=lambda x: x + 1)
    model = model_of(ctx)
    columns = {"batch_size": 32, "features": [["x"]], "label": "y"}
    shuffled = ctx.dataset("train", **columns)
    return {
        "words": layer.vocabulary_size(),
        "first": next(iter(x)).numpy().tolist(),
        "steps": [len(x), len(x.take(2)), len(x.map(lambda x: x))],
        "predicted": model.predict(shuffled, verbose=0)[:, 0].tolist(),
        "adapted": [len(batch) for batch in ctx.adapt_dataset("train", features="x", rows=9)],
    }


def test_one_process_adapts_a_layer_to_a_dataset_of_features_alone():
    found = run(alone, num_workers=1, strategy="none").value
    assert found["words"] == 70 + 1 + 2
    assert found["first"] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert found["steps"] == [9, 2, 9]
    np.testing.assert_allclose(found["predicted"], 2 * np.arange(70) + 1)
    assert found["adapted"] == [9]


def on_backends(ctx):
    import numpy as np

    import keras

    model = model_of(ctx)
    columns = {"batch_size": 32, "features": [["x"]], "label": "y"}
    layer = keras.layers.Normalization(axis=None)
    layer.adapt(ctx.adapt_dataset("train", features="x"))
    validation = ctx.dataset("validation", **columns).map(lambda x, y: (2 * x, y))
    train = ctx.dataset("train", **columns)
    tell(
        predicted=model.predict(validation, verbose=0)[:, 0].tolist(),
        one=model.predict(ctx.dataset("one", **columns), verbose=0)[:, 0].tolist(),
        tested=model.evaluate(validation, verbose=0, return_dict=True),
        mean=np.ravel(keras.ops.convert_to_numpy(layer.mean)).tolist(),
        steps=[len(train), len(list(train.take(1)))],
    )
    model.fit(train, validation_data=validation, epochs=2, verbose=0)


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_jax_and_torch_count_each_row_once_too(backend):
    skip_without(backend)
    result = run(on_backends, strategy="multi_worker_mirrored", backend=backend)
    for rank, rows in enumerate((np.arange(33), np.arange(33, 66))):
        found = told(result, rank)
        np.testing.assert_allclose(found["predicted"], 4 * rows + 1)
        assert found["one"] == ([7] if rank else [])
        assert found["tested"]["mae"] == pytest.approx(np.mean(4 * np.arange(66)))
        assert found["mean"] == pytest.approx([34.5])
        assert found["steps"] == [2, 1]
    assert result.ledger.check() == []
    assert {r.rows_repeated for r in result.ledger.records} == {0}


def with_servers(ctx):
    model = model_of(ctx)
    columns = {"batch_size": 32, "features": [["x"]], "label": "y"}
    data = ctx.dataset("validation", map=lambda x, y: (2 * x, y), **columns)
    return [ctx.evaluate(model, data)["mae"], ctx.evaluate(model, "one", **columns)["mae"]]


def test_parameter_servers_dont_test_on_rows_that_were_lent():
    roles = [Role("ps"), Role("worker", 2)]
    result = run(with_servers, strategy="parameter_server", roles=roles)
    assert result.value == pytest.approx([np.mean(4 * np.arange(66)), 6])
