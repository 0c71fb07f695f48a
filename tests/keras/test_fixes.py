"""Each cure: its bug is there without it, and gone with it."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import numpy as np
import pytest
from ranks import run_job

ROWS, BATCH = 64, 16
rng = np.random.default_rng(0)
X = rng.normal(size=(ROWS, 4)).astype("float32")
Y = (X @ np.arange(4, dtype="float32"))[:, None]
DATA = {"rows": {"x": X, "y": Y}, "classes": {"x": X, "y": (Y > 0).astype("int32")}}


def in_new_process(source: str) -> str:
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return ended.stdout.strip()


@pytest.mark.slow
def test_upstream_still_has_each_bug_that_is_cured():
    # When this fails, Keras has cured something: the cure can be taken out.
    found = in_new_process(
        """
        from gridflow.keras import fixes
        for flavour in fixes.FLAVOURS:
            for fix in fixes.known(flavour):
                print(flavour, fix.name, fix.seen())
        """
    )
    assert found.splitlines()
    assert [line for line in found.splitlines() if not line.endswith("True")] == []


@pytest.mark.slow
def test_each_probe_no_longer_sees_its_bug_once_it_is_cured():
    found = in_new_process(
        """
        from gridflow.keras import fixes
        fixes.apply()
        import keras, tf_keras
        source_probes = {"steps", "steps_per_execution"}
        for fix in fixes.apply():
            if fix.name not in source_probes and fix.seen():
                print(fix.flavour, fix.name)
        """
    )
    assert found == ""


@pytest.mark.slow
def test_cures_are_applied_on_import_and_import_nothing_themselves():
    found = in_new_process(
        """
        import sys
        from gridflow.keras import fixes
        assert fixes.apply() == []
        assert not {"keras", "tf_keras", "tensorflow"} & set(sys.modules)
        import keras
        once = fixes.apply()
        assert once and {fix.flavour for fix in once} == {"keras"}
        assert fixes.apply() == once, "applying twice changes nothing"
        from keras.src.backend.tensorflow.trainer import TensorFlowTrainer as trainer
        patched = trainer._maybe_symbolic_build
        fixes.apply()
        assert trainer._maybe_symbolic_build is patched
        assert "tf_keras" not in sys.modules
        import tf_keras
        assert {fix.flavour for fix in fixes.apply()} == {"keras", "tf_keras"}
        print("ok")
        """
    )
    assert found == "ok"


@pytest.mark.slow
def test_probes_leave_tensorflow_unstarted():
    # Devices can be configured, and a multi-worker strategy made, only before the context starts.
    found = in_new_process(
        """
        from gridflow.keras import fixes
        fixes.apply()
        import keras, tf_keras
        from tensorflow.python.eager import context
        print(context.context()._context_handle)
        """
    )
    assert found == "None"


def test_a_probe_that_fails_leaves_keras_usable_and_uncured(caplog):
    from gridflow.keras import fixes

    def seen() -> bool:
        raise AttributeError("internals have moved")

    fix = fixes.Fix("gone", "keras", "", seen, lambda: None)
    assert not fixes._is_seen(fix)
    assert "gone" in caplog.text


def model_of(ctx, keras, **compiled):
    keras.utils.set_random_seed(1)
    with ctx.strategy.scope():
        model = keras.Sequential(
            [
                keras.layers.InputLayer(input_shape=(4,))
                if keras.__name__ == "tf_keras"
                else keras.layers.Input((4,)),
                keras.layers.Dense(8, activation="tanh"),
                keras.layers.Dense(1),
            ]
        )
        options = {"loss": "mse", "metrics": ["mae"], "jit_compile": False, **compiled}
        model.compile(keras.optimizers.SGD(0.01, momentum=0.9), **options)
    return model


def trained(model, history):
    return {
        "weights": [np.array(weight) for weight in model.get_weights()],
        "history": {name: np.array(values) for name, values in history.history.items()},
        "steps": int(model.optimizer.iterations.numpy()),
    }


def everything(ctx, keras):
    import tensorflow as tf

    per_worker = BATCH // ctx.num_workers

    def fit(*args, compiled=None, **options):
        model = model_of(ctx, keras, **(compiled or {}))
        return trained(model, model.fit(*args, verbose=0, epochs=2, **options))

    def rows():
        return ctx.dataset("rows", batch_size=per_worker, features="x", label="y")

    def sliced(array=(X, Y)):
        return tf.data.Dataset.from_tensor_slices(array)

    classes = DATA["classes"]["y"]
    weights = np.linspace(0, 2, ROWS)
    results = {
        "numpy": fit(X, Y, batch_size=BATCH, shuffle=False, validation_data=(X[:32], Y[:32])),
        "numpy, last batch smaller": fit(X[:50], Y[:50], batch_size=BATCH, shuffle=False),
        "tf.data": fit(sliced().batch(BATCH), validation_data=sliced().batch(BATCH)),
        "tf.data of unknown length": fit(sliced().filter(lambda *_: True).batch(BATCH)),
        "class_weight": fit(
            X, classes, batch_size=BATCH, shuffle=False, class_weight={0: 1.0, 1: 3.0}
        ),
        "sample weights": fit(X, Y, batch_size=BATCH, shuffle=False, sample_weight=weights),
        "ctx.dataset": fit(rows(), validation_data=rows()),
        "ctx.dataset, class_weight": fit(
            ctx.dataset("classes", batch_size=per_worker, features="x", label="y"),
            class_weight={0: 1.0, 1: 3.0},
        ),
        "steps_per_execution": fit(rows(), compiled={"steps_per_execution": 3}),
    }
    if keras.__name__ == "keras":
        results["numpy, shuffled"] = fit(X, Y, batch_size=BATCH)
    model = model_of(ctx, keras)
    return results, {
        "evaluate numpy": np.array(model.evaluate(X[:49], Y[:49], batch_size=BATCH, verbose=0)),
        "evaluate tf.data": np.array(model.evaluate(sliced().batch(BATCH), verbose=0)),
        "evaluate ctx.dataset": np.array(model.evaluate(rows(), verbose=0)),
        "predict numpy": model.predict(X[:49], batch_size=BATCH, verbose=0),
        "predict tf.data": model.predict(sliced(X).batch(BATCH), verbose=0),
        "predict ctx.dataset": model.predict(
            ctx.dataset("rows", batch_size=per_worker, features="x"), verbose=0
        ),
    }


def order_of(num_workers: int) -> np.ndarray:
    """Which rows one process's batches hold: its batch k is the union of the workers' batches k."""
    parts = np.arange(ROWS).reshape(num_workers, -1, BATCH // num_workers)
    return parts.transpose(1, 0, 2).reshape(-1)


def in_order_of(num_workers: int) -> dict:
    order = order_of(num_workers)
    return {name: {c: v[order] for c, v in columns.items()} for name, columns in DATA.items()}


def everything_of(ctx, flavour):
    import importlib

    return everything(ctx, importlib.import_module(flavour))


@pytest.fixture(scope="module", params=["keras", "tf_keras"])
def flavour(request):
    return request.param


@pytest.mark.slow
@pytest.mark.usefixtures("by_value", "no_leaks")
@pytest.mark.full(strategy="mirrored")
@pytest.mark.full(flavour="tf_keras")
@pytest.mark.parametrize(("strategy", "workers"), [("mirrored", 1), ("multi_worker_mirrored", 2)])
def test_every_kind_of_data_trains_as_one_process_does(flavour, strategy, workers):
    given = {"arguments": (flavour,)}
    (alone,), _ = run_job(everything_of, data=in_order_of(workers), **given)
    ranks, _ = run_job(everything_of, workers, strategy, data=DATA, **given)
    # A group answers in the order of the rows, whichever batch they came in.
    alone[1]["predict ctx.dataset"] = alone[1]["predict ctx.dataset"][np.argsort(order_of(workers))]
    for fits, others in ranks:
        for name, expected in alone[0].items():
            got = fits[name]
            assert got["steps"] == expected["steps"], name
            for have, want in zip(got["weights"], expected["weights"], strict=True):
                np.testing.assert_allclose(have, want, atol=1e-5, err_msg=name)
            assert got["history"].keys() == expected["history"].keys()
            for key, want in expected["history"].items():
                np.testing.assert_allclose(got["history"][key], want, rtol=1e-5, err_msg=name)
        for name, want in alone[1].items():
            np.testing.assert_allclose(others[name], want, rtol=1e-4, atol=1e-5, err_msg=name)
