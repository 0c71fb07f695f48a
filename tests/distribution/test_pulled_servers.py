"""Rows of run(data=…) under parameter servers: each once an epoch, or the ledger says so."""

from __future__ import annotations

import importlib
import itertools

import numpy as np
import pytest

from suite.counted import counting_model, killing_callback, times_trained

ROWS, EPOCHS, BATCH = 131, 2, 8


def rows():
    """Return rows of which each has a weight of its own in a linear model."""
    return {"x": np.eye(ROWS, dtype="float32"), "y": np.zeros(ROWS, "float32")}


def count(ctx, victim=None, flavour="keras", loses=False):
    """Return how often each row was trained on, though a worker dies or what steps say is lost."""
    keras, lost = importlib.import_module(flavour), []
    if loses:
        from gridflow._keras.servers import pulled

        fetch, turns = pulled.fetch, itertools.count()

        def losing(step):
            found = fetch(step)
            if found is None or next(turns) % 7:
                return found
            lost.append(int(found[1]) >= 0)  # else it was a step on nothing
            return None

        pulled.fetch = losing

    model = counting_model(ctx, keras, ROWS, slow=victim is not None)
    killing = killing_callback(ctx, keras, victim, 9)
    columns = {"batch_size": BATCH, "features": "x", "label": "y"}
    history = ctx.fit(
        model, epochs=EPOCHS, callbacks=[*ctx.callbacks(), killing], shuffle=True, **columns
    )
    if victim is None and not loses:  # a worker of which has no row of its own
        ctx.fit(model, "one", epochs=1, callbacks=[], **columns)
    return {
        "times": times_trained(model),
        "updates": int(model.optimizer.iterations.numpy()),
        "steps": ctx.steps_per_epoch(batch_size=BATCH),
        "epochs": len(history.history["loss"]),
        "lost": sum(lost),
    }


@pytest.mark.parametrize("flavour", ["keras", "tf_keras"])
def test_each_row_is_trained_on_once_an_epoch(distribute, flavour):
    distributor = distribute("parameter_server", ps=1, worker=2)
    one = {name: values[:1] for name, values in rows().items()}
    result = distributor.run(count, flavour=flavour, data={"train": rows(), "one": one})
    assert result.value["times"] == [EPOCHS + 1] + [EPOCHS] * (ROWS - 1)
    assert result.value["updates"] == EPOCHS * result.value["steps"] + 1
    assert result.value["epochs"] == EPOCHS
    assert len(result.ledger.records) == 2 * EPOCHS + 2
    assert all(each.complete and not each.rows_repeated for each in result.ledger.records)
    assert sum(each.rows_fed for each in result.ledger.records) == EPOCHS * ROWS + 1
    assert result.ledger.check() == []


def test_a_dead_worker_trains_on_all_of_its_rows_and_the_ledger_knows_what_came_twice(distribute):
    distributor = distribute("parameter_server", ps=1, worker=2)
    result = distributor.run(count, "worker:1", data={"train": rows()})
    assert len(result.attempts) == 1  # the worker alone was replaced
    times = np.array(result.value["times"])
    assert times.min() == EPOCHS
    assert (times > EPOCHS).sum() <= BATCH  # one step was in its hands
    repeated = sum(each.rows_repeated for each in result.ledger.records)
    assert repeated == times.sum() - EPOCHS * ROWS
    assert all(each.complete for each in result.ledger.records)
    assert result.ledger.check() == []


def test_what_is_lost_comes_again_and_counts_as_repeated(distribute):
    distributor = distribute("parameter_server", ps=1, worker=2)
    result = distributor.run(count, loses=True, data={"train": rows()})
    times = np.array(result.value["times"])
    assert times.min() == EPOCHS
    twice, lost = times.sum() - EPOCHS * ROWS, result.value["lost"]
    assert twice > 0
    records = result.ledger.records
    # Whose batch was lost isn't known: the last ones, of a row or two, count as whole ones.
    assert twice <= sum(each.rows_repeated for each in records) <= twice + BATCH * lost
    assert all(each.complete for each in records)
    assert result.ledger.check() == []


def test_a_group_that_restarts_goes_on_with_the_rows_that_were_missing(distribute):
    options = {"max_restarts": 1, "checkpoint_every": 4}
    distributor = distribute("parameter_server", ps=1, worker=2, options=options)
    result = distributor.run(count, "ps:0", data={"train": rows()})
    assert len(result.attempts) == 2
    assert set(result.value["times"]) == {EPOCHS}
    first = [each for each in result.ledger.records if each.epoch == 0]
    assert sum(each.rows_before for each in first) >= 8 * BATCH - BATCH
    assert all(each.complete for each in result.ledger.records)
    assert result.ledger.check() == []
