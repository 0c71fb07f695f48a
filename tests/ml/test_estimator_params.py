"""What an estimator is given, before anything runs: Params, columns, turns, curves."""

from __future__ import annotations

import functools
import sys
import threading
import time
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from pyspark.ml.tuning import ParamGridBuilder

from gridflow import LocalLauncher, TensorflowDistributor, errors
from gridflow._spec import markup
from gridflow.ml import KerasEstimator
from gridflow.ml.estimator import columns, keras_objects, slots
from gridflow.ml.estimator.slots import Turns
from suite.waiting import patience

EXAMPLES = Path(__file__).resolve().parents[2] / ".cache" / "examples"


def make_model(width=1):
    return width


def test_params_are_those_of_spark():
    est = KerasEstimator(model=make_model, epochs=np.int32(3), labelCol=("a", "b"))
    assert est.setBatchSize(8.0).getBatchSize() == 8
    assert (est.getEpochs(), est.getLabelCol(), est.getFeaturesCol()) == (3, ["a", "b"], "features")
    assert "epochs: number of passes over all rows (default: 1, current: 3)" in est.explainParams()
    for param in est.params:
        title = param.name[0].upper() + param.name[1:]
        assert callable(getattr(est, f"set{title}"))
        assert callable(getattr(est, f"get{title}"))
    grid = (
        ParamGridBuilder().addGrid(est.epochs, [1, 2]).addGrid(est.learningRate, [1, 0.1]).build()
    )
    assert [each[est.learningRate] for each in grid] == [1.0, 0.1, 1.0, 0.1]
    changed = est.copy(grid[3])
    assert (changed.getEpochs(), est.getEpochs(), changed.uid) == (2, 3, est.uid)
    assert not est.setEpochs(None).isSet("epochs")


@pytest.mark.parametrize(
    ("params", "error", "text"),
    [
        (
            {"epochs": 0},
            errors.InvalidArgument,
            "epochs must be a whole number of at least 1; got 0",
        ),
        ({"epochs": 1.5}, TypeError, 'value given for param "epochs"'),
        ({"epochs": True}, TypeError, 'value given for param "epochs"'),
        ({"learningRate": -1}, errors.InvalidArgument, "greater than 0; got -1"),
        ({"featuresCol": []}, TypeError, "a column's name, a list of names"),
        ({"featuresCol": {"x": 3}}, TypeError, "3 is not a column or a list"),
        ({"predictionCol": ["p", "p"]}, TypeError, "names a column twice"),
        ({"model": 3}, TypeError, "a Keras model, or a function without arguments"),
        ({"model": lambda width: width}, TypeError, "functools.partial to fill them in"),
        ({"metrics": "mae"}, TypeError, r"it must be a list, such as \['mae'\]"),
        ({"callbacks": 3}, TypeError, "a list of Keras callbacks"),
        ({"callbacks": ["EarlyStopping"]}, TypeError, r"a list of Keras callbacks.*EarlyStopping"),
        ({"optimizer": 0.01}, TypeError, "it is an optimizer of Keras.*got 0.01"),
        ({"loss": 5}, TypeError, "it is a loss of Keras.*got 5"),
        ({"backend": "tensor"}, errors.InvalidArgument, "Did you mean 'tensorflow'"),
        ({"gpus": 0.7}, errors.InvalidArgument, "gpus must be a whole number of GPUs"),
        ({"distributor": object()}, TypeError, "a dict of what TensorflowDistributor takes"),
        ({"customObjects": [1]}, TypeError, "maps names to classes"),
        ({"map": 3}, TypeError, "a function of batches.*got 3"),
        ({"weightCol": {"a": ["w", "v"]}}, TypeError, 'value given for param "weightCol"'),
        ({"classWeight": [1, 2]}, TypeError, "it maps classes to weights"),
        ({"classWeight": {0: -1}}, errors.InvalidArgument, "at least 0; got -1 for class 0"),
        ({"classWeight": {"a": 1}}, (TypeError, ValueError), "classWeight|'a'"),
        ({"earlyStopping": "loss"}, TypeError, r"such as \('val_loss', 3\)"),
        ({"earlyStopping": ("loss", -1)}, errors.InvalidArgument, "patience .* at least 0; got -1"),
        ({"earlyStopping": ("loss", 1, "most")}, errors.InvalidArgument, "mode"),
    ],
)
def test_a_value_that_cannot_be_is_refused_at_once(params, error, text):
    with pytest.raises(error, match=text):
        KerasEstimator(**params)


def test_names_that_are_none_are_refused():
    with pytest.raises(errors.InvalidArgument, match="no Param 'epoch'.*Did you mean 'epochs'"):
        KerasEstimator().setParams(epoch=3)
    assert KerasEstimator(model=functools.partial(make_model, width=3)).getModel()() == 3


@pytest.mark.parametrize(
    ("form", "names", "found"),
    [
        ("x", ["input"], {"input": "x"}),
        (["x"], ["input"], {"input": "x"}),
        (["a", "b"], ["input"], {"input": ["a", "b"]}),
        ([["a", "b"]], ["input"], {"input": ["a", "b"]}),
        (["b", "a"], ["a", "b"], {"a": "a", "b": "b"}),
        (["x", "y"], ["a", "b"], {"a": "x", "b": "y"}),
        ({"b": ["x", "y"], "a": "z"}, ["a", "b"], {"a": "z", "b": ["x", "y"]}),
    ],
)
def test_columns_find_their_inputs(form, names, found):
    assert columns.arranged(columns.checked_form(form), names, "input") == found


