"""Training that begins before all rows have arrived, with real processes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from slow_rows import Pace, SlowLauncher

from gridflow import (
    DataError,
    Deadlines,
    LocalLauncher,
    SparkLauncher,
    TensorflowDistributor,
    TrainingFailed,
)
from suite.waiting import wait_for

pytestmark = pytest.mark.slow

QUIET = {"logs": "none", "progress": False}
ROWS, BATCH = 20_000, 500


def data(rows=2 * ROWS):
    """Return rows that a linear model can learn something from."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(rows, 4)).astype("float32")
    return {"train": {"x": x, "y": (x @ [1.0, -2.0, 0.5, 3.0]).astype("float32")}}


def train(ctx, go="", epochs=2, kills=(), **options):
    """Train, and let the last rows come once some steps are made; return what became of it.

    Rank 1 is killed in its first lives, after as many steps of a life as `kills` says.
    """
    import os
    import signal
    from pathlib import Path

    import keras

    steps = []
    kill_at = kills[ctx.generation] if ctx.generation < len(kills) else None

    class Watch(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            steps.append(batch)
            if len(steps) == kill_at and ctx.rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            if go and len(steps) == 5 and ctx.rank == 0:
                Path(go).touch()

    rows = ctx.dataset(
        batch_size=500, features="x", label="y", start="early", **{"shuffle": False, **options}
    )
    with ctx.strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(0.01), "mse")
    done = model.fit(rows, epochs=epochs, verbose=0, callbacks=[*ctx.callbacks(), Watch()])
    once = model.evaluate(rows, verbose=0)
    return {
        "steps": steps,
        "loss": done.history["loss"],
        "weights": model.get_weights(),
        "iterations": int(model.optimizer.iterations.numpy()),
        "evaluated": once,
    }


def epochs_of(result, rank):
    return [record for record in result.ledger.records if record.rank == rank]


@pytest.mark.parametrize("strategy", ["none", "mirrored", "multi_worker_mirrored"])
def test_steps_are_made_while_rows_are_still_to_come(tmp_path, strategy):
    # The last rows come only once five steps have been made.
    workers = 1 if strategy == "mirrored" else 2
    paces = [Pace(holds_until=str(tmp_path / "go"))] * workers
    distributor = TensorflowDistributor(workers, strategy, launcher=SlowLauncher(*paces), **QUIET)
    result = distributor.run(train, str(tmp_path / "go"), data=data(workers * ROWS))
    for rank, value in enumerate(result.values):
        assert value["steps"] == [*range(40), *range(40)]
        assert value["iterations"] == 80
        assert value["loss"][1] < value["loss"][0]
        assert [record.rows_fed for record in epochs_of(result, rank)][:2] == [ROWS, ROWS]
    assert result.ledger.check() == []


def test_the_model_is_that_of_plain_keras_on_the_same_batches(tmp_path):
    import keras

    launcher = SlowLauncher(*[Pace(holds_until=str(tmp_path / "go"))] * 2)
    distributor = TensorflowDistributor(
        2, "multi_worker_mirrored", launcher=launcher, seed=5, **QUIET
    )
    result = distributor.run(train, str(tmp_path / "go"), data=data())
    columns = data()["train"]
    halves = [
        {name: c[half] for name, c in columns.items()} for half in (np.s_[:ROWS], np.s_[ROWS:])
    ]
    keras.utils.set_random_seed(5)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.01), "mse")
    steps = [np.s_[first : first + BATCH] for first in range(0, ROWS, BATCH)]
    x, y = (np.concatenate([h[name][step] for step in steps for h in halves]) for name in "xy")
    done = model.fit(x, y, batch_size=2 * BATCH, shuffle=False, epochs=2, verbose=0)
    for have, want in zip(result.value["weights"], model.get_weights(), strict=True):
        np.testing.assert_allclose(have, want, rtol=0, atol=2e-5)
    np.testing.assert_allclose(result.value["loss"], done.history["loss"], rtol=1e-4)


