"""A rank's process dies, or all of its agent, and the others go on in their processes.

They do so as soon as there is a new one in its place.
"""

from __future__ import annotations

import functools
import math
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from gridflow import LocalLauncher, Restarts, SparkLauncher, TensorflowDistributor, TrainingFailed
from suite.deaths import kill_as_it_starts

pytestmark = pytest.mark.slow

WORKERS, BATCH, EPOCHS = 3, 8, 3
#: Steps of an epoch: 200 rows.
STEPS = 9
_RNG = np.random.default_rng(0)
X = _RNG.normal(size=(200, 4)).astype(np.float32)
ROWS = {"x": X, "y": X[:, 0] ** 2}


def train(ctx, deaths, folder, flavour="keras", fits=1, victim="process"):
    """Train; a rank dies once after each of its steps in ``deaths``, a dict of rank to steps.

    Instead of a step: "first", before its variables are made; "between", before the second of two
    fits; "again", as the fit begins once more after another death; or a float, so many seconds
    after the third step, wherever that is. With two fits, steps of the first one count up to 0. The
    victim is its process, its agent, or the executor. A new process draws other first values.
    """
    import importlib
    import threading

    from gridflow._agent.executor import executor_above
    from gridflow.testing.deaths import agent_of_this_task

    keras = importlib.import_module(flavour)

    def dies_once(when):
        mark = Path(folder, f"{ctx.rank}-{when}")
        if when in deaths.get(ctx.rank, ()) and not mark.exists():
            mark.touch()
            agent = agent_of_this_task()
            pids = {"process": os.getpid(), "agent": agent}
            os.kill(pids[victim] if victim in pids else executor_above(agent).pid, signal.SIGKILL)
            time.sleep(60)

    before = ctx.all_gather(os.getpid())
    is_new = any(Path(folder).glob(f"{ctx.rank}-*"))
    keras.utils.set_random_seed(99 if is_new else 3)
    dies_once("first")
    with ctx.strategy.scope():
        layers = [keras.layers.Dense(16, "relu"), keras.layers.Dropout(0.2, seed=5)]
        model = keras.Sequential([*layers, keras.layers.Dense(1)])
        model.build((None, 4))
        model.compile(keras.optimizers.Adam(0.01), "mse")

    class Dies(keras.callbacks.Callback):
        def __init__(self, before=0):
            super().__init__()
            self.done = before

        def on_train_begin(self, logs=None):
            if any(Path(folder).iterdir()):
                dies_once("again")

        def on_train_batch_end(self, batch, logs=None):
            self.done += 1
            dies_once(self.done)
            for when in deaths.get(ctx.rank, ()) if self.done == 3 else ():
                if isinstance(when, float):
                    self.timer = threading.Timer(when, dies_once, [when])
                    self.timer.start()
            if any(isinstance(each, float) for found in deaths.values() for each in found):
                time.sleep(0.01)

        def on_train_end(self, logs=None):
            if hasattr(self, "timer"):
                self.timer.cancel()

    rows = functools.partial(ctx.dataset, batch_size=BATCH, features=["x"], label="y")
    first = []
    if fits == 2:
        callbacks = [*ctx.callbacks(), Dies(-2 * STEPS)]
        made = model.fit(rows(), epochs=2, verbose=0, callbacks=callbacks)
        first = made.history["loss"]
        dies_once("between")
        model.layers[0].trainable = False
        with ctx.strategy.scope():
            model.compile(keras.optimizers.Adam(0.01), "mse")
    history = model.fit(
        rows(shuffle=True),
        validation_data=rows(),
        epochs=EPOCHS,
        verbose=0,
        callbacks=[*ctx.callbacks(), Dies()],
    )
    weights = np.concatenate([np.ravel(weight) for weight in model.get_weights()])
    return {
        "before": before,
        "after": ctx.all_gather(os.getpid()),
        "iterations": int(model.optimizer.iterations.numpy()),
        "weights": weights,
        "val_loss": history.history["val_loss"],
        "epochs": [len(values) for values in history.history.values()],
        "first": ctx.all_gather(first),
    }


