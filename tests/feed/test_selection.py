"""The forms of features and label."""

import numpy as np
import pytest

from gridflow._feed.selection import select
from gridflow.errors import DataError, InvalidArgument, SchemaError

SPECS = {
    "a": (np.dtype("i8"), ()),
    "b": (np.dtype("f8"), ()),
    "v": (np.dtype("f4"), (4,)),
    "s": ("string", ()),
    "free": (np.dtype("f4"), (None,)),
}


@pytest.mark.parametrize(
    ("form", "packed"),
    [
        ("a", 0),
        (["a"], 0),
        (["a", "b"], {"a": 0, "b": 1}),
        ([["a", "b"]], 0),
        ({"one": "a", "two": ["b", "v"]}, {"one": 0, "two": 1}),
    ],
)
def test_each_form_has_its_structure(form, packed):
    selection = select(SPECS, form, "b", "a")
    count = len(selection.tensors)
    assert selection.pack(range(count)) == (packed, count - 2, count - 1)
    assert select(SPECS, form).pack(range(count)) == packed


def test_stacked_columns_lie_beside_each_other_as_float32():
    (tensor,) = select(SPECS, [["a", "v", "b"]]).tensors
    assert tensor.row_shape == (6,)
    assert tensor.widths == (1, 4, 1)
    assert tensor.dtype == np.float32


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"features": "bb"}, SchemaError, "It has: a, b, v, s, free. Did you mean 'b'"),
        ({"features": "a", "label": "z"}, SchemaError, "label: dataset 'data' has no column 'z'"),
        ({"features": [["a", "s"]]}, SchemaError, "'s' .* holds text"),
        ({"features": []}, InvalidArgument, "features must be"),
        ({"features": ["a", ["b"]]}, InvalidArgument, "features must be"),
        ({"features": [[]]}, InvalidArgument, "features has"),
        ({"features": 3}, InvalidArgument, "got 3"),
        ({"features": "a", "sample_weight": "b"}, InvalidArgument, "needs a label"),
        (
            {"features": "a", "label": ["b", "v"], "sample_weight": {"b": "a"}},
            InvalidArgument,
            r"a column for each of them: {'b': '…', 'v': '…'}.*got sample_weight={'b': 'a'}",
        ),
        ({"features": "a", "label": "b", "sample_weight": {"b": "a"}}, InvalidArgument, "several"),
        ({"features": "free"}, DataError, "the length of the arrays in column 'free'"),
    ],
)
def test_what_does_not_fit_is_refused(options, error, message):
    with pytest.raises(error, match=message):
        select(SPECS, **options)
