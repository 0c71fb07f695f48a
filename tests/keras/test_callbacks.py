"""What gridflow's own callbacks report, write and keep the same on all ranks."""

from __future__ import annotations

import collections
import dataclasses
import importlib
import importlib.util

import numpy as np
import pytest
from ranks import run_job

from gridflow._keras import callbacks
from gridflow._keras.neutral import NeutralCallback
from gridflow._spec.option_groups import TensorBoard, TrainingOptions
from gridflow.errors import GridflowError

ROWS, BATCH, EPOCHS = 64, 8, 2
rng = np.random.default_rng(0)
X = rng.normal(size=(ROWS, 4)).astype("float32")
DATA = {"rows": {"x": X, "y": X[:, :1] ** 2}}


def train(ctx, flavour):
    """Fit with everything on, validate, test and predict; return what was reported."""
    keras = importlib.import_module(flavour)
    callbacks._REPORT_SECONDS = 0.0  # every step, in this process
    said = overheard(ctx)
    keras.utils.set_random_seed(1)
    with ctx.strategy.scope():
        inner = keras.Sequential([keras.layers.Dense(6), keras.layers.BatchNormalization()])
        outer = [inner, keras.layers.BatchNormalization(momentum=0.5), keras.layers.Dense(1)]
        model = keras.Sequential(outer)
        model.compile("sgd", "mse")
    size = BATCH // ctx.num_workers

    def rows():
        return ctx.dataset("rows", batch_size=size, features="x", label="y")

    model.fit(rows(), validation_data=rows(), epochs=EPOCHS, verbose=0, callbacks=ctx.callbacks())
    fitted = said.pop("progress")
    quiet = ctx.callbacks(checkpoint=False)
    model.evaluate(rows(), verbose=0, callbacks=quiet)
    tested = said.pop("progress")
    model.predict(X, batch_size=BATCH, verbose=0, callbacks=quiet)
    events = ctx.tensorboard_dir.rglob("events.out.tfevents*") if ctx.is_chief else ()
    return {
        "fitted": fitted,
        "tested": tested,
        "predicted": said.pop("progress"),
        "epochs": [call["epoch"] for call in said["epoch_ended"]],
        "checkpoints": [tuple(call["place"][1:]) for call in said["made_checkpoint"]],
        "local": local_values(ctx, model),
        "events": sorted(path.parent.name for path in events),
    }


def overheard(ctx):
    """Note what the callbacks say to the driver, which still gets it."""
    said = collections.defaultdict(list)
    send = ctx._runtime.channel.send

    def note(message):
        said[message.kind].append(vars(message))
        return send(message)

    ctx._runtime.channel.send = note
    return said


def local_values(ctx, model):
    """Return what this rank itself holds of each weight, without asking the others."""
    import tensorflow as tf

    values = []
    for weight in model.weights:
        variable = getattr(weight, "_value", weight)
        parts = ctx.strategy.experimental_local_results(variable)
        values.append([np.array(tf.convert_to_tensor(part)) for part in parts])
    return values


@pytest.mark.slow
@pytest.mark.usefixtures("by_value", "no_leaks")
@pytest.mark.parametrize("flavour", ["keras", "tf_keras"])
def test_two_workers_report_the_same_and_hold_the_same(flavour):
    (chief, other), result = run_job(
        train, 2, "multi_worker_mirrored", arguments=(flavour,), data=DATA
    )
    steps = ROWS // BATCH
    for rank in (chief, other):
        trained = [r for r in rank["fitted"] if r["phase"] == "train"]
        # Each step, and once more the epoch's last with the validation's results.
        assert [(r["epoch"], r["step"]) for r in trained] == [
            (epoch, step) for epoch in range(EPOCHS) for step in [*range(1, steps + 1), steps]
        ]
        assert {r["steps_per_epoch"] for r in trained} == {steps}
        assert sum(r["rows"] for r in rank["fitted"]) == EPOCHS * ROWS // 2
        assert "val_loss" in trained[-1]["logs"]
        assert rank["fitted"][-1]["phase"] == "idle"
        validated = [r for r in rank["fitted"] if r["phase"] == "test"]
        assert len(validated) == EPOCHS * steps
        assert {r["phase"] for r in rank["fitted"][:-1]} == {"train", "test"}
        assert [r["phase"] for r in rank["tested"]] == ["test"] * steps + ["idle"]
        assert [r["phase"] for r in rank["predicted"]] == ["predict"] * steps + ["idle"]
    assert chief["epochs"] == [0, 1]
    assert len(result.history["loss"]) == EPOCHS
    assert other["epochs"] == []
    assert chief["checkpoints"] == [(1, 0), (2, 0)]
    assert other["checkpoints"] == []
    for mine, theirs in zip(chief["local"], other["local"], strict=True):
        np.testing.assert_array_equal(mine, theirs)
    if importlib.util.find_spec("tensorboard") is not None:
        # By the chief alone: of the fit one file each, and one of the evaluate after it.
        assert chief["events"] == ["train", "validation", "validation"]


