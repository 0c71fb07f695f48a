"""What ranks tell one another comes back as it was, and is never code."""

from __future__ import annotations

import contextlib
import pickle

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridflow._wire.values import MOST_BYTES, pack, unpack
from gridflow.errors import InvalidArgument, WireError

plain = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(), st.binary()
)
keys = st.one_of(st.integers(), st.text(), st.tuples(st.integers(), st.text()))
values = st.recursive(
    plain,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(keys, inner, max_size=4),
    ),
    max_leaves=20,
)


@given(values)
def test_plain_values_come_back_as_they_were(value):
    found = unpack(pack(value))
    assert found == value
    assert repr(found) == repr(value)  # True isn't 1, a tuple is no list


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype="float16").reshape(2, 3).T,
        np.zeros((0, 3), "int64"),
        np.array(["a", "bc"]),
        np.array(5.0),
        np.array(["2026-01-01"], "datetime64[ns]"),
        np.float32(0.1),
        np.bool_(1),
    ],
)
def test_arrays_keep_type_and_shape(array):
    found = unpack(pack({"it": [array]}))["it"][0]
    assert type(found) is type(array)
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    np.testing.assert_array_equal(found, array)


class Mine(dict):
    """No plain dict: what it is would be lost."""


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (object(), "got object"),
        ({1, 2}, "got set"),
        ([Mine()], "got Mine"),
        (np.array([object()]), "ndarray of object"),
        (b"x" * (MOST_BYTES + 1), "limit 1,048,576"),
        (lambda: 0, "got function"),
    ],
)
def test_what_is_not_plain_is_refused_with_what_is(value, words):
    with pytest.raises(InvalidArgument) as caught:
        pack(value)
    assert words in str(caught.value)


def test_a_value_that_holds_itself_is_refused():
    value = []
    value.append(value)
    with pytest.raises(InvalidArgument, match="limit: 64 levels"):
        pack(value)


class Evil:
    def __reduce__(self):
        return print, ("unpickled",)


@pytest.mark.parametrize("code", [2, 7])
def test_nothing_is_unpickled(code, capsys):
    bad = msgspec.msgpack.Ext(code, msgspec.msgpack.encode([False, pickle.dumps(Evil())]))
    with pytest.raises(WireError):
        unpack(msgspec.msgpack.encode(bad))
    assert capsys.readouterr().out == ""


@given(st.binary())
def test_any_bytes_are_a_value_or_an_error(data):
    with contextlib.suppress(WireError):
        unpack(data)
