"""What a training function returns comes back as what it was."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ranks import run_job

from gridflow._keras import results
from gridflow.errors import GridflowError, InvalidArgument

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
    max_leaves=20,
)


@given(value=plain)
@settings(max_examples=60, deadline=None)
def test_plain_values_come_back_equal(value, tmp_path_factory):
    directory = tmp_path_factory.mktemp("result")
    header = json.loads(json.dumps(results.pack(value, directory, is_chief=True)))
    assert results.unpack(header, directory) == value


def test_plain_values_need_no_tensorflow(tmp_path):
    header = results.pack({"a": np.arange(3)}, tmp_path, is_chief=True)
    source = (
        "import sys, pathlib\n"
        "from gridflow._keras import results\n"
        f"print(results.unpack({header!r}, pathlib.Path({str(tmp_path)!r})))\n"
        "assert not {'tensorflow', 'keras', 'tf_keras', 'pyspark'} & set(sys.modules)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert "array([0, 1, 2])" in ended.stdout


def test_what_another_rank_cannot_send_is_missing_and_no_failure(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "MOST_BYTES", 1 << 20)
    assert results.pack(np.zeros(1000), tmp_path, is_chief=False)["kind"] == "pickle"
    header = results.pack(np.zeros(1 << 18), tmp_path / "large", is_chief=False)
    assert header["kind"] == "missing"
    assert "ndarray too large: 2.0 MiB" in header["why"]
    assert "at most 1 MiB" in header["why"]
    assert list((tmp_path / "large").iterdir()) == []
    header = results.pack(threading.Lock(), tmp_path / "lock", is_chief=False)
    assert "can't be pickled" in header["why"]
    assert results.pack(np.zeros(1 << 18), tmp_path, is_chief=True)["kind"] == "pickle"


def test_a_value_that_cannot_be_pickled_is_refused_with_advice(tmp_path):
    with pytest.raises(InvalidArgument, match=r"\(lock\) can't be pickled.*Return a model"):
        results.pack(threading.Lock(), tmp_path, is_chief=True)


def test_an_unknown_kind_is_named(tmp_path):
    with pytest.raises(InvalidArgument, match="Did you mean 'pickle'"):
        results.unpack({"kind": "pickel", "files": ["x"]}, tmp_path)


def test_a_broken_file_is_an_error_of_ours(tmp_path):
    (tmp_path / "value.pickle").write_bytes(b"no pickle")
    with pytest.raises(GridflowError, match="can't be unpickled here"):
        results.unpack({"kind": "pickle", "files": ["value.pickle"]}, tmp_path)


def returns_model_and_history(ctx, flavour):
    keras = importlib.import_module(flavour)
    with ctx.strategy.scope():
        model = keras.Sequential([keras.layers.Dense(3), keras.layers.BatchNormalization()])
        model.compile("sgd", "mse")
    x = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")
    history = model.fit(x, x[:, :3], batch_size=8, epochs=2, verbose=0)
    header = results.pack(model, ctx.work_dir / "model", ctx.is_chief, ctx.strategy)
    mixed = {"history": history, "losses": history.history["loss"]}
    nested = results.pack(mixed, ctx.work_dir / "mixed", is_chief=ctx.is_chief)
    alone = results.pack(history, ctx.work_dir / "history", is_chief=ctx.is_chief)
    expected = np.array(model(x))  # by all ranks: in tf_keras this averages the statistics
    if not ctx.is_chief:
        return header
    again = results.unpack(header, ctx.work_dir / "model")
    np.testing.assert_allclose(again(x), expected, rtol=1e-4, atol=1e-5)
    both = results.unpack(nested, ctx.work_dir / "mixed")
    assert both["history"]["loss"] == both["losses"]
    assert results.unpack(alone, ctx.work_dir / "history") == both["history"]
    return header


@pytest.mark.slow
@pytest.mark.usefixtures("by_value", "no_leaks")
@pytest.mark.parametrize("flavour", ["keras", "tf_keras"])
def test_models_of_all_ranks_are_packed_together_and_come_back(flavour):
    headers, _ = run_job(
        returns_model_and_history, 2, "multi_worker_mirrored", arguments=(flavour,)
    )
    chief = headers[0]
    assert (chief["kind"], chief["files"]) == (flavour, ["model.keras"])
    assert chief["class"] == "Sequential"
    assert [shape[1:] for shape in chief["inputs"].values()] == [[4]]
    assert [shape[1:] for shape in chief["outputs"].values()] == [[3]]
    assert headers[1] == {**chief, "kind": "shared", "files": []}


@pytest.mark.slow
@pytest.mark.parametrize("flavour", ["keras", "tf_keras"])
def test_a_model_that_cannot_be_returned_is_named_before_it_is_trained(flavour):
    from gridflow import LocalLauncher, TensorflowDistributor

    def train(ctx, flavour):
        keras = importlib.import_module(flavour)

        class Mine(keras.Model):
            def __init__(self, inner, **kwargs):
                super().__init__(**kwargs)
                self.inner = inner

            def call(self, x):
                return self.inner(x)

        class Told(Mine):
            def get_config(self):
                return {"inner": keras.saving.serialize_keras_object(self.inner)}

        class Ticket:
            def __call__(self, x):
                return x

        keras.Sequential([keras.layers.Dense(1)]).compile("sgd", "mse")
        Told(keras.layers.Dense(1)).compile("sgd", "mse")
        model = Mine(Ticket())
        model.compile("sgd", "mse")
        print("training")
        model.compile("sgd", "mse")

    distributor = TensorflowDistributor(launcher=LocalLauncher(), logs="none", progress=False)
    said, *rest = distributor.run(train, flavour).logs(0).splitlines()
    assert rest == ["training"], said
    assert said.startswith("gridflow: a Mine can't be returned from the function")
