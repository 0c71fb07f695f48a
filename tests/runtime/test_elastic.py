"""Workers come and go while the others train on: ``num_workers=(least, most)``."""

from __future__ import annotations

import functools
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from gridflow import (
    Deadlines,
    InvalidArgument,
    LocalLauncher,
    SparkLauncher,
    TensorflowDistributor,
    TrainingFailed,
    chief_only,
    observers,
)
from suite.deaths import kill_as_it_starts
from suite.new_process import skip_without

WORKERS, BATCH, EPOCHS = 3, 8, 3
_X = np.random.default_rng(0).normal(size=(603, 4)).astype("float32")
ROWS = {"x": _X, "y": _X[:, 0] ** 2}


def model_of(keras):
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.layers.Dense(16, "relu"), keras.layers.Dense(1)])
    model.build((None, 4))
    model.compile(keras.optimizers.Adam(0.01), "mse")
    return model


def dataset(ctx):
    return ctx.dataset("train", batch_size=BATCH, features=["x"], label="y", shuffle=False)


def dying(ctx, deaths, folder, victim="process"):
    """Return a function that kills a rank after its steps in ``deaths``, each once.

    Step 0: before its variables are made.
    """
    from gridflow._agent.executor import executor_above
    from gridflow.testing.deaths import agent_of_this_task

    def dies_after(step):
        mark = Path(folder, f"{ctx.rank}-{step}")
        if step in deaths.get(ctx.rank, ()) and not mark.exists():
            mark.touch()
            agent = agent_of_this_task()
            pids = {"process": os.getpid(), "agent": agent}
            pid = pids[victim] if victim in pids else executor_above(agent).pid
            os.kill(pid, signal.SIGKILL)
            time.sleep(60)

    return dies_after


