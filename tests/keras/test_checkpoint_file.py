"""What a checkpoint holds comes back as it was: variables, and what callbacks remember."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import json
import random
import threading
import types

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from gridflow._keras.resume.checkpoint_file import Checkpoint, Entry, check_same
from gridflow._keras.resume.memory import Memory
from gridflow.errors import GridflowError, InvalidArgument

values = arrays_of.arrays(
    st.sampled_from(["float32", "float64", "int64", "uint32", "bool"]),
    arrays_of.array_shapes(min_dims=0, max_dims=3, max_side=3),
)


@given(
    named=st.lists(st.tuples(st.text(), values)), step=st.integers(0, 99), finished=st.booleans()
)
@settings(max_examples=40, deadline=None)
def test_what_is_written_is_read_back(named, step, finished, tmp_path_factory):
    path = tmp_path_factory.mktemp("checkpoint") / "c.npz"
    entries = [Entry("model", name, value) for name, value in named]
    written = Checkpoint(
        "keras", 1, 2, step, finished, 7, [(2, step)], {"loss": [1.5]}, [0], entries=entries
    )
    written.write(path)
    read = Checkpoint.read(path)
    assert [path.name] == [each.name for each in path.parent.iterdir()]
    assert dataclasses.replace(read, entries=[]) == dataclasses.replace(written, entries=[])
    for have, want in zip(read.entries, entries, strict=True):
        assert (have.group, have.name) == (want.group, want.name)
        assert have.value.dtype == want.value.dtype
        np.testing.assert_array_equal(have.value, want.value)


def test_a_type_that_numpy_does_not_know_is_read_back(tmp_path):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    value = np.arange(6).reshape(2, 3).astype(ml_dtypes.bfloat16)
    Checkpoint("keras", 0, 0, 0, entries=[Entry("model", "w", value)]).write(tmp_path / "c.npz")
    read = Checkpoint.read(tmp_path / "c.npz").entries[0].value
    assert read.dtype == value.dtype
    np.testing.assert_array_equal(read, value)


@given(noise=st.binary(max_size=200), at=st.integers(0, 4000))
@settings(max_examples=40, deadline=None)
def test_a_damaged_file_is_an_error_of_ours_or_still_right(noise, at, tmp_path_factory):
    path = tmp_path_factory.mktemp("checkpoint") / "c.npz"
    entry = Entry("model", "w", np.arange(200.0))
    Checkpoint("keras", 0, 0, 0, entries=[entry]).write(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:at] + noise)
    with contextlib.suppress(GridflowError):
        # A few damages leave all of it intact: bytes after the end, the very same bytes.
        read = Checkpoint.read(path)
        np.testing.assert_array_equal(read.entries[0].value, entry.value)


def test_a_model_that_differs_is_refused_by_name():
    there = [Entry("model", "dense/kernel", np.zeros((4, 8)))]
    with pytest.raises(InvalidArgument, match=r"shape \(4, 16\).*'dense/kernel' with shape \(4, 8"):
        check_same(there, ["dense/kernel"], [(4, 16)], "model")
    with pytest.raises(InvalidArgument, match="1 variables for the model, which now has 2"):
        check_same(there, ["a", "b"], [(1,), (1,)], "model")


NAN, INF = np.array([1.0, np.nan], "float32"), np.array([1.0, np.inf], "float32")


@pytest.mark.parametrize(
    ("entry", "is_wrong"),
    [
        (Entry("model", "dense/kernel", NAN), True),
        (Entry("model", "dense/kernel", INF), True),
        (Entry("optimizer", "adam/momentum", INF), True),
        (Entry("optimizer beside the model's own 0", "sgd/momentum", NAN), True),
        (Entry("model", "batch_normalization/mean", NAN, is_trained=False), True),
        (Entry("model", "attention/mask", -INF, is_trained=False), False),
        (Entry("optimizer", "loss_scale_optimizer/dynamic_scale", INF), False),
        (Entry("optimizer", "current_loss_scale:0", INF), False),
        (Entry("metrics", "loss/total", NAN), False),
        (Entry("model", "dense/kernel", np.array([1, 2])), False),
    ],
)
def test_a_checkpoint_knows_which_of_its_variables_is_not_finite(entry, is_wrong):
    fine = Entry("model", "dense/bias", np.zeros(2, "float32"))
    found = Checkpoint("keras", 0, 0, 0, entries=[fine, entry]).not_finite()
    assert found == (entry.name if is_wrong else "")


class Remembering:
    """A callback of the user's, with memory of every kind."""

    of_class = []  # noqa: RUF012 (as users do it)

    def __init__(self, shared):
        self.shared, self.value, self.name, self.me = shared, None, "as made", self
        self.array, self.random, self.generator = (
            np.zeros(3),
            random.Random(1),
            np.random.default_rng(1),
        )
        self.counts, self.last = collections.Counter(), collections.deque(maxlen=2)
        self.lock = threading.Lock()

    def go_on(self):
        self.shared.append(self.random.random() + self.generator.random())
        self.of_class.append(len(self.shared))
        self.array += len(self.shared)
        self.counts["calls"] += 1
        self.last.append(self.array.sum())


def remembered(callbacks, changes):
    """Let callbacks change, and return their memory as it comes back from a file."""
    memory = Memory(callbacks, list, is_restored=False)
    changes()
    told, arrays = memory.read()
    return json.loads(json.dumps(told)), arrays


def test_memory_is_restored_in_place():
    def life():
        count, shared = 0, []

        def function():
            nonlocal count
            count += 1
            return count

        mine = Remembering(shared)
        return mine, [mine, types.SimpleNamespace(), Calling(function)], function

    class Calling:
        def __init__(self, function):
            self.function = function

    first, callbacks, function = life()
    told, arrays = remembered(callbacks, lambda: (first.go_on(), first.go_on(), function()))
    Remembering.of_class.clear()
    second, callbacks, again = life()
    second.name, shared, array = "made otherwise", second.shared, second.array
    memory = Memory(callbacks, list, is_restored=True)
    second.value, second.array[:] = "changed after the fit began, and no more then", 7
    memory.restore(told, arrays)
    assert (second.shared, second.array) == (shared, pytest.approx(first.array))
    assert second.shared is shared
    assert second.array is array
    assert Remembering.of_class == [1, 2]
    assert (second.name, second.value) == ("made otherwise", None)
    for each in (first, second):
        each.go_on()
    assert second.shared == first.shared
    assert (second.counts, second.last) == (first.counts, first.last)
    assert (again(), function()) == (2, 2)


plain = st.one_of(
    *(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(), st.binary())
)

nested = st.recursive(
    st.one_of(plain, values),
    lambda each: st.one_of(
        *(st.lists(each), st.lists(each).map(tuple), st.dictionaries(plain, each)),
        *(st.sets(plain), st.frozensets(plain)),
    ),
    max_leaves=6,
)


@given(value=nested)
@settings(max_examples=60, deadline=None)
def test_any_plain_value_is_remembered(value):
    first, second, third = (types.SimpleNamespace(value=0) for _ in range(3))
    told, arrays = remembered([first], lambda: vars(first).update(value=value))
    Memory([second], list, is_restored=True).restore(told, arrays)
    again, _ = remembered([third], lambda: vars(third).update(value=second.value))
    assert again == told