@pytest.mark.parametrize(
    ("tail", "late", "pause", "step_timeout"),
    [("spread", 5.0, 5.0, 4.0), ("repeat", 0.5, 0.5, 60.0), ("drop", 0.5, 0.5, 60.0)],
)
def test_a_rank_that_gets_few_rows_late_makes_the_steps_of_the_others(
    tail, late, pause, step_timeout
):
    # Rank 1 gets a third of the rows of rank 0, after these; once later than a step may take.
    launcher = SlowLauncher(Pace(), Pace(late=late, pause=pause), shares=(3, 1))
    distributor = TensorflowDistributor(
        2,
        "multi_worker_mirrored",
        launcher=launcher,
        deadlines=Deadlines(step=step_timeout),
        **QUIET,
    )
    result = distributor.run(train, data=data(), tail=tail, shuffle=True)
    steps = {"spread": 60, "repeat": 60, "drop": 20}[tail]
    assert [len(value["steps"]) for value in result.values] == [2 * steps] * 2
    assert result.ledger.check() == []
    (first, *_), (few, *_) = epochs_of(result, 0), epochs_of(result, 1)
    assert first.rows_left_out == (20_000 if tail == "drop" else 0)
    # The last batch that rank 1 could fill is dealt out to all the steps that are left.
    assert few.rows_repeated == {"spread": 0, "repeat": 20_000, "drop": 0}[tail]


def test_a_source_that_breaks_off_ends_the_job_with_its_words():
    launcher = SlowLauncher(Pace(pause=0.3), Pace(pause=0.3, stops_after=3))
    distributor = TensorflowDistributor(2, "multi_worker_mirrored", launcher=launcher, **QUIET)
    with pytest.raises(
        DataError, match="the source of 'train' broke off after 3 batches"
    ) as caught:
        distributor.run(train, data=data())
    assert caught.value.failures[0].task == "worker:1"


def test_a_run_that_was_killed_in_its_first_epoch_ends_with_the_same_weights(tmp_path):
    weights = []
    # Before the last rows have come, in the middle of the epoch, and shortly before its end.
    for kills in ((), (3, 18, 25)):
        go = tmp_path / f"go-{len(kills)}"
        launcher = SlowLauncher(*[Pace(holds_until=str(go))] * 2, shares=(3, 2))
        distributor = TensorflowDistributor(
            2,
            "multi_worker_mirrored",
            launcher=launcher,
            seed=7,
            max_restarts=len(kills),
            checkpoint_every=1,
            **QUIET,
        )
        result = distributor.run(train, str(go), kills=kills, data=data(), shuffle=True)
        assert len(result.attempts) == len(kills) + 1
        assert {life.resumed_from[0] for life in result.attempts[1:]} <= {0}
        assert result.ledger.check() == []
        weights.append(result.value["weights"])
    for have, want in zip(*weights, strict=True):
        np.testing.assert_allclose(have, want, rtol=0, atol=1e-6)


def stopped(ctx, go):
    """End a fit and a loop while rows are still to come; then let them come, and train again."""
    from pathlib import Path

    import keras

    options = {"batch_size": 500, "features": "x", "label": "y", "start": "early"}

    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = batch == 8  # the last one whose rows are there

    with ctx.strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    rows = ctx.dataset(**options)
    short = model.fit(rows, verbose=0, callbacks=[*ctx.callbacks(), Stop()])
    for step, _ in enumerate(ctx.dataset(**options)):
        if step == 8:
            break
    Path(go).touch()
    again = model.fit(rows, epochs=2, verbose=0, callbacks=ctx.callbacks())
    return len(short.history["loss"]), len(again.history["loss"])


def test_a_fit_that_ends_before_all_rows_have_arrived_waits_for_none(tmp_path):
    go = str(tmp_path / "go")
    launcher = SlowLauncher(*[Pace(holds_until=go)] * 2)
    distributor = TensorflowDistributor(2, "multi_worker_mirrored", launcher=launcher, **QUIET)
    result = distributor.run(stopped, go, data=data())
    assert list(result.values) == [(1, 2)] * 2
    assert result.ledger.check() == []