def train(ctx, deaths, folder, victim="process", seconds=0.05):
    """Train, and die meanwhile. Return who took part in each step."""
    import keras

    dies_after = dying(ctx, deaths, folder, victim)

    class Watch(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.members, self.changes = {}, []

        def on_group_changed(self, members):
            self.changes.append(list(members))

        def on_train_batch_end(self, batch, logs=None):
            step = int(self.model.optimizer.iterations.numpy())
            self.members[step] = ctx.members
            time.sleep(seconds)
            dies_after(step)

    class Log(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            with Path(folder, "log").open("a") as file:
                print(int(self.model.optimizer.iterations.numpy()), ctx.rank, file=file)

    dies_after(0)
    with ctx.strategy.scope():
        model = model_of(keras)
    initial = model.get_weights()
    watch = Watch()
    callbacks = [*ctx.callbacks(), chief_only(Log()), watch]
    history = model.fit(dataset(ctx), epochs=EPOCHS, verbose=0, callbacks=callbacks)
    return {
        "rank": ctx.rank,
        "members": watch.members,
        "changes": watch.changes,
        "initial": initial,
        "weights": model.get_weights(),
        "epochs": len(history.history["loss"]),
        "met": ctx.all_gather(ctx.rank),
    }


def loop(ctx, deaths, folder, victim="process", seconds=0.05):
    """Do the same in a loop of one's own."""
    import keras

    dies_after = dying(ctx, deaths, folder, victim)
    dies_after(0)
    with ctx.strategy.scope():
        model = model_of(keras)
        model.optimizer.build(model.trainable_variables)
        seen = keras.metrics.Sum()
    initial, rows, calls = model.get_weights(), dataset(ctx), []
    kept = ctx.loop(model, seen, rows, epoch=0, members={}, loss=[])
    make = {"tensorflow": tensorflow_step, "torch": torch_step}[ctx.backend]

    def steps():
        calls.append(list(ctx.members))
        step = make(ctx, model, seen)
        while kept.epoch < EPOCHS:
            seen.reset_state()
            for x, y in kept.batches(rows):
                kept.loss.append(float(step(x, y)))
                done = int(model.optimizer.iterations.numpy())
                kept.members[str(done)] = list(ctx.members)
                time.sleep(seconds)
                ctx.report(done, loss=kept.loss[-1])
                dies_after(done)
            kept.epoch += 1
        return len(kept.loss)

    made = kept.run(steps)
    return {
        "rank": ctx.rank,
        "members": {int(step): tuple(there) for step, there in kept.members.items()},
        "changes": calls,
        "initial": initial,
        "weights": model.get_weights(),
        "epochs": kept.epoch,
        "met": ctx.all_gather(ctx.rank),
        "losses": made,
        "seen": float(seen.result()),
    }


def tensorflow_step(ctx, model, seen):
    """Return a step that counts rows, for which there are two exchanges."""
    import tensorflow as tf

    def of_rank(x, y):
        rows = tf.cast(tf.shape(y)[0], tf.float32)
        total = tf.distribute.get_replica_context().all_reduce("SUM", rows)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((model(x)[:, 0] - y) ** 2) / total
        gradients = tape.gradient(loss, model.trainable_variables)
        model.optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        seen.update_state(rows)
        return loss

    @tf.function
    def step(x, y):
        return ctx.strategy.reduce("SUM", ctx.strategy.run(of_rank, args=(x, y)), axis=None)

    return step


def torch_step(ctx, model, seen):
    import torch

    del ctx

    def step(x, y):
        model.zero_grad()
        loss = torch.mean((model(torch.from_numpy(x))[:, 0] - torch.from_numpy(y)) ** 2)
        loss.backward()
        weights = model.trainable_variables
        with torch.no_grad():
            model.optimizer.apply([weight.value.grad for weight in weights], weights)
        seen.update_state(float(len(y)))
        return loss.detach()

    return step


def batches(ctx):
    return [(np.asarray(x), np.asarray(y)) for x, y in dataset(ctx)]


class Heard(observers.Observer):
    """Notes who is away and who is back."""

    def __init__(self):
        self.tasks = []

    def task(self, name, state, host):
        if state in {"away", "back"}:
            self.tasks.append((name, state))


def run(function, *args, **options):
    return start(function, *args, **options).result()


def start(function, *args, workers=(1, WORKERS), launcher=None, data=ROWS, **options):
    distributor = TensorflowDistributor(
        workers,
        "multi_worker_mirrored",
        launcher=launcher or LocalLauncher(),
        seed=1,
        logs="none",
        progress=False,
        deadlines=Deadlines(run=250),
        **options,
    )
    return distributor.start(function, *args, data={"train": data})


@functools.cache
def parts():
    """Return the batches of an epoch, by rank."""
    return list(run(batches, workers=WORKERS).values)


def by_one_process(initial, members):
    """Return the weights of one process on the batches of those that took part in each step."""
    import keras

    model, everyone = model_of(keras), parts()
    model.set_weights(initial)
    for step in sorted(members):
        place = (step - 1) % len(everyone[0])
        x, y = zip(*(everyone[rank][place] for rank in members[step]), strict=True)
        model.train_on_batch(np.concatenate(x), np.concatenate(y))
    return model.get_weights()


def sizes(members):
    """Return how many ranks took part in the steps, without repetitions."""
    found = [len(members[step]) for step in sorted(members)]
    return [size for size, before in zip(found, [None, *found], strict=False) if size != before]


def check(result):
    """Check weights and rows against who took part; return what the first rank saw."""
    there = [value for value in result.values if value is not None]
    members, steps = there[0]["members"], len(parts()[0])
    assert sorted(members) == list(range(1, EPOCHS * steps + 1))
    expected = by_one_process(there[0]["initial"], members)
    for value in there:
        assert value["epochs"] == EPOCHS
        for mine, wanted in zip(value["weights"], expected, strict=True):
            np.testing.assert_allclose(mine, wanted, atol=1e-5)
    assert result.ledger.check() == []
    left_out = {
        (each.rank, each.epoch): each.rows_left_out
        for each in result.ledger.records
        if each.complete
    }
    for rank, epoch in ((rank, epoch) for rank in range(WORKERS) for epoch in range(EPOCHS)):
        missed = sum(
            len(parts()[rank][step][1])
            for step in range(steps)
            if rank not in members[epoch * steps + step + 1]
        )
        assert left_out[rank, epoch] == missed
    assert len(result.attempts) == 1
    return there[0]


def check_duties(result, members, folder):
    """Check that in each step somebody did what is the chief's."""
    log = {tuple(map(int, line.split())) for line in (folder / "log").read_text().splitlines()}
    assert log >= {(step, min(ranks)) for step, ranks in members.items()}
    assert {rank for _, rank in log} == {min(ranks) for ranks in members.values()}
    events = (
        event
        for path in result.tensorboard_dir.glob("**/train/events*")
        for event in tf_events(path)
    )
    assert {event.step for event in events if event.summary.value} == set(range(EPOCHS))


def tf_events(path):
    import tensorflow as tf

    return tf.compat.v1.train.summary_iterator(str(path))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("deaths", "seen", "backend"),
    [
        ({1: [7]}, [3, 2, 3], "tensorflow"),
        ({0: [7]}, [3, 2, 3], "tensorflow"),
        ({0: [7], 2: [9]}, [3, 2, 1], "tensorflow"),
        ({0: [7], 2: [9]}, [3, 2, 1], "torch"),
        ({0: [0]}, [2, 3], "tensorflow"),
    ],
    ids=["a worker", "the chief", "two", "two on torch", "before the fit"],
)
def test_the_others_go_on_and_the_model_is_that_of_all_rows_that_were_trained(
    deaths, seen, backend, tmp_path, no_leaks
):
    del no_leaks
    skip_without(backend)
    heard = Heard()
    told = {"observers": [heard], "backend": backend}
    result = run(train, deaths, str(tmp_path), "process", 0.15, **told)
    first = check(result)
    assert sizes(first["members"])[: len(seen)] == seen
    assert sizes(first["members"])[-1] == WORKERS
    assert first["changes"][-1] == [0, 1, 2]
    assert first["met"] == [0, 1, 2]
    (attempt,) = result.attempts
    assert attempt.sizes[0][1] == WORKERS - 1
    assert len(attempt.replaced) == len(deaths)
    check_duties(result, first["members"], tmp_path)
    for rank in deaths:
        told = [state for name, state in heard.tasks if name == f"worker:{rank}"]
        assert told == ["away", "back"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("deaths", "seen", "backend"),
    [
        ({0: [7], 2: [9]}, [3, 2, 1], "tensorflow"),
        ({1: [7]}, [3, 2], "torch"),
        ({0: [0]}, [3], "tensorflow"),
    ],
    ids=["two", "on torch", "before it"],
)
def test_a_loop_of_ones_own_goes_on_too(deaths, seen, backend, tmp_path, no_leaks):
    del no_leaks
    skip_without(backend)
    result = run(loop, deaths, str(tmp_path), "process", 0.15, backend=backend)
    first = check(result)
    assert sizes(first["members"])[: len(seen)] == seen
    assert first["losses"] == EPOCHS * len(parts()[0])


@pytest.mark.slow
def test_the_others_begin_without_one_that_dies_before_all_have_met(tmp_path):
    handle = start(train, {}, str(tmp_path), "process", 0.15)
    kill_as_it_starts(handle, "worker:0")
    result = handle.result()
    assert sizes(check(result)["members"]) == [WORKERS - 1, WORKERS]


def keep_statistics(ctx, folder):
    """Train; note the moving mean of BatchNormalization around each step. Rank 1 dies once."""
    import keras

    class Note(keras.callbacks.Callback):
        def note(self, when):
            step = int(self.model.optimizer.iterations.numpy())
            np.save(Path(folder, f"{when}-{ctx.rank}-{step}"), norm.moving_mean.numpy())
            return step

        def on_train_batch_begin(self, batch, logs=None):
            self.note("before")

        def on_train_batch_end(self, batch, logs=None):
            time.sleep(0.05)
            if self.note("after") == 7 and ctx.rank == 1 and not Path(folder, "dead").exists():
                Path(folder, "dead").touch()
                os.kill(os.getpid(), signal.SIGKILL)

    with ctx.strategy.scope():
        norm = keras.layers.BatchNormalization()
        model = keras.Sequential([keras.Input((4,)), norm, keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    model.fit(dataset(ctx), epochs=1, verbose=0, callbacks=[*ctx.callbacks(), Note()])


@pytest.mark.slow
def test_moving_statistics_are_those_of_all_that_are_left(tmp_path):
    run(keep_statistics, str(tmp_path))
    own = [np.load(tmp_path / f"after-{rank}-7.npy") for rank in (0, 2)]
    assert abs(own[0] - own[1]).max() > 1e-3
    for rank in (0, 2):
        found = np.load(tmp_path / f"before-{rank}-7.npy")
        np.testing.assert_allclose(found, (own[0] + own[1]) / 2, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 2])
def test_a_job_ends_without_one_that_is_away(rank, tmp_path, no_leaks):
    del no_leaks
    steps = EPOCHS * len(parts()[0])
    result = run(train, {rank: [steps - 2]}, str(tmp_path), "process", 0.01)
    there = check(result)
    assert result.values[rank] is None
    assert there["met"] == [None if each == rank else each for each in range(WORKERS)]
    assert result.value["rank"] == (1 if rank == 0 else 0)
    assert len(result.history["loss"]) == EPOCHS


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["agent", "executor"])
def test_on_spark_the_others_go_on_while_spark_starts_the_task_again(spark, victim, tmp_path):
    rows = [(x.tolist(), float(y)) for x, y in zip(ROWS["x"], ROWS["y"], strict=True)]
    frame = spark.createDataFrame(rows, "x array<float>, y float")
    launcher = SparkLauncher(spark)
    result = run(
        train, {0: [7]}, str(tmp_path), victim, 0.15, workers=(1, 2), launcher=launcher, data=frame
    )
    there = next(value for value in result.values if value is not None)
    assert sizes(there["members"])[:2] == [2, 1]
    assert result.ledger.check() == []
    assert len(result.attempts) == 1


def read_a_stream(ctx):
    return ctx.stream(BATCH, features=["x"], label="y")


@pytest.mark.slow
def test_rows_that_are_pushed_need_all_workers():
    distributor = TensorflowDistributor((1, 2), launcher=LocalLauncher(), logs="none")
    handle = distributor.start(read_a_stream)
    with pytest.raises(TrainingFailed, match=r"num_workers=\(1, 2\) they may come and go"):
        handle.result(timeout=120)


@pytest.mark.parametrize(
    ("workers", "options", "words"),
    [
        ((3, 2), {}, "the least"),
        ((0, 2), {}, "the least"),
        ((1, 2, 3), {}, "(2, 8)"),
        (("a", 2), {}, "the least"),
        ((1, 2), {"backend": "jax"}, "backend='jax'"),
        ((1, 2), {"strategy": "none"}, "strategy='none'"),
        ((1, 2), {"gpus": 1}, "gpus="),
    ],
)
def test_what_cant_come_and_go_is_refused_at_the_call(workers, options, words):
    with pytest.raises(InvalidArgument) as caught:
        TensorflowDistributor(workers, launcher=LocalLauncher(), **options)
    assert words in str(caught.value)
