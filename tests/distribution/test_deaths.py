"""Kill a worker, a parameter server, the evaluator: the outcome is what the documents say."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from gridflow import errors
from gridflow.testing.deaths import kill_task

EPOCHS = 4
STEPS = 256 // 16


def data():
    """Return rows of a linear relation."""
    x = np.random.default_rng(1).normal(size=(256, 3)).astype("float32")
    return {"x": x, "y": (x @ [1.0, 2.0, -1.0]).astype("float32")}


def train(ctx, victims, rows=None):
    """Train; when the second epoch of the first generation begins, tasks are killed."""
    import keras

    with ctx.strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.02), "mse")
    if ctx.is_evaluator:
        return ctx.evaluate_checkpoints(model, _batches(rows))

    class Murder(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 1 and ctx.generation == 0:
                for victim in victims:
                    kill_task(ctx, victim)
                    print(f"killed {victim}", flush=True)

    columns = {"batch_size": 16, "features": "x", "label": "y"}
    history = ctx.fit(model, epochs=EPOCHS, callbacks=[*ctx.callbacks(), Murder()], **columns)
    return {
        "loss": history.history["loss"],
        "steps": int(model.optimizer.iterations.numpy()),
        "weights": model.get_weights(),
    }


def _batches(rows):
    """Return rows in the form that ``model.evaluate`` takes."""
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices((rows["x"], rows["y"])).batch(64)


def test_a_worker_and_the_evaluator_are_replaced_while_training_goes_on(distribute):
    distributor = distribute("parameter_server", ps=1, worker=2, evaluator=1)
    rows = data()
    result = distributor.run(train, ["worker:1", "evaluator:0"], rows, data={"train": rows})
    assert len(result.attempts) == 1
    assert "killed worker:1" in result.logs(0)
    assert "killed evaluator:0" in result.logs(0)
    found = result.value
    assert len(found["loss"]) == EPOCHS
    assert found["loss"][-1] < found["loss"][0] / 4
    # The step that died may have been half done: its update counts, and it is made again.
    assert EPOCHS * STEPS <= found["steps"] <= EPOCHS * STEPS + 2
    kernel, bias = found["weights"]
    loss = np.mean((rows["x"] @ kernel[:, 0] + bias - rows["y"]) ** 2)
    assert result.evaluation[-1]["epoch"] == EPOCHS
    assert result.evaluation[-1]["loss"] == pytest.approx(loss, rel=1e-3)
    assert list((result.tensorboard_dir / "evaluation").glob("*tfevents*"))


def test_the_death_of_a_parameter_server_restarts_the_group_from_its_checkpoint(distribute):
    distributor = distribute("parameter_server", ps=1, worker=1, options={"max_restarts": 1})
    result = distributor.run(train, ["ps:0"], data={"train": data()})
    first, second = result.attempts
    assert first.failure.task == "ps:0"
    assert first.failure.signal == "SIGKILL"
    assert second.resumed_from == (1, 0)
    assert len(result.value["loss"]) == EPOCHS
    assert result.value["steps"] == EPOCHS * STEPS


def test_without_a_restart_the_dead_parameter_server_is_named(distribute):
    with pytest.raises(errors.TrainingFailed) as caught:
        distribute("parameter_server", ps=1, worker=1).run(train, ["ps:0"], data={"train": data()})
    assert caught.value.first.task == "ps:0"
    assert caught.value.first.signal == "SIGKILL"


def train_alone(ctx, rows):
    """Train on one worker; an evaluator watches."""
    import keras

    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=["mae"])
    if ctx.is_evaluator:
        return ctx.evaluate_checkpoints(model, _batches(rows))
    model.fit(_batches(rows), epochs=3, verbose=0, callbacks=ctx.callbacks())
    return model.evaluate(_batches(rows), verbose=0, return_dict=True)


def test_an_evaluator_on_spark_sees_the_last_checkpoint(distribute, spark):
    from gridflow import SparkLauncher

    launcher = SparkLauncher(spark)
    result = distribute("none", launcher=launcher, worker=1, evaluator=1).run(train_alone, data())
    last = result.evaluation[-1]
    assert (last["epoch"], last["step"]) == (3, 0)
    assert {name: last[name] for name in ("loss", "mae")} == pytest.approx(result.value, rel=1e-4)


def test_only_an_evaluator_evaluates_checkpoints(distribute):
    def train(ctx):
        ctx.evaluate_checkpoints(None, None)

    with pytest.raises(errors.TrainingFailed, match="is for the evaluator; this is worker:0"):
        distribute("none", worker=1).run(train)


def test_a_task_that_is_not_here_can_not_be_killed():
    ctx = SimpleNamespace(job="another-job")
    with pytest.raises(ProcessLookupError, match="worker:1 has no training process"):
        kill_task(ctx, "worker:1")
    with pytest.raises(errors.InvalidArgument, match="worker:1"):
        kill_task(ctx, "worker")
