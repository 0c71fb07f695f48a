"""Ranks wait for one another, and tell one another values: through the driver."""

from __future__ import annotations

import sys
import time

import numpy as np
import pytest

from gridflow import (
    BarrierTimeout,
    BrokenBarrier,
    Deadlines,
    LocalLauncher,
    Role,
    TensorflowDistributor,
)
from gridflow.errors import GridflowError, InvalidArgument, StepTimeout, TrainingFailed
from suite.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_leaks")]

QUIET = {"logs": "none", "progress": False}


def raised(kind, function):
    """Return the text of an error that a function raises."""
    with pytest.raises(kind) as caught:
        function()
    assert type(caught.value) is kind
    return str(caught.value)


def meet(ctx, folder):
    """Come together in each of the ways, before anything is imported and after a restart."""
    had = "tensorflow" in sys.modules  # forked from a process that has it
    mark = folder / f"prepared-{ctx.generation}"
    if ctx.is_chief:
        time.sleep(0.5)
        mark.write_text("done")
    ctx.barrier()
    seen = mark.read_text()
    if ctx.generation == 0 and ctx.rank == 1:
        raise RuntimeError("once more")
    has = "tensorflow" in sys.modules and not had
    word = ctx.broadcast({"from": ctx.rank, "x": np.arange(3.0)} if ctx.is_chief else object())
    ranks = ctx.all_gather((ctx.rank, has))
    large = raised(InvalidArgument, lambda: ctx.all_gather(b"x" * (2 << 20)))
    return seen, word["from"], word["x"].tolist(), ranks, large


def test_ranks_meet_without_tensorflow_and_in_each_generation(distribute, tmp_path):
    result = distribute(max_restarts=1).run(meet, tmp_path)
    assert [attempt.generation for attempt in result.attempts] == [0, 1]
    for seen, sender, array, ranks, large in result.values:
        assert (seen, sender, array) == ("done", 0, [0.0, 1.0, 2.0])
        assert ranks == [(0, False), (1, False)]
        assert "limit 1,048,576" in large


def never_meet(ctx, over):
    """Miss one another, in two ways that only one rank can go on from."""
    if ctx.rank == 1:
        wait_for(over.exists, "the end of the other's patience")
        found = [raised(BrokenBarrier, ctx.barrier)]
        found.append(raised(BrokenBarrier, ctx.barrier))
        return found
    found = [raised(BarrierTimeout, lambda: ctx.barrier(timeout=0.3))]
    over.touch()
    assert issubclass(BarrierTimeout, TimeoutError)
    return found


def test_who_waits_for_one_that_never_comes_hears_why(distribute, tmp_path):
    late, (missed, gone) = distribute().run(never_meet, tmp_path / "over").values
    began = "ctx.barrier(), the 1st meeting of this rank, was not held in 0.3 seconds: "
    assert late == [began + "worker:1 did not join."]
    assert "worker:1 did not join" in missed
    assert gone == (
        "ctx.barrier(), the 2nd meeting of this rank, can't be held: worker:0 has returned from "
        "the function."
    )


def test_a_peer_that_raises_ends_those_that_wait_for_it(distribute):
    def train(ctx):
        if ctx.rank == 0:
            raise ValueError("no such luck")
        ctx.barrier()

    with pytest.raises(TrainingFailed) as caught:
        distribute().run(train)
    assert "no such luck" in caught.value.first.summary


def alone(ctx):
    """Meet nobody but oneself."""
    ctx.barrier()
    sent = (1, [2])
    assert ctx.broadcast(sent) == sent
    return ctx.all_gather(sent)


@pytest.mark.parametrize("strategy", ["none", "mirrored", "parameter_server"])
def test_one_rank_meets_itself(strategy):
    roles = {"num_workers": 1}
    if strategy == "parameter_server":
        roles = {"roles": [Role("ps"), Role("worker", 2)]}
    distributor = TensorflowDistributor(
        **roles, strategy=strategy, launcher=LocalLauncher(), **QUIET
    )
    assert distributor.run(alone).value == [(1, [2])]


def test_tasks_that_do_not_train_take_part_in_nothing():
    def train(ctx):
        if ctx.rank < 0:
            assert "this is ps:0" in raised(GridflowError, ctx.barrier)
            return ctx.server().join()
        return ctx.all_gather(ctx.rank)

    roles = [Role("ps"), Role("worker", 2)]
    distributor = TensorflowDistributor(
        roles=roles, strategy="server", launcher=LocalLauncher(), logs="none", progress=False
    )
    result = distributor.run(train)
    assert list(result.values) == [[0, 1], [0, 1]]


def cross(ctx):
    """Let one rank wait in a step, the other in a barrier."""
    import keras

    with ctx.strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    gathered = ctx.all_gather(ctx.rank)
    x = np.ones((64, 4), "float32")
    if ctx.rank == 0:
        ctx.barrier()
    model.fit(x, x[:, :1], batch_size=8, verbose=0)
    return gathered


def test_a_step_and_a_barrier_that_wait_for_one_another_are_told_apart():
    distributor = TensorflowDistributor(
        2,
        "multi_worker_mirrored",
        launcher=LocalLauncher(),
        deadlines=Deadlines(heartbeat=5),
        **QUIET,
    )
    with pytest.raises(StepTimeout) as caught:
        distributor.run(cross)
    assert caught.value.first.task == "worker:1"
    assert "worker:0 waits in ctx.barrier()" in caught.value.first.summary
