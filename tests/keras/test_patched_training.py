"""Groups train with the patches as one process does, and each of a group's own bugs is patched."""

from __future__ import annotations

import numpy as np
import pytest
from ranks import run_job

from suite.new_process import skip_without

ROWS, BATCH = 64, 16
GROUP = "multi_worker_mirrored"
rng = np.random.default_rng(0)
X = rng.normal(size=(ROWS, 4)).astype("float32")
Y = (X @ np.arange(4, dtype="float32"))[:, None]
DATA = {"rows": {"x": X, "y": Y}, "classes": {"x": X, "y": (Y > 0).astype("int32")}}


def exchanging_by_itself(ctx):
    """Train with a Keras that wraps models and adds up metrics, as it does from 3.16 on."""
    import torch
    from torch import distributed
    from torch.nn.parallel import DistributedDataParallel

    import keras
    from gridflow._keras.patches import private_parts, registry
    from gridflow._keras.patches.bugs import torch as torch_groups

    trainer, base = private_parts.trainer(), private_parts.base_trainer()
    applied = {fix.name for fix in registry.apply()}
    if distributed.is_initialized() and not hasattr(trainer, "_initialize_ddp"):
        make = trainer.make_train_function

        def _initialize_ddp(self):
            if self.ddp_model is None:
                object.__setattr__(self, "ddp_model", DistributedDataParallel(self))

        def make_train_function(self, force=False):
            self._initialize_ddp()
            make(self, force)

        def get_metrics_result(self):
            for variable in self.metrics_variables:
                distributed.all_reduce(variable.value)
            return base.get_metrics_result(self)

        trainer.ddp_model = None
        trainer._initialize_ddp = _initialize_ddp
        trainer.make_train_function = make_train_function
        trainer.get_metrics_result = get_metrics_result
        fix = torch_groups.fix()
        applied |= {fix.name} if registry.put_in(fix) else set()

    class Rows(keras.metrics.Sum):
        def update_state(self, y_true, y_pred, sample_weight=None):
            return super().update_state(torch.ones_like(y_true))

    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1), "mse", metrics=[Rows(name="rows")])
    data = ctx.dataset("rows", batch_size=BATCH // ctx.num_workers, features="x", label="y")
    history = model.fit(data, epochs=2, verbose=0).history
    return applied, getattr(model, "ddp_model", None), history, model.get_weights()


@pytest.mark.slow
@pytest.mark.usefixtures("by_value", "no_leaks")
def test_a_keras_that_exchanges_gradients_by_itself_on_torch_is_kept_from_it():
    skip_without("torch")
    given = {"strategy": GROUP, "backend": "torch"}
    ((_, _, alone, weights),), _ = run_job(exchanging_by_itself, data=in_order_of(2), **given)
    ranks, _ = run_job(exchanging_by_itself, 2, data=DATA, **given)
    for applied, wrapped, history, own in ranks:
        assert "models are exchanged in each step" in applied
        assert wrapped is None
        assert history["rows"] == [ROWS, ROWS]
        np.testing.assert_allclose(history["loss"], alone["loss"], rtol=1e-5)
        for have, want in zip(own, weights, strict=True):
            np.testing.assert_allclose(have, want, atol=1e-6)


def patches_of_a_group(ctx):
    from gridflow._keras.patches import registry

    return {fix.name for fix in registry.apply()}, {
        f.name for f in registry.known("keras") if f.seen()
    }


@pytest.mark.slow
@pytest.mark.usefixtures("by_value", "no_leaks")
def test_upstream_still_has_the_bugs_of_groups_that_are_patched_on_jax():
    # When this fails, Keras has patched it: the patch can be taken out.
    skip_without("jax")
    for applied, left in run_job(patches_of_a_group, 2, GROUP, backend="jax")[0]:
        assert "variables are made alone" in applied
        assert left == set()


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
def test_every_kind_of_data_trains_as_one_process_does(flavour):
    strategy, workers = "multi_worker_mirrored", 2
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
