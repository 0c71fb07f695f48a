"""A row's list of numbers is a list in all that a program sees, whatever numpy makes it of."""

import copy
import gc
import heapq
import json
import pickle

import numpy as np
import pytest

from gridflow.compat.tfos._chunks import pickled as pickled_for_spark
from gridflow.compat.tfos._lists import NumberList, number_lists, pickled

SOURCES = ["int8", "int16", "int32", "int64", "float32", "float64"]
TARGETS = [None, bool, object, str, *SOURCES, "uint8", "float16", "longdouble", "complex128"]


def matrix(source):
    """Return rows whose items are odd in each way that their type knows."""
    kind = np.dtype(source)
    rows = np.random.default_rng(0).integers(-100, 100, (3, 50)).astype(kind)
    if kind.kind == "i":
        limits = np.iinfo(kind)
        rows[0, :2] = limits.min, limits.max
    else:
        rows[0, :4] = 0.1, -0.0, np.finfo(kind).max, np.finfo(kind).tiny
        rows[1, :3] = np.nan, np.inf, -np.inf
    return rows


def outcome(items, target):
    """Return what numpy makes of something, or of which kind the error is."""
    with np.errstate(all="ignore"):
        try:
            return np.array(items, target)
        except (OverflowError, ValueError, TypeError) as error:
            return type(error)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("source", SOURCES)
def test_numpy_makes_the_same_of_it_as_of_a_plain_list(source):
    rows = matrix(source)
    for target in TARGETS:
        for pick in (slice(None), slice(2, 3)):  # among all rows, and where nothing is odd
            ours = outcome(number_lists(rows)[pick], target)
            plain = outcome(rows.tolist()[pick], target)
            if isinstance(plain, type):
                assert ours is plain, target
                continue
            assert target is str or ours.dtype == plain.dtype, target
            assert repr(ours.tolist()) == repr(plain.tolist()), target  # -0.0 and NaN, too


@pytest.mark.parametrize("source", SOURCES)
def test_it_has_the_items_of_the_list_and_is_one(source):
    rows = matrix(source)
    for ours, plain in zip(number_lists(rows), rows.tolist(), strict=True):
        assert isinstance(ours, list)
        assert repr(ours) == repr(plain)
        assert [type(item) for item in ours] == [type(item) for item in plain]
        assert json.dumps(ours) == json.dumps(plain)
        assert type(ours[2:5]) is type(ours * 2) is list


CHANGES = {
    "an item": lambda x: x.__setitem__(1, -0.0),
    "a stretch": lambda x: x.__setitem__(slice(0, 2), [7, 8]),
    "deleted": lambda x: x.__delitem__(0),
    "+=": lambda x: x.__iadd__([1]),
    "*=": lambda x: x.__imul__(2),
    "append": lambda x: x.append("a text"),
    "extend": lambda x: x.extend([1, 2]),
    "insert": lambda x: x.insert(0, 3),
    "pop": lambda x: x.pop(),
    "remove": lambda x: x.remove(x[4]),
    "clear": lambda x: x.clear(),
    "sort": lambda x: x.sort(),
    "reverse": lambda x: x.reverse(),
    "by code in C": heapq.heapify,
    "by list itself": lambda x: list.__setitem__(x, 2, 5),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_numpy_sees_what_was_changed(change):
    rows = np.random.default_rng(1).random((1, 20))
    (ours,), (plain,) = number_lists(rows), rows.tolist()
    change(ours)
    change(plain)
    found, wanted = np.array(ours), np.array(plain)
    assert found.dtype == wanted.dtype
    assert found.tobytes() == wanted.tobytes()  # -0.0 is equal to 0.0
    assert pickle.loads(pickled([ours])) == [plain]


def test_an_array_of_it_is_the_programs_own():
    (ours,) = number_lists(np.ones((1, 4), np.float32))
    np.asarray(ours, np.float32)[:] = 5
    np.asarray(ours)[:] = 5
    assert np.asarray(ours, np.float32).tolist() == ours == [1, 1, 1, 1]


def test_it_doesnt_need_the_memory_that_it_was_made_of():
    memory = np.ones((2, 4), np.float32)
    first, _ = number_lists(memory)
    memory[:] = 9
    assert np.array(first).tolist() == first == [1, 1, 1, 1]


def test_to_a_node_it_goes_as_bytes_and_to_anybody_else_as_a_plain_list():
    rows = [(number, label) for label, number in enumerate(number_lists(matrix("float32")))]
    sent = pickle.loads(pickled(rows))
    assert [type(x) for x, _ in sent] == [NumberList] * 3
    assert all(x.numbers() is not None for x, _ in sent)
    np.testing.assert_array_equal(np.array([x for x, _ in sent]), matrix("float32"))
    assert len(pickled(rows)) < 0.7 * len(pickled_for_spark(rows))
    for plain in (
        pickle.loads(pickled_for_spark(rows))[0][0],
        pickle.loads(pickle.dumps(rows, 2))[0][0],
        copy.copy(rows[0][0]),
        copy.deepcopy(rows[0][0]),
    ):
        assert type(plain) is list
        assert repr(plain) == repr(rows[0][0])


def test_one_that_somebody_else_makes_is_a_list_too():
    made = NumberList([1, 2.5])
    assert np.array(made).tolist() == [1, 2.5]
    made.append(3)
    assert pickle.loads(pickled([made])) == [[1, 2.5, 3]]


def test_the_collector_finds_a_cycle_that_goes_through_it():
    class Kept:
        alive = 0

        def __init__(self, items):
            self.items = items
            Kept.alive += 1

        def __del__(self):
            Kept.alive -= 1

    for put in (
        lambda x, kept: x.append(kept),
        lambda x, kept: x.extend([kept]),
        lambda x, kept: x.insert(0, kept),
        lambda x, kept: x.__setitem__(0, kept),
        lambda x, kept: x.__iadd__([kept]),
    ):
        (ours,) = number_lists(np.ones((1, 4)))
        assert not gc.is_tracked(ours)
        put(ours, Kept(ours))
        put(ours, 1.0)
        del ours
        gc.collect()
        assert Kept.alive == 0