PLAIN = TrainingOptions("none")


@dataclasses.dataclass(eq=False)
class Place:
    is_chief: bool = True
    chief_changes: bool = False
    trains_together: bool = False
    tensorboard_dir: object = "somewhere"
    training: TrainingOptions = PLAIN
    writer: object = None
    regrouping: object = None


COPIED = dataclasses.replace(PLAIN, tensorboard=TensorBoard(serve=False, copy_to="s3://logs"))


@pytest.mark.parametrize(
    ("training", "asked", "is_told"),
    [(PLAIN, None, False), (PLAIN, False, False), (PLAIN, True, True), (COPIED, None, True)],
)
def test_who_asks_for_event_files_is_told_that_the_package_is_missing(
    training, asked, is_told, monkeypatch, caplog
):
    monkeypatch.setattr(callbacks.importlib.util, "find_spec", lambda name: None)
    place = Place(training=training)
    built = callbacks.build(place, checkpoint=False, tensorboard=asked, progress=False)
    assert [type(each).__name__ for each in built] == ["EpochResults"]
    assert ("gridflow[tensorboard]" in caplog.text) is is_told


def test_tensorboard_is_for_the_chief_only():
    built = callbacks.build(Place(is_chief=False))
    assert not any(isinstance(each, callbacks.TensorBoardOf) for each in built)


def test_chief_only_leaves_the_others_a_callback_that_does_nothing(monkeypatch):
    mine = object()
    with pytest.raises(GridflowError, match="isn't running in a gridflow task"):
        callbacks.chief_only(mine)
    monkeypatch.setattr("gridflow._keras.runtime._current", Place())
    assert callbacks.chief_only(mine) is mine
    monkeypatch.setattr("gridflow._keras.runtime._current", Place(is_chief=False))
    assert type(callbacks.chief_only(mine)) is NeutralCallback


def test_the_callback_of_the_chief_is_the_next_ones_where_workers_come_and_go(monkeypatch):
    class Mine(NeutralCallback):
        def __init__(self):
            super().__init__()
            self.heard = []

        def set_model(self, model):
            self.heard.append(model)

        def on_epoch_end(self, epoch, logs=None):
            self.heard.append(epoch)

        def on_group_changed(self, members):
            self.heard.append(members)

    place = Place(is_chief=False, chief_changes=True)
    monkeypatch.setattr("gridflow._keras.runtime._current", place)
    mine = callbacks.chief_only(Mine())
    assert mine.has_own("on_epoch_end")
    assert not mine.has_own("on_train_batch_begin")
    for is_chief in (False, True):
        place.is_chief = is_chief
        mine.set_params({})
        mine.set_model("model")
        mine.on_train_begin()
        mine.on_group_changed((1, 2))
        mine.on_epoch_end(3)
    assert mine.heard == ["model", (1, 2), 3]


def test_checkpoint_every_is_checked_when_the_callback_is_made():
    with pytest.raises(ValueError, match="at least 1; got 0"):
        callbacks.build(Place(training=TrainingOptions("none", checkpoint_every=0)))
