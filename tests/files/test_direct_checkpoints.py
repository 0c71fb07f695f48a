"""Checkpoints that agents write to where they are kept, and read there: a folder, S3, HDFS."""

from __future__ import annotations

import numpy as np
import pytest

from gridflow._coordinator.rpc_handler import RpcHandler
from gridflow._features.checkpoints.remote import store_of
from gridflow._files import transfer
from gridflow._files.systems import where
from gridflow._spec.place import Place
from gridflow.errors import GridflowError

STORES = pytest.mark.parametrize("stored", ["s3", "hdfs"], indirect=True)


@pytest.fixture
def made(tmp_path):
    path = tmp_path / "made.npz"
    with path.open("wb") as file:
        np.savez(file, weights=np.arange(99.0))
    return path


def write(store, made, *place, label=None, generation=0):
    """Do what an agent does."""
    at = store.offer(generation, 0, Place(*place), label)
    transfer.put(made, where(at))
    return store.commit_stored(at, made.stat().st_size, Place(*place), label)


@STORES
def test_the_driver_commits_what_agents_have_written_and_another_driver_finds_it(
    stored, made, tmp_path
):
    place = where(f"{stored}/checkpoints")
    first = store_of(tmp_path / "first", place, 3, "first")
    for epoch in (1, 2, 3):
        newest = write(first, made, 0, epoch, 0, label=f"epoch {epoch}")
    assert first.label == "epoch 3"
    assert list((tmp_path / "first").glob("*.npz")) == []
    assert first.locate(newest).at.startswith(f"{stored}/checkpoints/checkpoint-0000-000003-")
    write(first, made, 0, 3, 0, label="again")
    first.close()
    kept = [name for name in transfer.names_in(place) if name.startswith("checkpoint-")]
    assert [name[:22] for name in kept if name.endswith(".npz")] == [
        "checkpoint-0000-000002",
        "checkpoint-0000-000003",
    ]
    assert len(kept) == 4
    second = store_of(tmp_path / "second", place, 2, "second")
    found, wrong = second.latest()
    assert (found.name, found.place, wrong) == (newest, Place(0, 3, 0), [])
    assert (second.workers, second.label) == (3, "again")
    transfer.fetch(where(second.locate(newest).at), tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == made.read_bytes()
    write(second, made, 0, 4, 0)
    assert second.latest()[0].place == Place(0, 4, 0)
    second.clear()
    second.close()
    assert transfer.names_in(place) == []


@pytest.mark.parametrize("stored", ["hdfs"], indirect=True)
def test_what_comes_incomplete_or_late_is_not_committed(stored, made, tmp_path):
    place = where(f"{stored}/checkpoints")
    store = store_of(tmp_path / "first", place, 1, "first")
    write(store, made, 0, 1, 0, label="one")
    at = store.offer(0, 0, Place(0, 2, 0), "two")
    with pytest.raises(GridflowError, match="can't be read: no such file"):
        store.commit_stored(at, made.stat().st_size, Place(0, 2, 0), "two")
    transfer.put(made, where(at))
    with pytest.raises(GridflowError, match="incomplete checkpoint"):
        store.commit_stored(at, made.stat().st_size + 1, Place(0, 2, 0), "two")
    store.begin(1)
    with pytest.raises(GridflowError, match="its generation is over"):
        store.commit_stored(at, made.stat().st_size, Place(0, 2, 0), "two")
    with pytest.raises(GridflowError, match="generation 0 is over"):
        store.offer(0, 0, Place(0, 2, 0))
    assert (store.latest()[0].place, store.label) == (Place(0, 1, 0), "one")
    write(store, made, 0, 3, 0, generation=1)
    names = transfer.names_in(place)
    assert not any("000002" in name for name in names), "what came late is deleted later"
    store.clear()
    store.close()


@pytest.mark.parametrize("stored", ["hdfs"], indirect=True)
def test_one_that_was_damaged_there_is_put_aside_and_the_one_before_is_taken(
    stored, made, tmp_path
):
    place = where(f"{stored}/checkpoints")
    store = store_of(tmp_path / "first", place, 1, "first")
    write(store, made, 0, 1, 0, label="one")
    newest = write(store, made, 0, 2, 0, label="two")
    made.write_bytes(b"?")
    transfer.put(made, where(store.locate(newest).at))
    latest, wrong = store.latest()
    assert (latest.place, store.label, len(wrong)) == (Place(0, 1, 0), "one", 1)
    assert newest.replace(".npz", ".unreadable") in transfer.names_in(place)
    store.clear()
    store.close()


def fit(ctx, fails_at):
    """Train for two epochs, and fail once before a step."""
    import keras

    class Fail(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if ctx.generation == 0 and self.model.optimizer.iterations.numpy() == fails_at:
                raise RuntimeError("on purpose")

    with ctx.strategy.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    rows = ctx.dataset("train", batch_size=8, features=["x"], label="y")
    model.fit(rows, epochs=2, verbose=0, callbacks=[*ctx.callbacks(), Fail()])
    return model.get_weights()


@pytest.mark.parametrize("stored", ["", "s3", "hdfs"], indirect=True)
def test_no_checkpoint_of_a_job_passes_the_driver_if_its_ranks_see_the_place(
    stored, distribute, monkeypatch
):
    through_the_driver = []

    def noting(name):
        done = getattr(RpcHandler, name)

        def method(self, header):
            through_the_driver.append(header["kind"])
            return done(self, header)

        monkeypatch.setattr(RpcHandler, name, method)

    noting("receive_file")
    noting("find_file")
    rows = {"x": np.arange(64.0, dtype="float32"), "y": np.arange(64.0, dtype="float32") / 64}
    rows["x"] /= 64
    distributor = distribute(
        2,
        "multi_worker_mirrored",
        checkpoint_dir=f"{stored}/checkpoints",
        checkpoint_every=1,
        max_restarts=1,
        seed=7,
    )
    result = distributor.run(fit, 6, data={"train": rows})
    assert [each.failure and each.failure.kind for each in result.attempts] == ["exception", None]
    assert "checkpoint" not in through_the_driver
    undisturbed = distribute(2, "multi_worker_mirrored", seed=7).run(fit, -1, data={"train": rows})
    for ours, theirs in zip(result.value, undisturbed.value, strict=True):
        assert np.abs(ours - theirs).max() <= 1e-6
