"""The checkpoints that the driver keeps: which is the newest, and what if it can't be read."""

from __future__ import annotations

import numpy as np
import pytest

from gridflow._features.checkpoints.store import CheckpointStore
from gridflow._keras.resume.checkpoint_file import Checkpoint, Entry
from gridflow._spec.place import Place
from gridflow.errors import GridflowError


@pytest.fixture
def store(tmp_path):
    return CheckpointStore(tmp_path)


def commit(store, *place):
    arrived = store.incoming(0, 0)
    with arrived.open("wb") as file:
        np.savez(file, weights=np.arange(99.0))
    return store.commit(arrived, Place(*place))


def test_those_of_a_later_fit_are_newer_whatever_their_epoch(store):
    commit(store, 0, 4, 0)
    commit(store, 0, 5, 0)
    commit(store, 1, 0, 3)
    second = commit(store, 1, 1, 0)
    latest, wrong = store.latest()
    assert (latest.name, latest.place, wrong) == (second, Place(1, 1, 0), [])
    assert len(list(store.folder.glob("*.npz"))) == 2


def test_another_number_of_workers_goes_on_between_two_epochs(store):
    store.keeps_epochs = True
    for place in ((0, 0, 5), (0, 1, 0), (0, 1, 4), (0, 1, 8), (0, 1, 12)):
        commit(store, *place)
    assert len(list(store.folder.glob("*.npz"))) == 3
    assert store.latest()[0].place == Place(0, 1, 12)
    assert store.latest(between_epochs=True)[0].place == Place(0, 1, 0)
    assert store.latest()[0].place == Place(0, 1, 0), "the others are of no use any more"


def test_without_one_between_two_epochs_it_begins_anew(store):
    commit(store, 0, 0, 5)
    assert store.latest(between_epochs=True) == (None, [])
    assert store.latest() == (None, [])


def test_an_agent_that_comes_back_late_adds_none_to_those_of_the_next_generation(store):
    commit(store, 0, 0, 1)
    under_way = store.incoming(0, 0)
    under_way.write_bytes(b"half of it")
    store.begin(1)
    with pytest.raises(GridflowError, match="generation is over"):
        store.commit(under_way, Place(0, 0, 2), label="rows-2")
    with pytest.raises(GridflowError, match="generation 0 is over"):
        store.incoming(0, 0)
    under_way.write_bytes(b"that was about to be opened")
    with pytest.raises(GridflowError, match="generation is over"):
        store.commit(under_way, Place(0, 0, 2), label="rows-2")
    assert not under_way.exists()
    assert store.latest()[0].place == Place(0, 0, 1)
    assert store.label is None
    arrived = store.incoming(1, 0)
    arrived.write_bytes(b"a whole one")
    assert store.commit(arrived, Place(0, 0, 3)) == "checkpoint-0000-000000-000000003.npz"


def test_one_with_nan_which_earlier_releases_made_is_never_the_newest(store):
    for step, value in enumerate((1.0, np.nan)):
        arrived = store.incoming(0, 0)
        kernel = Entry("model", "dense/kernel", np.array([value]))
        Checkpoint("keras", 0, 0, step, entries=[kernel]).write(arrived)
        store.commit(arrived, Place(0, 0, step))
    latest, wrong = store.latest()
    assert latest.place == Place(0, 0, 0)
    newest = "checkpoint-0000-000000-000000001.npz"
    assert wrong == [f"{newest} has a variable that isn't finite ('dense/kernel')"]


@pytest.mark.parametrize("damage", ["cut", "changed", "emptied"])
def test_the_one_before_is_taken_if_the_newest_can_not_be_read(store, damage):
    commit(store, 0, 1, 0)
    newest = commit(store, 0, 2, 0)
    whole = store.path(newest).read_bytes()
    store.path(newest).write_bytes(
        {"cut": whole[:-30], "changed": whole[:300] + b"?" + whole[301:], "emptied": b""}[damage]
    )
    latest, wrong = store.latest()
    assert latest.place == Place(0, 1, 0)
    assert len(wrong) == 1
    assert wrong[0].startswith(f"{newest} can't be read (")
    again, nothing = store.latest()
    assert (again, nothing) == (latest, [])


def test_no_run_begins_anew_because_all_that_is_there_is_damaged(store):
    for epoch in (1, 2):
        store.path(commit(store, 0, epoch, 0)).write_bytes(b"?")
    with pytest.raises(GridflowError, match="no checkpoint in .* can be used"):
        store.latest()
    assert store.latest() == (None, [])
    store.clear()
    assert list(store.folder.iterdir()) == []


def test_the_label_is_that_of_the_checkpoint_that_is_taken(store):
    arrived = store.incoming(0, 0)
    with arrived.open("wb") as file:
        np.savez(file, weights=np.arange(99.0))
    store.commit(arrived, Place(0, 1, 0), "rows-1")
    damaged = store.incoming(0, 0)
    damaged.write_bytes(b"?")
    store.commit(damaged, Place(0, 2, 0), "rows-2")
    assert store.label == "rows-2"
    latest, wrong = store.latest()
    assert (latest.place, len(wrong)) == (Place(0, 1, 0), 1)
    assert store.label == "rows-1"
    assert CheckpointStore(store.folder).label == "rows-1"
    store.clear()
    assert list(store.folder.iterdir()) == []


def test_places_of_any_length_are_found_again(store):
    commit(store, 0, 4, 0)
    name = commit(store, 12_345, 1_234_567, 1_234_567_890)
    assert store.latest()[0].name == name


@pytest.mark.parametrize("name", ["num_workers", ".bashrc", "../x", "checkpoint-1.npz", ""])
def test_only_checkpoints_are_given_out(store, name):
    with pytest.raises(GridflowError, match="not a checkpoint name"):
        store.stored(name)
