"""What the driver puts into stores: checkpoints that outlive it, models."""

from __future__ import annotations

import numpy as np
import pytest
from fsspec.implementations.local import LocalFileSystem
from pyarrow import fs

from gridflow._features.checkpoints.remote import MirroredCheckpoints, store_of
from gridflow._files import transfer
from gridflow._files.systems import Where, where
from gridflow._spec.place import Place
from gridflow.errors import GridflowError, InvalidArgument
from gridflow.ml.model import TrainedModel
from suite.disk import files_of_at_most

STORES = pytest.mark.parametrize("stored", ["s3", "hdfs"], indirect=True)


def commit(store, *place, label=None):
    arrived = store.incoming(0, 0)
    with arrived.open("wb") as file:
        np.savez(file, weights=np.arange(99.0))
    return store.commit(arrived, Place(*place), label)


@STORES
def test_what_one_driver_has_committed_another_finds(stored, tmp_path):
    mirror = where(f"{stored}/checkpoints")
    first = MirroredCheckpoints(tmp_path / "first", mirror, num_workers=3)
    assert first.latest() == (None, [])
    for epoch in (1, 2, 3):
        newest = commit(first, 0, epoch, 0, label=f"epoch {epoch}")
    commit(first, 0, 3, 0, label="again")
    assert transfer.names_in(mirror) == [
        "checkpoint-0000-000002-000000000.label",
        "checkpoint-0000-000002-000000000.npz",
        "checkpoint-0000-000003-000000000.label",
        "checkpoint-0000-000003-000000000.npz",
        "num_workers",
    ]
    second = store_of(tmp_path / "second", mirror, 2)
    found, wrong = second.latest()
    assert (found.name, found.place, wrong) == (newest, Place(0, 3, 0), [])
    assert (second.workers, second.label) == (3, "again")
    with np.load(second.path(newest)) as arrays:
        assert arrays["weights"].sum() == np.arange(99.0).sum()
    second.clear()
    assert transfer.names_in(mirror) == []
    assert store_of(tmp_path / "third", mirror, 2).latest() == (None, [])


@pytest.mark.parametrize("stored", ["hdfs"], indirect=True)
def test_a_checkpoint_that_is_damaged_there_is_put_aside_there(stored, tmp_path):
    mirror = where(f"{stored}/checkpoints")
    first = MirroredCheckpoints(tmp_path / "first", mirror)
    name = commit(first, 0, 1, 0)
    with mirror.system.open_output_stream(f"{mirror.path}/{name}", compression=None) as file:
        file.write(b"?")
    with pytest.raises(GridflowError, match="no checkpoint in .* starts over"):
        MirroredCheckpoints(tmp_path / "second", mirror).latest()
    aside = name.replace(".npz", ".unreadable")
    assert transfer.names_in(mirror) == [aside, "num_workers"]
    third = MirroredCheckpoints(tmp_path / "third", mirror)
    assert third.latest() == (None, [])
    third.clear()
    assert transfer.names_in(mirror) == []


@STORES
def test_folders_and_files_come_whole_and_replace_what_was_there(stored, tmp_path):
    folder = tmp_path / "made"
    (folder / "variables").mkdir(parents=True)
    for name in ("saved_model.pb", "variables/data"):
        (folder / name).write_text(name)
    target = transfer.destination(f"{stored}/exports/1")
    for _ in range(2):
        transfer.put(folder, target)
        transfer.put(folder / "saved_model.pb", transfer.destination(f"{stored}/exports/file"))
    assert transfer.names_in(target) == ["saved_model.pb"]
    assert transfer.names_in(target.at(f"{target.path}/variables")) == ["data"]
    beside = target.at(target.path.rpartition("/")[0])
    assert transfer.names_in(beside) == ["file"]
    with pytest.raises(InvalidArgument, match=r"://.*/exports/1 already exists"):
        transfer.refuse_what_is_there(target)
    transfer.delete(target)
    transfer.delete(target)
    transfer.refuse_what_is_there(target)
    with pytest.raises(GridflowError, match=r"://.*/exports/1 can't be read"):
        transfer.fetch(target, tmp_path / "nothing")


