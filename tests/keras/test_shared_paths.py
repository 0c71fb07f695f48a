"""Programs that write files and checkpoints of their own, on all ranks to one path."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from ranks import run_job

from gridflow import errors
from gridflow._keras import callbacks, own_callbacks
from gridflow._keras.neutral import NeutralCallback

X = np.linspace(0, 1, 64, dtype="float32").reshape(16, 4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("BackupAndRestore", "restores weights and epoch"),
        ("EarlyStopping", "ends the training"),
        ("TerminateOnNaN", "ends the training"),
        ("ReduceLROnPlateau", "sets the learning rate"),
        ("LearningRateScheduler", "sets the learning rate"),
        ("SwapEMAWeights", "swaps weights"),
    ],
)
def test_chief_only_refuses_what_changes_the_training(name, words):
    import keras

    arguments = {"BackupAndRestore": ["/b"], "LearningRateScheduler": [lambda epoch: 0.1]}
    kind = getattr(keras.callbacks, name)
    for each in (kind, type("Mine", (kind,), {})):
        with pytest.raises(errors.InvalidArgument) as caught:
            callbacks.chief_only(each(*arguments.get(name, ())))
        assert f"{each.__name__} {words}" in str(caught.value)
        assert "pass it to fit on all ranks" in str(caught.value)


@pytest.mark.slow
def test_what_a_callback_of_the_chief_alone_changes_is_an_error_in_the_callback(monkeypatch):
    import keras

    class Changes(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            self.model.optimizer.learning_rate = (0.1, 0.001)[epoch]

        def on_epoch_end(self, epoch, logs=None):
            for weights in [np.ones((4, 1)), np.zeros(1)], self.before:  # and back
                self.model.set_weights(weights)

        def on_train_end(self, logs=None):
            self.model.set_weights([np.ones((4, 1)), np.zeros(1)])  # to export it

    chief = SimpleNamespace(is_chief=True, chief_changes=False, trains_together=True)
    monkeypatch.setattr("gridflow._keras.runtime._current", chief)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    mine = callbacks.chief_only(Changes())
    mine.set_model(model)
    mine.before = model.get_weights()
    mine.on_epoch_begin(0)
    mine.on_epoch_end(0)
    with pytest.raises(errors.InvalidArgument) as caught:
        mine.on_epoch_begin(1)
    words = "Changes.on_epoch_begin changed the learning rate on the chief alone, from 0.1 to 0.001"
    assert words in str(caught.value)
    mine.before[1] += 1
    with pytest.raises(errors.InvalidArgument, match="changed the weight .*bias"):
        mine.on_epoch_end(1)
    mine.on_train_end()


@pytest.mark.slow
def test_only_keras_own_writers_to_the_chiefs_paths_are_replaced():
    import keras

    class Mine(keras.callbacks.CSVLogger):
        pass

    mine, other = Mine("/shared/a.csv"), keras.callbacks.CSVLogger("/own/a.csv")
    backup = keras.callbacks.BackupAndRestore("/shared/backup")
    given = [
        keras.callbacks.CSVLogger("/shared/a.csv"),
        keras.callbacks.ModelCheckpoint("/shared/{epoch}.keras"),
        keras.callbacks.TensorBoard("/shared/logs"),
        backup,
        other,
        mine,
        keras.callbacks.EarlyStopping(),
    ]
    paths = own_callbacks.paths_of(given)
    assert paths == [
        *("/shared/a.csv", "/shared/{epoch}.keras", "/shared/logs", "/shared/backup"),
        "/own/a.csv",
    ]
    found = own_callbacks.without_writing(given, paths[:4])
    kinds = [NeutralCallback] * 3 + [own_callbacks.RestoreOnly]
    assert [type(each) for each in found[:4]] == kinds
    assert found[4:] == given[4:]


def train(ctx, folder):
    """Write in all the ways of Keras to one place, and fail once in the middle."""
    import keras

    folder = Path(folder)
    with ctx.strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), "mse")
    epochs = []

    class Failing(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            epochs.append(epoch)
            if ctx.generation == 0 and epoch == 2:
                raise RuntimeError("once more")

    own = keras.callbacks
    given = [
        own.ModelCheckpoint(folder / "best.weights.h5", save_weights_only=True),
        own.ModelCheckpoint(str(folder / "{epoch}.keras")),
        own.CSVLogger(folder / "log.csv"),
        own.TensorBoard(folder / "logs"),
        own.BackupAndRestore(folder / "backup"),
        own.CSVLogger(folder / f"rank-{ctx.rank}.csv"),
        Failing(),
    ]
    model.fit(X, X[:, :1], batch_size=4, epochs=4, shuffle=False, verbose=0, callbacks=given)
    for _ in range(20):
        model.save(folder / "model.keras")
        model.save_weights(folder / "model.weights.h5")
    ctx.barrier()
    again = keras.models.load_model(folder / "model.keras", compile=False)
    again.load_weights(folder / "best.weights.h5")
    ctx.barrier()
    return epochs, model.get_weights(), again.get_weights(), int(model.optimizer.iterations.numpy())


@pytest.mark.slow
@pytest.mark.usefixtures("by_value", "no_leaks")
def test_all_ranks_may_write_to_one_path_and_go_on_from_it(tmp_path):
    values, result = run_job(
        train, 2, "multi_worker_mirrored", arguments=(str(tmp_path),), max_restarts=1
    )
    assert [attempt.generation for attempt in result.attempts] == [0, 1]
    for epochs, weights, again, steps in values:
        assert epochs == [2, 3]
        assert steps == 16
        for one, other, chief in zip(weights, again, values[0][1], strict=True):
            np.testing.assert_array_equal(one, chief)
            np.testing.assert_array_equal(one, other)
    for path in [*tmp_path.glob("*.keras")]:
        assert zipfile.ZipFile(path).testzip() is None
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {
        *("best.weights.h5", "log.csv", "logs", "model.keras", "model.weights.h5"),
        *("rank-0.csv", "rank-1.csv", *(f"{epoch}.keras" for epoch in range(1, 5))),
    }
    logged = (tmp_path / "log.csv").read_text().splitlines()
    assert [line.partition(",")[0] for line in logged] == ["epoch", "2", "3"]
    # One for each life of the chief.
    assert len([*(tmp_path / "logs").rglob("*.v2")]) == len(result.attempts)


def train_tf_keras(ctx, folder):
    """Write in the ways of tf_keras to one place; return where it writes meanwhile."""
    import tf_keras
    from tf_keras.src.distribute import distributed_file_utils

    folder = Path(folder)
    with ctx.strategy.scope():
        model = tf_keras.Sequential([tf_keras.layers.Dense(1, input_shape=(4,))])
        model.compile("sgd", "mse")
    own = tf_keras.callbacks
    given = [
        own.ModelCheckpoint(str(folder / "weights-{epoch}"), save_weights_only=True),
        own.ModelCheckpoint(str(folder / "{epoch}.keras")),
        own.TensorBoard(str(folder / "logs")),
    ]
    model.fit(X, X[:, :1], batch_size=4, epochs=20, shuffle=False, verbose=0, callbacks=given)
    ctx.barrier()
    path = distributed_file_utils.write_filepath(str(folder / "more"), ctx.strategy)
    distributed_file_utils.remove_temp_dir_with_filepath(str(folder / "more"), ctx.strategy)
    model.load_weights(str(folder / "weights-20"))
    return path


@pytest.mark.slow
@pytest.mark.usefixtures("by_value", "no_leaks")
def test_tf_keras_writes_to_a_path_on_the_chief_alone(tmp_path):
    values, _ = run_job(
        train_tf_keras,
        2,
        "multi_worker_mirrored",
        arguments=(str(tmp_path),),
        env={"TF_USE_LEGACY_KERAS": "1"},
    )
    assert values == [f"{tmp_path}/more", f"{tmp_path}/workertemp_1/more"]
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {
        *("checkpoint", "logs", *(f"{epoch}.keras" for epoch in range(1, 21))),
        *(f"weights-{epoch}.index" for epoch in range(1, 21)),
        *(f"weights-{epoch}.data-00000-of-00001" for epoch in range(1, 21)),
    }
    assert len([*(tmp_path / "logs").rglob("*.v2")]) == 1


def resume_apart(ctx, folder):
    """Restore on the chief alone, which has what the other lacks."""
    import keras

    with ctx.strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    backup = keras.callbacks.BackupAndRestore(f"{folder}/{ctx.rank}", delete_checkpoint=False)
    model.fit(X, X[:, :1], batch_size=4, epochs=3, verbose=0, callbacks=[backup])


@pytest.mark.slow
@pytest.mark.usefixtures("by_value", "no_leaks")
def test_ranks_that_restore_something_else_are_refused(tmp_path):
    arguments = (str(tmp_path),)
    run_job(resume_apart, 2, "multi_worker_mirrored", arguments=arguments)
    shutil.rmtree(tmp_path / "1")
    with pytest.raises(errors.TrainingFailed) as caught:
        run_job(resume_apart, 2, "multi_worker_mirrored", arguments=arguments)
    first = caught.value.first
    assert "starts at epoch" in first.summary
    assert "12 updates" in first.summary
    assert "gradients of different models" in first.summary
    assert "must do so on all ranks" in first.summary


def change_apart(ctx, how):
    """Change weights or the learning rate on one rank."""
    import keras

    keras.utils.set_random_seed(1)
    with ctx.strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), "mse")

    class Changing(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if how == "rate" and ctx.rank == 1 and epoch == 1:
                self.model.optimizer.learning_rate = 0.05
            if how == "weights later" and ctx.rank == 1 and epoch == 1:
                self.model.layers[0].bias.assign([3.0])

    if how == "weights" and ctx.is_chief:  # as if it alone could read a file
        model.set_weights([np.full((4, 1), 5.0), np.zeros(1)])
    model.fit(X, X[:, :1], batch_size=4, epochs=3, verbose=0, callbacks=[Changing()])


@pytest.mark.slow
@pytest.mark.usefixtures("by_value", "no_leaks")
@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("weights", "at epoch 0 after 0 updates, its weight 'sequential/dense/kernel' has"),
        ("rate", "at epoch 2 after 8 updates, its learning rate is 0."),
        ("weights later", "at epoch 2 after 8 updates, its weight "),
    ],
)
def test_ranks_that_come_to_train_different_models_are_refused(how, words):
    with pytest.raises(errors.TrainingFailed) as caught:
        run_job(change_apart, 2, "multi_worker_mirrored", arguments=(how,))
    assert words in caught.value.first.summary
    assert "gradients of different models" in caught.value.first.summary


def restore_twice(ctx, folder):
    """Let two restore one model."""
    import keras

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    given = [*ctx.callbacks(), keras.callbacks.BackupAndRestore(folder)]
    with pytest.raises(errors.InvalidArgument) as caught:
        model.fit(X, X[:, :1], verbose=0, callbacks=given)
    return str(caught.value)


@pytest.mark.slow
@pytest.mark.usefixtures("by_value", "no_leaks")
def test_two_that_restore_one_model_are_refused(tmp_path):
    (words,), _ = run_job(restore_twice, arguments=(str(tmp_path),))
    assert "ctx.callbacks(checkpoint=False)" in words
