"""Models in other formats predict as they did, or aren't exported."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from gridflow import errors
from gridflow._keras import results
from gridflow.ml import exporting
from gridflow.ml.model import TrainedModel

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),  # Keras's
    pytest.mark.filterwarnings("ignore:Skipping nested container:UserWarning"),  # Keras's
]
ROWS = {"x": np.random.default_rng(3).random((300, 4), np.float32)}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Give a model of one input."""
    import keras

    made = keras.Sequential([keras.Input((4,), name="x"), keras.layers.Dense(2)])
    folder = tmp_path_factory.mktemp("model")
    return TrainedModel(results.pack(made, folder, is_chief=True), folder)


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """Give a model of words and numbers, with two outputs."""
    import keras

    age = keras.Input((1,), name="age")
    city = keras.Input((1,), name="city", dtype="string")
    lookup = keras.layers.StringLookup(vocabulary=["a", "b"], output_mode="one_hot")
    both = keras.layers.Concatenate()([age, lookup(city)])
    made = keras.Model(
        {"city": city, "age": age}, {"p": keras.layers.Dense(1)(both), "twice": 2 * age}
    )
    folder = tmp_path_factory.mktemp("model")
    return TrainedModel(results.pack(made, folder, is_chief=True), folder)


@pytest.mark.parametrize(("kind", "name"), [("saved_model", "1"), ("litert", "m.tflite")])
def test_an_exported_model_is_checked_on_rows(model, tmp_path, kind, name):
    path = model.export(tmp_path / "deep" / name, format=kind, check=ROWS)
    assert path.exists()
    assert [each.name for each in path.parent.iterdir()] == [name]
    with pytest.raises(errors.InvalidArgument, match="already exists"):
        model.export(path, format=kind)


def test_to_predict_and_to_export_needs_no_loss(tmp_path):
    import keras

    def own_loss(y, predicted):
        return keras.ops.mean((y - predicted) ** 2)

    made = keras.Sequential([keras.Input((2,), name="x"), keras.layers.Dense(1)])
    made.compile("sgd", own_loss)
    model = TrainedModel(results.pack(made, tmp_path, is_chief=True), tmp_path)
    model.export(tmp_path / "exported", check={"x": ROWS["x"][:, :2]})
    assert model.load(compile=False).count_params() == made.count_params()
    with pytest.raises(errors.GridflowError, match="(?s)own_loss.*compile=False"):
        model.load()


def test_names_and_several_outputs_are_kept(wide, tmp_path):
    import pandas as pd

    rows = pd.DataFrame({"age": np.arange(9.0), "city": list("abcabcabc"), "more": 1})
    assert wide.export(tmp_path / "1", check=rows).is_dir()
    with pytest.raises(errors.InvalidArgument, match="lacks 'city'; it has 'age'"):
        wide.export(tmp_path / "2", check=rows[["age"]])


def test_an_exported_model_that_predicts_otherwise_is_not_there(model, tmp_path, monkeypatch):
    run = exporting._run_saved_model
    worse = exporting._Format(
        "tf_saved_model",
        "",
        None,
        lambda *given: lambda x: [value + (x["x"][:, :1] > 0.9) for value in run(*given)(x)],
    )
    monkeypatch.setitem(exporting._FORMATS, "saved_model", worse)
    row = int(np.flatnonzero(ROWS["x"][:, 0] > 0.9)[0])
    with pytest.raises(errors.DataError, match=f"in row {row} of check=, output 0 is"):
        model.export(tmp_path / "1", check=ROWS)
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_exported_is_said(model, tmp_path, monkeypatch):
    for options, said in (
        ({"format": "h5"}, "'saved_model', 'onnx'"),
        ({"format": "litert"}, r"must end in \.tflite"),
        ({"tolerance": -1}, "tolerance must be a number"),
        ({"check": {"x": np.zeros((0, 4), "float32")}}, "no rows"),
    ):
        with pytest.raises(errors.GridflowError, match=said):
            model.export(tmp_path / "1", **options)
    with pytest.raises(errors.InvalidArgument, match="Keras on tensorflow can't export"):
        model.export(tmp_path / "m.pt2", format="torch")
    find = exporting.importlib.util.find_spec
    monkeypatch.setattr(
        exporting.importlib.util,
        "find_spec",
        lambda name: None if name in {"tf2onnx", "onnx", "openvino"} else find(name),
    )
    with pytest.raises(errors.MissingDependency, match="pip install tf2onnx onnx"):
        model.export(tmp_path / "m.onnx", format="onnx")
    with pytest.raises(errors.MissingDependency, match=r"pip install openvino\.$"):
        model.export(tmp_path / "m.xml", format="openvino", check={"x": np.zeros((1, 4))})
    assert "tf2onnx" not in sys.modules
    assert list(tmp_path.iterdir()) == []