@pytest.mark.parametrize(
    ("form", "found"),
    [
        ("x", {"input": "x"}),
        (["x"], {"input": "x"}),
        ([["a", "b"]], {"input": ["a", "b"]}),
        (["a", "b"], {"a": "a", "b": "b"}),
        ({"i": ["a", "b"]}, {"i": ["a", "b"]}),
    ],
)
def test_columns_of_models_that_declare_nothing(form, found):
    assert columns.undeclared(columns.checked_form(form)) == found


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("x", "say which columns belong to each: {'a': …, 'b': …}"),
        ({"a": "x"}, "the model's inputs 'b' got no column"),
        ({"a": "x", "c": "y"}, "no input 'c'; it has 'a', 'b'"),
    ],
)
def test_columns_that_fit_no_input_are_refused(form, text):
    with pytest.raises(errors.InvalidArgument, match=text):
        columns.arranged(columns.checked_form(form), ["a", "b"], "input")


def test_turns_are_taken_in_order_as_far_as_there_is_room():
    turns, running, most, order = Turns(), [], [], []

    def fit(number, share, is_there):
        def ask():
            is_there.set()
            return share

        with turns.take(ask, lambda: Fraction(0), patience()):
            running.append(min(share, Fraction(1)))
            most.append(sum(running))
            order.append(number)
            all_are_there.wait(patience())
            running.remove(min(share, Fraction(1)))

    threads, all_are_there = [], threading.Event()
    for number, share in enumerate((Fraction(1, 2), Fraction(1, 2), Fraction(3), Fraction(1, 2))):
        is_there = threading.Event()
        threads.append(threading.Thread(target=fit, args=(number, share, is_there)))
        threads[-1].start()
        assert is_there.wait(patience())
    all_are_there.set()
    for thread in threads:
        thread.join(patience())
    assert max(most) == 1
    assert order == [0, 1, 2, 3]


def test_a_turn_waits_for_other_jobs_as_long_as_its_patience():
    turns, began = Turns(), time.monotonic()
    with turns.take(lambda: Fraction(1, 2), lambda: Fraction(1), 0.3):
        assert time.monotonic() - began > 0.3
    asked = iter([1, 1, 0])
    with turns.take(lambda: Fraction(1, 2), lambda: Fraction(next(asked)), patience()):
        assert next(asked, "none left") == "none left"


@pytest.mark.parametrize(
    ("there", "gpus", "share"),
    [(None, 0, 1), (8, 0, Fraction(1, 4)), (1, 0, 2), (8, 1, 1)],
)
def test_a_job_needs_the_share_of_the_slots_that_its_tasks_have(monkeypatch, there, gpus, share):
    monkeypatch.setattr(slots, "task_slots", lambda spark: there)
    monkeypatch.setattr(slots, "setting_of", lambda spark, name, default="": default)
    job = TensorflowDistributor(2, "none", launcher=LocalLauncher(), gpus=gpus)
    assert slots.share_of(object(), job) == share


def test_objects_of_keras_are_revived_wherever_they_are():
    def revive(described, custom_objects):
        return described["class_name"], sorted(custom_objects)

    package = SimpleNamespace(saving=SimpleNamespace(deserialize_keras_object=revive))
    mse = {"class_name": "MSE", "config": {}}
    given = {"a": mse, "b": ["mae", {"c": mse}], "d": None}
    assert keras_objects.revived(given, package, {"Mine": object}) == {
        "a": ("MSE", ["Mine"]),
        "b": ["mae", {"c": ("MSE", ["Mine"])}],
        "d": None,
    }


def test_a_table_shows_numbers_and_escapes_names():
    shown = markup.history_view({"loss": [1 / 3, 0.25], "<b>": [1e-9]})
    assert "<th>&lt;b&gt;</th>" in shown
    assert "0.333333" in shown
    assert "1e-09" in shown
    assert "<b>" not in shown
    assert "… 60 more …" in markup.table(["a"], [[n] for n in range(100)])


def test_a_plan_is_a_table_in_a_notebook():
    from gridflow._spec.cluster import Task
    from gridflow._spec.option_groups import Deadlines
    from gridflow._spec.plan import Plan

    left_out = {"train": {"m": "column 'm' is a map<string,int>"}}
    tasks = (Task("worker", 0),)
    plan = Plan(tasks, "none", "local", 2, 10, (), 300.0, Deadlines(), left_out=left_out)
    assert "worker:0</td>" in plan._repr_html_()
    assert "map&lt;string,int&gt;" in plan._repr_html_()
    assert str(plan).splitlines()[-1].startswith("left out       column 'm'")


def test_the_curve_has_a_panel_for_each_metric(monkeypatch):
    from gridflow.ml import plotting

    monkeypatch.syspath_prepend(str(EXAMPLES))
    if not EXAMPLES.is_dir():
        pytest.skip("make examples brings matplotlib")
    figure = plotting.learning_curve({"loss": [2.0, 1.0], "val_loss": [3.0, 2.0], "mae": [1.0]})
    assert [axes.get_ylabel() for axes in figure.axes] == ["loss", "mae"]
    assert [len(axes.lines) for axes in figure.axes] == [2, 1]
    assert figure._repr_png_().startswith(b"\x89PNG")


def test_a_curve_without_epochs_or_matplotlib_says_so(monkeypatch):
    from gridflow.ml import plotting

    with pytest.raises(errors.InvalidArgument, match="nothing to draw"):
        plotting.learning_curve({})
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    with pytest.raises(errors.MissingDependency, match=r"gridflow\[plot\]"):
        plotting.learning_curve({"loss": [1.0]})