class MovesNothingThatComes:
    """A file system that refuses to rename what came, such as one whose quota is used up."""

    def __init__(self, system):
        self.system = system

    def __getattr__(self, name):
        return getattr(self.system, name)

    def move(self, source, target):
        if "/.incoming-" in source and not source.endswith(".old"):
            raise OSError("no room left")
        self.system.move(source, target)


def test_what_was_there_comes_back_when_its_replacement_cannot_be_renamed(tmp_path):
    (tmp_path / "1").write_text("good")
    (tmp_path / ".incoming-1").write_text("new")
    system = MovesNothingThatComes(fs.LocalFileSystem())
    with pytest.raises(OSError, match="no room"):
        transfer._replace(Where(system, f"{tmp_path}/1"), f"{tmp_path}/.incoming-1")
    assert (tmp_path / "1").read_text() == "good"


def test_a_model_stays_when_another_cannot_be_saved_over_it(tmp_path):
    (tmp_path / "model.keras").write_bytes(b"m" * 1000)
    header = {"kind": "keras", "files": ["model.keras"], "inputs": {}, "outputs": {}}
    model = TrainedModel(header, tmp_path)
    (tmp_path / "saved").mkdir()
    saved = model.save(tmp_path / "saved" / "1.keras")
    with files_of_at_most(500), pytest.raises(OSError, match="large"):
        model.save(saved)
    assert saved.read_bytes() == b"m" * 1000
    assert list(saved.parent.iterdir()) == [saved]


def test_a_path_of_this_machine_stays_one(tmp_path, monkeypatch):
    assert transfer.destination("a/b") == transfer.destination("./a/b")
    assert str(transfer.destination("file:///a/b")) == "/a/b"
    with pytest.raises(InvalidArgument, match="unknown file system scheme 'nowhere'"):
        transfer.destination("nowhere://x")


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras' own
@STORES
def test_a_model_is_saved_and_exported_to_a_store(stored, tmp_path):
    import keras

    model = keras.Sequential([keras.Input((2,), name="x"), keras.layers.Dense(1)])
    model.save(tmp_path / "model.keras")
    header = {
        "kind": "keras",
        "class": "Sequential",
        "files": ["model.keras"],
        "backend": "tensorflow",
    }
    trained = TrainedModel(header, tmp_path)
    assert trained.save(f"{stored}/m.keras") == f"{stored}/m.keras"
    transfer.fetch(where(f"{stored}/m.keras"), tmp_path / "back.keras")
    x = np.ones((3, 2), "f4")
    again = keras.saving.load_model(tmp_path / "back.keras")
    np.testing.assert_allclose(again.predict(x, verbose=0), model.predict(x, verbose=0))
    with pytest.raises(InvalidArgument, match=r"end in \.keras"):
        trained.save(f"{stored}/m.h5")
    check = {"x": x}
    assert trained.export(f"{stored}/serving/1", check=check) == f"{stored}/serving/1"
    there = where(f"{stored}/serving/1")
    assert "saved_model.pb" in transfer.names_in(there)
    with pytest.raises(InvalidArgument, match="already exists"):
        trained.export(f"{stored}/serving/1")


class Flaky(LocalFileSystem):
    """Says that files are larger than what can be read of them."""

    def info(self, path, **options):
        found = super().info(path, **options)
        return found | {"size": found["size"] + 1} if found["type"] == "file" else found


def test_a_copy_that_ends_early_gets_no_name(tmp_path):
    system = fs.PyFileSystem(fs.FSSpecHandler(Flaky()))
    (tmp_path / "there").write_bytes(b"half of it")
    for name in ("fetched", "put"):
        (tmp_path / name).write_bytes(b"what was there")
    place = Where(system, str(tmp_path / "there"))
    with pytest.raises(GridflowError, match="can't be read: only 10 of 11 bytes were copied"):
        transfer.fetch(place, tmp_path / "fetched")
    with pytest.raises(GridflowError, match="can't be written: only 11 of 10 bytes were copied"):
        transfer.put(tmp_path / "there", place.at(str(tmp_path / "put")))
    for name in ("fetched", "put"):
        assert (tmp_path / name).read_bytes() == b"what was there"
    assert len(list(tmp_path.iterdir())) == 3
