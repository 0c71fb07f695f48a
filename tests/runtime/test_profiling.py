"""`JobHandle.profile`: the same steps of all ranks, among the job's event files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gridflow import InvalidArgument, LocalLauncher, TensorflowDistributor
from gridflow._spec import profiles
from suite.waiting import patience, wait_for


def trains_until_told(ctx, folder):
    """Train a small model until a file appears."""
    import keras

    class Stops(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            Path(folder, f"begun-{ctx.rank}").touch()
            self.model.stop_training = Path(folder, "stop").exists()

    with ctx.strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    rows = np.ones((64, 3), "float32"), np.ones((64, 1), "float32")
    model.fit(*rows, batch_size=8, epochs=10_000, verbose=0, callbacks=[Stops()])


def of_workers(backend="tensorflow"):
    return TensorflowDistributor(
        2, backend=backend, launcher=LocalLauncher(), logs="none", progress=False
    )


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_steps_of_all_ranks_are_profiled_while_they_train(backend, tmp_path, no_leaks):
    handle = of_workers(backend).start(trains_until_told, str(tmp_path))
    wait_for(lambda: len(list(tmp_path.glob("begun-*"))) == 2, "the first steps")
    folder = handle.profile((100, 110))
    assert folder == handle.job_dir / "tensorboard" / "plugins" / "profile" / "steps-100-110"
    names = {"worker-0.xplane.pb", "worker-1.xplane.pb"}
    wait_for(lambda: {each.name for each in folder.glob("*")} == names, "a file for each rank")
    (tmp_path / "stop").touch()
    handle.result(timeout=patience())
    for each in folder.iterdir():
        assert b"/host:CPU" in each.read_bytes()
    with pytest.raises(InvalidArgument, match=r"the job has ended: succeeded"):
        handle.profile((100, 110))


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        (100, "must be the first and the last step"),
        ((100,), "must be the first and the last step"),
        ((0, 10), "the first step must be a whole number of at least 1"),
        ((10, 9), "the last step must be a whole number of at least 10"),
        ((1, 1001), "at most 1,000"),
    ],
)
def test_what_are_no_steps_is_refused(steps, message):
    with pytest.raises(InvalidArgument, match=message):
        profiles.check(steps)
