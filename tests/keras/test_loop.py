"""Loops of one's own: what they keep, and where they go on."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

import keras
from gridflow import data
from gridflow._keras.agreement import Agreement
from gridflow._keras.loop import Loop
from gridflow._keras.resume.callback import CheckpointAndResume
from gridflow.errors import DataError, GridflowError, InvalidArgument
from suite.lives import DiedError, Life

ROWS, BATCH, EPOCHS = 10, 4, 2
STEPS = 3


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    import pyarrow as pa
    from pyarrow import parquet

    folder = tmp_path_factory.mktemp("rows")
    parquet.write_table(pa.table({"x": np.arange(float(ROWS))}), folder / "rows.parquet")
    return str(folder)


@pytest.fixture
def life(tmp_path):
    """Give a function that begins a process, which finds the checkpoint of the one before it."""
    committed = tmp_path / "committed.npz"
    facts = {"rank": 0, "num_workers": 1, "is_chief": True, "seed": 1, "task": "worker:0"}

    def begin():
        ctx = SimpleNamespace(**facts, work_dir=tmp_path, epoch_counters=[])
        found = Life(ctx, committed)
        found.resume_from = committed if committed.exists() else None
        found.checkpoint = lambda path, *_, **__: path.replace(committed)
        found.training = SimpleNamespace(checkpoint_every=1, backend="tensorflow")
        return found

    return begin


def dies(life, function, *arguments):
    """Begin a process that dies; its checkpoints are complete."""
    runtime = life()
    with pytest.raises(DiedError):
        function(runtime, *arguments)
    runtime.writer.wait()


def of_parquet(files):
    return data.parquet_dataset(files, batch_size=BATCH, features="x", shuffle=True, seed=3)


def of_tensorflow(files):
    import tensorflow as tf

    del files
    rows = tf.data.Dataset.range(ROWS)
    return rows.shuffle(ROWS, seed=5, reshuffle_each_iteration=False).batch(BATCH)


def of_unknown_length(files):
    return of_tensorflow(files).filter(lambda rows: True)


def of_parquet_and_more(files):
    return of_parquet(files).prefetch(1)


def trained(runtime, rows, death=None):
    """Return what a loop has seen, which dies in its step ``death``, counted from 1."""
    total = keras.Variable(np.zeros(2), dtype="float64")
    loop = Loop(runtime, [total, rows], {"epoch": 0, "seen": [], "ends": 0})

    def steps():
        while loop.epoch < EPOCHS:
            for batch in loop.batches(rows):
                found = np.asarray(batch).tolist()
                total.assign_add([1.0, sum(found)])
                loop.seen.append(found)
                if len(loop.seen) == death:
                    raise DiedError
            if death == (loop.epoch, "ends"):
                raise DiedError
            loop.epoch += 1
            loop.ends += 1
            if death == (loop.epoch, "ended"):
                raise DiedError
        return loop.ends

    made = loop.run(steps)
    return made, loop.epoch, loop.seen, total.numpy().tolist()


@pytest.mark.parametrize(
    "make", [of_parquet, of_tensorflow, of_unknown_length, of_parquet_and_more]
)
def test_a_loop_goes_on_where_it_was_from_any_death(make, files, life, tmp_path):
    expected = trained(life(), make(files))
    assert expected[0] == EPOCHS
    assert expected[3] == [EPOCHS * STEPS, EPOCHS * sum(range(ROWS))]
    occasions = [*range(1, EPOCHS * STEPS + 1)]
    occasions += [(epoch, when) for epoch in range(EPOCHS) for when in ("ends", "ended")]
    for death in occasions:
        (tmp_path / "committed.npz").unlink(missing_ok=True)
        if death == (0, "ended"):
            continue
        dies(life, trained, make(files), death)
        assert trained(life(), make(files)) == expected


def test_several_datasets_are_read_side_by_side_and_the_shortest_ends_the_pass(files, life):
    def pairs(runtime, death=None):
        rows, others = of_parquet(files), of_tensorflow(files).take(2)
        loop = Loop(runtime, [rows, others], {"seen": [], "passes": 0})

        def steps():
            while loop.passes < 2:
                for batch, other in loop.batches(rows, others):
                    loop.seen.append([np.asarray(batch).tolist(), len(other)])
                    if len(loop.seen) == death:
                        raise DiedError
                loop.passes += 1

        loop.run(steps)
        return loop.seen

    dies(life, pairs, 4)
    assert [[len(batch), other] for batch, other in pairs(life())] == [[4, BATCH], [3, BATCH]] * 2


def test_a_pass_that_is_left_is_over_and_steps_without_data_are_kept(files, life):
    def left(runtime, death=None):
        rows = of_parquet(files)
        loop = Loop(runtime, [rows], {"seen": [], "games": 0})

        def steps():
            while loop.games < 3:
                for batch in loop.batches(rows):
                    loop.seen.append(len(batch))
                    break
                loop.games += 1
                loop.keep()
                if loop.games == death:
                    raise DiedError

        loop.run(steps)
        return loop.seen

    dies(life, left, 2)
    assert left(life()) == [BATCH] * 3


def test_a_checkpoint_of_another_loop_or_of_a_fit_is_refused(files, life, tmp_path):
    rows = of_parquet(files)
    dies(life, trained, rows, 2)
    loop = Loop(life(), [rows], {"other": 0})
    with pytest.raises(InvalidArgument, match=r"kept \['ends', 'epoch', 'seen'\] and 1 datasets"):
        loop.run(lambda: None)
    loop = Loop(life(), [rows], {"epoch": 0, "seen": [], "ends": 0})
    with pytest.raises(InvalidArgument, match="1 variables for the loop, which now has 0"):
        loop.run(lambda: None)
    second = life()
    second.pulled = {"train": "new"}
    there = loop._made(loop._last)
    there.pulled["train"] = "old"
    there.write(tmp_path / "committed.npz")
    with pytest.raises(DataError, match="have changed since the checkpoint"):
        Loop(second, [rows], {"epoch": 0, "seen": [], "ends": 0}).run(lambda: None)


def unbuilt_model():
    return keras.Sequential([keras.layers.Dense(1)])


@pytest.mark.parametrize(
    ("kept", "values", "words"),
    [
        (unbuilt_model, {}, "Sequential, as it isn't built"),
        (keras.optimizers.Adam, {}, "Adam, as it isn't built"),
        (lambda: 3, {}, "can't keep a int"),
        (lambda: keras.Variable(0.0), {"run": 1}, "by the name of 'run'"),
        (lambda: keras.Variable(0.0), {"_x": 1}, "by the name of '_x'"),
        (lambda: keras.Variable(0.0), {"x": np.zeros(2)}, "ndarray isn't a plain value"),
        (lambda: keras.Variable(0.0), {"x": object()}, "object isn't a plain value"),
    ],
)
def test_what_a_loop_cant_keep_is_refused_at_the_call(kept, values, words, life):
    with pytest.raises(InvalidArgument) as caught:
        Loop(life(), [kept()], values)
    assert words in str(caught.value)


def test_names_datasets_and_passes_that_arent_kept_are_refused(files, life):
    rows, other = of_parquet(files), of_tensorflow(files)
    loop = Loop(life(), [rows], {"epoch": np.int64(2)})
    with pytest.raises(AttributeError, match="no value 'step': name it at the start"):
        loop.step = 1
    with pytest.raises(AttributeError, match="no value 'step'; it keeps: epoch"):
        loop.step  # noqa: B018
    with pytest.raises(InvalidArgument, match="for the function that"):
        loop.batches(rows)
    with pytest.raises(InvalidArgument, match="for the function that"):
        loop.keep()

    def steps():
        with pytest.raises(InvalidArgument, match="doesn't keep this dataset"):
            loop.batches(other)
        with pytest.raises(InvalidArgument, match="one of the datasets"):
            loop.batches()
        with pytest.raises(GridflowError, match="within another one"):
            loop.run(steps)
        for batch in loop.batches(rows):
            del batch
            with pytest.raises(InvalidArgument, match="in a pass over its data already"):
                loop.batches(rows)
            break
        return loop.epoch

    assert loop.run(steps) == 2


def test_only_what_is_trained_must_be_finite(life):
    runtime = life()
    made, refused = [], []
    runtime.checkpoint = lambda path, place, **told: made.append(place)
    runtime.not_finite = lambda place, variable, **told: refused.append(variable)
    mask = keras.Variable(-np.inf, trainable=False, name="mask")
    weight = keras.Variable(1.0, name="weight")
    loop = Loop(runtime, [mask, weight], {})

    def steps():
        loop.keep()
        weight.assign(np.inf)
        loop.keep()

    loop.run(steps)
    assert (len(made), refused) == (1, ["weight"])


def test_a_fit_within_a_loop_makes_no_checkpoints_of_its_own(life):
    runtime = life()
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    loop = Loop(runtime, [model], {})

    def steps():
        with pytest.raises(InvalidArgument, match="would both make checkpoints"):
            CheckpointAndResume(runtime).begins(None)

    loop.run(steps)


def test_a_loop_without_ranks_hears_what_was_asked_of_its_process(life):
    runtime = life()
    runtime.training.checkpoint_every = None
    made = []
    runtime.checkpoint = lambda _, place, **told: made.append((place.step, told["is_awaited"]))
    loop = Loop(runtime, [keras.Variable(0.0)], {"step": 0})

    def steps():
        while loop.step < 4:
            loop.step += 1
            if loop.step == 2:
                runtime.agreement.ask(stays=False)
            loop.keep()

    assert isinstance(runtime.agreement, Agreement)
    loop.run(steps)
    assert made == [(2, True)]


def test_a_loop_makes_room_for_more_workers_between_two_passes(files, life):
    runtime = life()
    runtime.training.checkpoint_every = 1
    made, stays = [], []
    runtime.checkpoint = lambda _, place, **told: made.append((*place, told["is_awaited"]))
    runtime.rest = lambda: stays.append(len(made))
    rows = of_parquet(files)
    loop = Loop(runtime, [keras.Variable(0.0), rows], {"epoch": 0})

    def steps():
        while loop.epoch < EPOCHS:
            for batch in loop.batches(rows):
                del batch
                if not made:
                    runtime.agreement.ask(stays=True, at_end=True)
            loop.epoch += 1

    loop.run(steps)
    steps_of_a_pass = [(0, 1), (0, 2), (1, 0)]
    assert [each[1:3] for each in made[:STEPS]] == steps_of_a_pass
    assert [each[3] for each in made] == [False, False, True, False, False, False]
    assert stays == [STEPS]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Adam", "legacy.Adam"])
def test_models_of_tf_keras_go_on_with_their_optimizer(kind, life, tmp_path):
    import tensorflow as tf
    import tf_keras

    x = np.random.default_rng(0).normal(size=(32, 3)).astype("float32")

    def fitted(runtime, death=None):
        tf_keras.utils.set_random_seed(3)
        model = tf_keras.Sequential([tf_keras.Input((3,)), tf_keras.layers.Dense(1)])
        optimizer = tf_keras.optimizers
        for name in kind.split("."):
            optimizer = getattr(optimizer, name)
        model.compile(optimizer(0.1), "mse")
        rows = tf.data.Dataset.from_tensor_slices((x, x[:, 0])).batch(8)
        loop = Loop(runtime, [model, rows], {"epoch": 0, "steps": 0})

        def steps():
            while loop.epoch < EPOCHS:
                for features, label in loop.batches(rows):
                    with tf.GradientTape() as tape:
                        loss = tf.reduce_mean((model(features)[:, 0] - label) ** 2)
                    weights = model.trainable_variables
                    pairs = zip(tape.gradient(loss, weights), weights, strict=True)
                    model.optimizer.apply_gradients(pairs)
                    loop.steps += 1
                    if loop.steps == death:
                        raise DiedError
                loop.epoch += 1

        loop.run(steps)
        return np.concatenate([np.ravel(each) for each in model.get_weights()])

    expected = fitted(life())
    (tmp_path / "committed.npz").unlink()
    dies(life, fitted, 6)
    np.testing.assert_allclose(fitted(life()), expected, atol=1e-6)