def run(function, *args, **options):
    return start(function, *args, **options).result()


def start(function, *args, replacements=2, launcher=None, data=ROWS, workers=WORKERS, **options):
    distributor = TensorflowDistributor(
        workers,
        "multi_worker_mirrored",
        launcher=launcher or LocalLauncher(),
        seed=1,
        restarts=Restarts(max_replacements=replacements),
        logs="none",
        progress=False,
        **options,
    )
    return distributor.start(function, *args, data={"train": data})


def kept(value):
    """Return the ranks that ended in the process in which they began."""
    pairs = zip(value["before"], value["after"], strict=True)
    return [rank for rank, (old, new) in enumerate(pairs) if old == new]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Give what a run returns in which nobody dies."""
    return run(train, {}, str(tmp_path_factory.mktemp("marks")), replacements=0).value


@pytest.mark.parametrize(
    "deaths",
    [
        {1: [5]},
        {0: [STEPS]},
        {0: [STEPS + 2], 2: [STEPS + 2]},
        {1: [5], 2: ["again"]},
        {0: ["first"]},
        {0: ["first"], 1: ["again"]},
    ],
    ids=[
        "in an epoch",
        "the chief, at an epoch's end",
        "two at once",
        "one after the other",
        "before the fit",
        "before the fit, and another as it begins",
    ],
)
def test_the_others_go_on_in_their_processes_and_the_model_is_the_same(
    undisturbed, deaths, tmp_path
):
    result = run(train, deaths, str(tmp_path))
    value = result.value
    assert kept(value) == [rank for rank in range(WORKERS) if rank not in deaths]
    assert value["iterations"] == undisturbed["iterations"] == EPOCHS * STEPS
    np.testing.assert_allclose(value["weights"], undisturbed["weights"], atol=1e-6)
    np.testing.assert_allclose(value["val_loss"], undisturbed["val_loss"], atol=1e-6)
    assert value["epochs"] == [EPOCHS, EPOCHS]
    assert [each.failure for each in result.attempts] == [None]
    lost = [failure for each in result.attempts for failure in each.replaced]
    assert sorted(each.task for each in lost) == [f"worker:{rank}" for rank in sorted(deaths)]
    assert {each.signal for each in lost} == {"SIGKILL"}
    assert result.ledger.check() == []


@pytest.mark.parametrize("after", [0.02, 0.07, 0.13, 0.19, 0.26])
def test_wherever_a_rank_is_the_model_is_the_same(undisturbed, after, tmp_path):
    """In an exchange of gradients or of logs, before an epoch's first step, between two steps."""
    value = run(train, {1: [after]}, str(tmp_path)).value
    assert value["iterations"] == undisturbed["iterations"]
    np.testing.assert_allclose(value["weights"], undisturbed["weights"], atol=1e-6)


@pytest.mark.parametrize("rank", [0, 2])
def test_a_rank_that_dies_before_all_have_met_is_replaced(undisturbed, rank, tmp_path):
    handle = start(train, {}, str(tmp_path))
    kill_as_it_starts(handle, f"worker:{rank}")
    result = handle.result()
    assert [each.failure for each in result.attempts] == [None]
    assert [each.task for each in result.attempts[0].replaced] == [f"worker:{rank}"]
    np.testing.assert_allclose(result.value["weights"], undisturbed["weights"], atol=1e-6)
    assert result.ledger.check() == []


def test_a_new_process_passes_over_the_fits_that_the_others_have_behind_them(tmp_path):
    values = []
    # Also behind one that was taken up again when only its end was left.
    for deaths in ({}, {0: [5]}, {1: [0], 0: [5]}, {0: ["between"]}):
        folder = tmp_path / str(len(values))
        folder.mkdir()
        values.append(run(train, deaths, str(folder), "keras", 2).value)
        assert kept(values[-1]) == [rank for rank in range(WORKERS) if rank not in deaths]
        np.testing.assert_allclose(values[-1]["weights"], values[0]["weights"], atol=1e-6)
        assert values[-1]["epochs"] == [EPOCHS, EPOCHS]
    assert values[1]["first"] == [values[0]["first"][0]] * WORKERS


