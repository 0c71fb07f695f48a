"""A callback that ends a fit on one rank: all end it together."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from ranks import run_job

import keras
from gridflow._coordinator.stops import Stops
from gridflow._keras.stopping import Stopping
from gridflow._wire import commands
from suite.waiting import patience

X = np.linspace(0, 1, 256, dtype="float32").reshape(64, 4)
STEPS, EPOCHS = 8, 4


class Group:
    """Ranks that fit in lockstep, each in a thread, and the driver between them."""

    def __init__(self, wants):
        self.wants, self.ended = wants, {}
        self.driver, self.lock = Stops(0, range(len(wants))), threading.Lock()
        self.ranks = [Stopping(lambda report, rank=rank: self.hear(rank, report)) for rank in wants]
        # A step takes all ranks, as a collective does.
        self.step = threading.Barrier(len(wants), timeout=patience())

    def hear(self, rank, report):
        def tell():
            with self.lock:
                told = self.driver.named(rank, report)
            for peer, command in told:
                is_question = isinstance(command, commands.AskToStop)
                stopping = self.ranks[peer]
                (stopping.ask if is_question else stopping.agree)(command)

        threading.Thread(target=tell).start()  # as it comes by the wire

    def fit(self, rank):
        stopping = self.ranks[rank]
        stopping.begin()
        for epoch in range(EPOCHS):
            for step in range(STEPS):
                self.step.wait()
                wants = self.wants[rank] == (epoch, step)
                if stopping.reach(ends_epoch=False, wants=wants):
                    self.ended[rank] = (epoch, step)
                    break
            wants = rank in self.ended or self.wants[rank] == (epoch, "end")
            if stopping.reach(ends_epoch=True, wants=wants):
                self.ended.setdefault(rank, (epoch, "end"))
                break
        stopping.end()

    def run(self):
        threads = [threading.Thread(target=self.fit, args=(rank,)) for rank in self.wants]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(patience())
            assert not thread.is_alive()
        return list(self.ended.values())


@pytest.mark.parametrize(
    ("wants", "ends"),
    [
        ([(1, "end")] * 3, [(1, "end")]),  # all alike: there, exactly
        ([(1, 3)] * 3, [(1, 3)]),
        ([None, None, (1, "end")], [(1, "end"), (2, 0)]),
        ([(1, 3), None, None], [(1, 3), (1, 4)]),
        ([(1, 7), None, (1, "end")], [(1, 7), (1, "end"), (2, 0)]),
        ([None] * 3, []),
        ([None, (3, "end"), None], [(3, "end")]),
    ],
)
def test_ranks_stop_at_one_point_that_is_at_most_a_step_later(wants, ends):
    ended = Group(dict(enumerate(wants))).run()
    assert set(ended) <= set(ends)
    assert len(set(ended)) <= 1
    # Where one wanted to stop at the very end, the others may have ended by themselves.
    assert len(ended) in ({0, 3} if wants[1] != (3, "end") else {1, 2, 3})


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
@pytest.mark.parametrize("backend", ["tensorflow"])
def test_a_rank_that_stops_by_itself_takes_the_others_along(backend):
    (first, second), _ = run_job(train, 2, "multi_worker_mirrored", backend=backend)
    assert first == second
    by_step, by_epoch, by_all = first
    assert by_step in {(11, 2), (12, 2)}
    assert by_epoch in {(16, 2), (17, 3)}
    assert by_all == (24, 3)
