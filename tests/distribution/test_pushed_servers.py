"""Rows that are pushed to parameter servers: each is trained on, and the ledger knows of twice."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

from gridflow import InvalidArgument, TrainingFailed
from suite.counted import counting_model, killing_callback, times_trained

ROWS = 130


def rows():
    """Return rows of which each has a weight of its own in a linear model."""
    return {"x": np.eye(ROWS, dtype="float32"), "y": np.zeros(ROWS, "float32")}


def count(ctx, victim=None, at=6, flavour="keras", **options):
    """Return how often each row was trained on, though a worker dies."""
    keras = importlib.import_module(flavour)

    model = counting_model(ctx, keras, ROWS, slow=victim is not None)
    killing = killing_callback(ctx, keras, victim, at)
    stream = ctx.stream(8, features="x", label="y")
    history = ctx.fit(model, stream, callbacks=[*ctx.callbacks(), killing], **options)
    return {
        "times": times_trained(model),
        "updates": int(model.optimizer.iterations.numpy()),
        "loss": history.history["loss"],
    }


@pytest.mark.parametrize("flavour", ["keras", "tf_keras"])
def test_each_row_is_trained_on_once_an_epoch(distribute, flavour):
    with distribute("parameter_server", ps=1, worker=2).start(count, flavour=flavour) as job:
        assert job.feed(rows(), epochs=2) == 2 * ROWS
        job.feed({"x": np.eye(ROWS, dtype="float32")[:5], "y": np.zeros(5, "float32")})
    result = job.result()
    assert result.value["times"] == [3] * 5 + [2] * (ROWS - 5)
    assert result.value["updates"] == -(-(2 * ROWS + 5) // 8)
    assert len(result.value["loss"]) == 1
    (record,) = result.ledger.records
    assert (record.rows_fed, record.rows_repeated, record.complete) == (2 * ROWS + 5, 0, True)
    assert result.ledger.check() == []


def test_what_a_dead_worker_had_goes_to_another_and_the_ledger_knows_what_came_twice(distribute):
    with distribute("parameter_server", ps=1, worker=2).start(count, "worker:1") as job:
        assert job.feed(rows(), epochs=2) == 2 * ROWS
    result = job.result()
    assert len(result.attempts) == 1  # the worker alone was replaced
    times = np.array(result.value["times"])
    assert times.min() >= 2
    (record,) = result.ledger.records
    assert record.rows_repeated == times.sum() - 2 * ROWS
    assert record.rows_fed == times.sum()
    assert result.ledger.check() == []


def test_a_dead_parameter_server_lets_all_go_on_where_the_checkpoint_was(distribute):
    options = {"max_restarts": 1, "checkpoint_every": 4}
    distributor = distribute("parameter_server", ps=1, worker=2, options=options)
    with distributor.start(count, "ps:0", 14) as job:
        assert job.feed(rows(), epochs=2) == 2 * ROWS
    result = job.result()
    assert result.attempts[0].failure.task == "ps:0"
    assert result.value["times"] == [2] * ROWS
    assert result.ledger.check() == []


def test_what_a_stream_cant_be_for_parameter_servers_is_said(distribute):
    def several(ctx):
        import keras

        with ctx.strategy.scope():
            model = keras.Sequential([keras.Input((ROWS,)), keras.layers.Dense(1)])
            model.compile("sgd", "mse")
        stream = ctx.stream(8, features="x", label="y")
        for options in ({"epochs": 2}, {"validation": stream}):
            try:
                ctx.fit(model, stream, **options)
            except InvalidArgument as error:
                print(error)
        raise SystemExit(3)

    with (
        pytest.raises(TrainingFailed) as caught,
        distribute("parameter_server", ps=1, worker=1).start(several) as job,
    ):
        job.feed(rows())
    words = str(caught.value)
    assert "one epoch" in words
    assert "can't be evaluated on them" in words
