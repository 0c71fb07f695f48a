"""What ranks do alike in a fit: where it ends, and which model they train."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from ranks import run_job

import keras
from gridflow import errors
from gridflow._collectives.host import HostGroup
from gridflow._keras.agreement import Agreement, FitState, odd_one
from suite.new_process import skip_without

X = np.linspace(0, 1, 256, dtype="float32").reshape(64, 4)


def standing(epoch=4, rate=0.1, norm=2.0, updates=32, seen=7):
    weights = [("dense/kernel", 0.0, norm), ("dense/bias", 0.0, 0.0)]
    return FitState(epoch, updates, [rate], weights, [("counter/seen", seen)])


def test_a_rank_that_starts_elsewhere_is_told_from_the_others():
    alike = [standing(0, updates=0)] * 2
    assert odd_one(alike, starts=True) == (-1, "")
    words = "its fit starts at epoch 3 after 300 updates, but rank {}'s at epoch 0 after 0 updates"
    other = standing(3, updates=300)
    assert odd_one([*alike, other], starts=True) == (2, words.format(0))
    assert odd_one([other, *alike], starts=True) == (0, words.format(1))
    assert odd_one([*alike, other], starts=False) == (-1, "")


def test_a_rank_that_trains_another_model_is_told_from_the_others():
    rounded = standing(rate=0.1 + 1e-8, norm=2.0 - 1e-5)
    nothing = standing(norm=float("nan"))  # the loss says so
    assert odd_one([standing(), rounded, nothing], starts=False) == (-1, "")
    at = "at epoch 4 after 32 updates, "
    for other, words in (
        (standing(rate=0.05), "its learning rate is 0.05, but rank 0's 0.1"),
        (
            standing(norm=2.1),
            "its weight 'dense/kernel' has the norm 2.1 and the sum 0, but rank 0's 2 and 0",
        ),
        (FitState(4, 32, [0.1], [], []), "it trains 0 weights, but rank 0 2"),
        (standing(seen=8), "its variable 'counter/seen' has other values than rank 0's"),
    ):
        assert odd_one([standing(), other], starts=False) == (1, at + words)


@pytest.mark.parametrize("in_steps", [True, False])
def test_a_checkpoint_that_one_rank_is_asked_for_is_made_by_all_after_the_same_step(in_steps):
    links = socket.socketpair()

    def steps_of(rank):
        group = HostGroup([0, 1], rank, 2, {1 - rank: links[rank]})
        agreement = Agreement()
        agreement.join(group, in_steps=in_steps)
        made = []
        for fit in range(2):
            agreement.begin([], 0)
            for step in range(4):
                if (rank, fit, step) in {(1, 0, 1), (1, 0, 3)}:
                    agreement.ask(stays=step == 1)
                group.add_up([np.ones(3, "float32")], dtype=np.dtype("float32"), weight=1)
                agreement.step_ended(wants=False)
                if agreement.saves:
                    made.append((fit, step, agreement.take_request()))
            agreement.end()
            assert not agreement.saves, "one rank's own fit makes none for all"
        return made

    with ThreadPoolExecutor() as pool, links[0], links[1]:
        first, second = pool.map(steps_of, range(2))
    assert first == second == [(0, 1, (True, True)), (0, 3, (True, False))]


def test_a_rank_that_trains_alone_saves_when_it_is_asked():
    agreement = Agreement()
    assert not agreement.saves
    assert agreement.take_request() == (False, False)
    agreement.ask(stays=True)
    assert agreement.saves
    assert agreement.take_request() == (True, True)
    assert agreement.take_request() == (False, False)


def test_who_makes_room_for_more_workers_stays_at_the_end_of_an_epoch_and_not_before():
    agreement = Agreement()
    agreement.ask(stays=True, at_end=True)
    assert not agreement.saves
    assert agreement.take_request() == (False, False)
    agreement.ask(stays=False)
    assert agreement.saves
    assert agreement.take_request() == (True, False)
    assert agreement.take_request(may_grow=True) == (True, True)
    assert agreement.take_request(may_grow=True) == (False, False)


def count(ctx, dtype):
    """Train on uneven rows with a layer that counts them; return what it counted and a mean."""

    class Counter(keras.layers.Layer):
        def build(self, shape):
            options = {"shape": (), "initializer": "zeros", "trainable": False}
            self.rows = self.add_weight(name="rows", dtype=dtype, aggregation="sum", **options)
            self.batches = self.add_weight(name="batches", dtype="float32", **options)

        def call(self, inputs, training=False):
            if training:
                rows = keras.ops.shape(inputs)[0]
                self.rows.assign_add(keras.ops.cast(rows, self.rows.dtype))
                self.batches.assign_add(1.0)
            return inputs

    with ctx.strategy.scope():
        counter = Counter()
        model = keras.Sequential([keras.Input((4,)), counter, keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    data = ctx.dataset(batch_size=8, features="x", label="y")
    counted = []
    for epochs in (1, 2):
        model.fit(data, epochs=epochs, verbose=0)
        counted.append((float(counter.rows.numpy()), float(counter.batches.numpy())))
    return counted


ROWS = {"train": {"x": X[:61], "y": X[:61, :1]}}


@pytest.mark.slow
@pytest.mark.usefixtures("by_value", "no_leaks")
@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
def test_what_a_layer_counts_is_added_up_over_the_ranks_if_it_is_declared_so(backend):
    skip_without(backend)
    given = {"arguments": ("float32",), "data": ROWS, "backend": backend}
    (first, second), _ = run_job(count, 2, "multi_worker_mirrored", **given)
    assert first == second
    assert first == [(61, 4), (183, 12)]


@pytest.mark.slow
@pytest.mark.usefixtures("by_value", "no_leaks")
def test_whole_numbers_that_differ_between_ranks_are_named():
    words = r"its variable '\S*rows' has other values than rank 0's: .* a metric, or a variable"
    with pytest.raises(errors.TrainingFailed, match=words):
        run_job(count, 2, "multi_worker_mirrored", arguments=("int32",), data=ROWS)


def train(ctx):
    """Stop by what one rank alone decides, and by what all do."""
    with ctx.strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.0), "mse")

    class Counting(keras.callbacks.Callback):
        def __init__(self, rank=None, step=None, epoch=None):
            super().__init__()
            self.stops, self.steps, self.epochs = (rank, step, epoch), 0, 0

        def on_train_batch_end(self, batch, logs=None):
            self.steps += 1
            if self.stops == (ctx.rank, self.steps, None):
                self.model.stop_training = True

        def on_epoch_end(self, epoch, logs=None):
            self.epochs += 1
            if self.stops == (ctx.rank, None, self.epochs):
                self.model.stop_training = True

    found = []
    early = keras.callbacks.EarlyStopping("loss", patience=2)
    for counting, more in (
        (Counting(rank=1, step=11), []),
        (Counting(rank=0, epoch=2), []),
        (Counting(), [early]),
    ):
        given = [counting, *more]
        model.fit(X, X[:, :1], batch_size=8, epochs=9, shuffle=False, verbose=0, callbacks=given)
        found.append((counting.steps, counting.epochs))
    return found


@pytest.mark.slow
@pytest.mark.usefixtures("by_value", "no_leaks")
@pytest.mark.parametrize("backend", ["tensorflow", "torch", "jax"])
def test_a_rank_that_stops_by_itself_takes_the_others_along(backend):
    skip_without(backend)
    (first, second), _ = run_job(train, 2, "multi_worker_mirrored", backend=backend)
    assert first == second
    by_step, by_epoch, by_all = first
    assert by_step == (11, 2)
    assert by_epoch == (16, 2)
    assert by_all == (24, 3)