def own_loops(ctx):
    """Go through the rows twice by hand, and try what is refused."""
    import keras
    from gridflow.errors import InvalidArgument

    options = {"batch_size": 500, "features": "x", "start": "early"}
    rows = ctx.dataset(**options)
    seen = [[len(batch) for batch in rows] for _ in range(2)]
    taken = [len(list(rows.take(steps))) for steps in (3, 2)]
    labelled = ctx.dataset(label="y", **options)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    said = []
    for compiling, fitting in (({}, {"steps_per_epoch": 3}), ({"steps_per_execution": 4}, {})):
        model.compile("sgd", "mse", **compiling)
        try:
            model.fit(labelled, verbose=0, **fitting)
        except InvalidArgument as error:
            said.append(str(error))
    model.compile("sgd", "mse")
    model.fit(labelled, validation_data=ctx.dataset("test", label="y", **options), verbose=0)
    import tf_keras

    old = tf_keras.Sequential([tf_keras.layers.Dense(1, input_shape=(4,))])
    old.compile("sgd", "mse")
    try:
        old.fit(labelled, verbose=0)
    except InvalidArgument as error:
        said.append(str(error))
    try:
        ctx.dataset("trian", **options)
    except ValueError as error:
        said.append(str(error))
    return seen, taken, said


def test_a_loop_of_ones_own_ends_by_itself_and_what_cannot_be_is_refused():
    rows = data(2 * 6000)["train"]
    distributor = TensorflowDistributor(2, "none", launcher=LocalLauncher(), **QUIET)
    result = distributor.run(own_loops, data={"train": rows, "test": rows})
    for seen, taken, said in result.values:
        assert seen == [[500] * 12] * 2
        assert taken == [3, 2]
        assert "steps_per_epoch=3 is for data of known length" in said[0]
        assert "steps_per_execution=4 runs several steps at once" in said[1]
        assert "is for Keras 3" in said[2]
        assert "unknown dataset 'trian'; there is 'train', 'test'. Did you mean" in said[3]
    assert result.ledger.check() == []


def wrong(ctx, start="early"):
    """Ask for what isn't there."""
    ctx.dataset(batch_size=1, features="x", start=start)


@pytest.mark.parametrize(
    ("options", "given", "said"),
    [
        ({}, "erly", "start must be one of 'complete', 'early'; got 'erly'. Did you mean 'early'"),
        ({"backend": "jax"}, "early", "start='early' isn't available .* backend='jax'"),
    ],
)
def test_what_can_not_begin_early_is_refused_with_the_reason(options, given, said):
    distributor = TensorflowDistributor(1, "none", launcher=LocalLauncher(), **options, **QUIET)
    with pytest.raises(TrainingFailed, match=said):
        distributor.run(wrong, given, data=data(100))


def test_on_spark_steps_are_made_while_the_stage_still_computes_rows(spark, tmp_path):
    go = str(tmp_path / "go")
    launcher = SparkLauncher(spark, repartition="never")  # executors run this Python from now on

    def holding(batches):
        for number, batch in enumerate(batches):
            if number == 5:
                wait_for(Path(go).exists, "the first steps")
            yield batch

    numbers = spark.range(0, 120_000, 1, 2).mapInArrow(holding, "id long")
    columns = "array(float(id % 7), float(id % 5), float(id % 3), 1.0f)"
    frame = numbers.selectExpr(f"{columns} AS x", "float(id % 7) AS y")
    distributor = TensorflowDistributor(2, "multi_worker_mirrored", launcher=launcher, **QUIET)
    result = distributor.run(train, go, data=frame)
    for value in result.values:
        assert len(value["steps"]) == 240
    assert result.ledger.check() == []
    assert {counts.rows for counts in result.ledger.counts.values()} == {60_000}


def test_on_spark_rows_that_can_not_be_computed_end_the_job_in_the_first_epoch(spark, tmp_path):
    go = str(tmp_path / "go")
    launcher = SparkLauncher(spark, repartition="never")  # executors run this Python from now on

    def failing(batches):
        for number, batch in enumerate(batches):
            if number == 5:
                wait_for(Path(go).exists, "the first steps")
                raise ValueError("these rows are cursed")
            yield batch

    numbers = spark.range(0, 120_000, 1, 2).mapInArrow(failing, "id long")
    frame = numbers.selectExpr("array(1.0f, 2.0f, 3.0f, 4.0f) AS x", "1.0f AS y")
    distributor = TensorflowDistributor(2, "multi_worker_mirrored", launcher=launcher, **QUIET)
    with pytest.raises(DataError, match="these rows are cursed"):
        distributor.run(train, go, data=frame)