@pytest.mark.parametrize("victim", ["process", "agent", "executor"])
def test_executors_of_spark_keep_their_tasks(spark, victim, tmp_path):
    rows = [(x.tolist(), float(y)) for x, y in zip(ROWS["x"], ROWS["y"], strict=True)]
    frame = spark.createDataFrame(rows, "x array<float>, y float")
    options = {"launcher": SparkLauncher(spark), "data": frame, "workers": 2}
    result = run(train, {0: [5]}, str(tmp_path), "keras", 1, victim, **options)
    assert kept(result.value) == [1]
    assert result.value["iterations"] == EPOCHS * math.ceil(len(rows) / (2 * BATCH))
    assert [each.failure for each in result.attempts] == [None]
    assert result.ledger.check() == []


@pytest.mark.parametrize("rank", [0, 1])
def test_a_lost_agent_has_a_successor(undisturbed, rank, tmp_path):
    result = run(train, {rank: [STEPS + 3]}, str(tmp_path), "keras", 1, "agent")
    value, (attempt,) = result.value, result.attempts
    assert kept(value) == [each for each in range(WORKERS) if each != rank]
    np.testing.assert_allclose(value["weights"], undisturbed["weights"], atol=1e-6)
    np.testing.assert_allclose(value["val_loss"], undisturbed["val_loss"], atol=1e-6)
    assert [(each.task, each.kind) for each in attempt.replaced] == [(f"worker:{rank}", "lost")]
    assert result.ledger.check() == []


def test_models_of_tf_keras_go_on(tmp_path):
    value = run(train, {1: [5]}, str(tmp_path), "tf_keras").value
    assert value["iterations"] == EPOCHS * STEPS
    assert kept(value) == [0, 2]


def test_a_program_that_exits_twice_alike_is_the_jobs_failure():
    def fails(ctx):
        import keras

        with ctx.strategy.scope():
            model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
            model.compile("sgd", "mse")

        def exits(batch, logs):
            if batch >= 2 and ctx.rank == 1:
                os._exit(7)

        rows = ctx.dataset("train", batch_size=BATCH, features=["x"], label="y")
        leaves = keras.callbacks.LambdaCallback(on_train_batch_end=exits)
        model.fit(rows, verbose=0, callbacks=[*ctx.callbacks(), leaves])

    with pytest.raises(TrainingFailed, match="exited with code 7") as caught:
        run(fails, replacements=5)
    assert caught.value.first.task == "worker:1"


def test_what_cant_go_on_names_the_death_or_restarts_as_a_whole():
    """Only fits go on: the others of a loop of one's own end, and then the group restarts."""

    def loops(ctx):
        import tensorflow as tf

        for step in range(20):
            if ctx.generation == 0 and ctx.rank == 1 and step == 5:
                os.kill(os.getpid(), signal.SIGKILL)
            ctx.strategy.reduce("SUM", tf.constant(1.0), axis=None)
            time.sleep(0.02)
        return ctx.generation

    with pytest.raises(TrainingFailed, match="SIGKILL") as caught:
        run(loops)
    assert caught.value.first.task == "worker:1"
    assert run(loops, max_restarts=1).value == 1


def test_nobody_exchanges_values_alone_where_a_rank_was_lost_before_all_had_met():
    def adds_up(ctx):
        return float(ctx.strategy.reduce("SUM", 1.0, axis=None)), ctx.generation

    handle = start(adds_up, max_restarts=1)
    kill_as_it_starts(handle, "worker:1")
    assert handle.result().values == [(WORKERS, 1)] * WORKERS
