"""A rank that dies under JAX or torch: an error that names it, or training again from there."""

from __future__ import annotations

import numpy as np
import pytest

from gridflow import LocalLauncher, Restarts, TensorflowDistributor, errors
from suite.new_process import skip_without

ROWS = 61


def rows():
    """Return rows of a linear relation."""
    x = np.random.default_rng(1).normal(size=(ROWS, 3)).astype("float32")
    return {"rows": {"x": x, "y": (x @ [1.0, 2.0, -1.0]).astype("float32")}}


def build(keras):
    layers = keras.layers
    model = keras.Sequential(
        [keras.Input((3,)), layers.Dense(4), layers.Dropout(0.3), layers.Dense(1)]
    )
    model.compile(keras.optimizers.Adam(0.02), "mse", metrics=["mae"])
    return model


def train(ctx, victim):
    """Train; in the second epoch of the first generation a rank is killed."""
    import os
    import signal

    import keras

    model = build(keras)

    class Murder(keras.callbacks.Callback):
        epoch = 0

        def on_epoch_begin(self, epoch, logs=None):
            self.epoch = epoch

        def on_train_batch_end(self, batch, logs=None):
            if (self.epoch, batch, ctx.rank, ctx.generation) == (1, 5, victim, 0):
                os.kill(os.getpid(), signal.SIGKILL)

    data = ctx.dataset("rows", batch_size=4, features="x", label="y", shuffle=True)
    callbacks = [*ctx.callbacks(tensorboard=False), Murder()]
    history = model.fit(data, epochs=3, verbose=0, callbacks=callbacks)
    return {"weights": model.get_weights(), "history": history.history}


def test_a_killed_chief_ends_the_job_with_an_error_that_names_it(distribute):
    with pytest.raises(errors.TrainingFailed) as caught:
        distribute().run(train, 0, data=rows())
    first = caught.value.first
    assert (first.task, first.kind, first.signal) == ("worker:0", "signal", "SIGKILL")


def test_after_a_death_training_goes_on_exactly_from_the_checkpoint(distribute):
    undisturbed = distribute(seed=4).run(train, None, data=rows()).value
    result = distribute(seed=4, max_restarts=1, checkpoint_every=2).run(train, 1, data=rows())
    first, second = result.attempts
    assert (first.failure.task, first.failure.signal) == ("worker:1", "SIGKILL")
    assert second.resumed_from[0] == 1
    for have, want in zip(result.value["weights"], undisturbed["weights"], strict=True):
        np.testing.assert_allclose(have, want, atol=1e-6)
    for name, values in undisturbed["history"].items():
        np.testing.assert_allclose(result.value["history"][name], values, rtol=1e-5)


def train_with_validation(ctx, death, folder):
    """Train; at ``death``, the kind of a batch and its number in the second epoch, rank 1 dies.

    Or before its fit; the weights of its new process are others until then.
    """
    import os
    import signal
    from pathlib import Path

    import keras

    model = build(keras)

    class Murder(keras.callbacks.Callback):
        epoch = 1

        def on_epoch_begin(self, epoch, logs=None):
            self.epoch = epoch

        def on_train_batch_end(self, batch, logs=None):
            self.at("train", batch)

        def on_test_batch_end(self, batch, logs=None):
            self.at("test", batch)

        def at(self, kind, batch):
            mark = Path(folder, "dead")
            if (ctx.rank, self.epoch, kind, batch) == (1, 1, *death) and not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)

    data, validation = (
        ctx.dataset("rows", batch_size=4, features="x", label="y", shuffle=shuffle)
        for shuffle in (True, False)
    )
    callbacks = [*ctx.callbacks(tensorboard=False), Murder()]
    if ctx.rank == 1 and Path(folder, "dead").exists():
        model.set_weights([weight + 1 for weight in model.get_weights()])
    callbacks[-1].at("fit", 0)
    history = model.fit(data, epochs=3, validation_data=validation, verbose=0, callbacks=callbacks)
    return {"weights": model.get_weights(), "history": history.history}


@pytest.mark.slow
@pytest.mark.parametrize("death", [("train", 5), ("train", 7), ("test", 3), ("fit", 0)], ids=str)
def test_on_torch_the_others_go_on_from_the_step_after_which_a_rank_died(death, tmp_path):
    skip_without("torch")

    def run(death, **options):
        distributor = TensorflowDistributor(
            2,
            backend="torch",
            launcher=LocalLauncher(),
            seed=4,
            logs="none",
            progress=False,
            **options,
        )
        return distributor.run(train_with_validation, death, str(tmp_path), data=rows())

    undisturbed = run((None, None)).value
    result = run(death, restarts=Restarts(max_replacements=1))
    (attempt,) = result.attempts
    assert [(each.task, each.signal) for each in attempt.replaced] == [("worker:1", "SIGKILL")]
    for value in result.values:
        for have, want in zip(value["weights"], undisturbed["weights"], strict=True):
            np.testing.assert_allclose(have, want, atol=1e-6)
    for name, values in undisturbed["history"].items():
        found = result.value["history"][name]
        # In the second epoch, what the rank had counted until it died is lacking.
        epochs = slice(None) if name.startswith("val_") else slice(None, None, 2)
        np.testing.assert_allclose(found[epochs], values[epochs], rtol=1e-5)
