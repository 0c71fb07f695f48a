"""Arrays and tables become Arrow files, split evenly among the ranks."""

import datetime as dt
import pickle

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridflow._feed.column import reason_against
from gridflow._feed.ingest.arrays import ArraySource, feedable, to_table
from gridflow.errors import InvalidArgument, SchemaError


@given(st.integers(0, 50), st.integers(1, 9))
def test_ranks_get_blocks_that_differ_by_at_most_one_row(tmp_path_factory, rows, ranks):
    place = tmp_path_factory.mktemp("local")
    dealt = ArraySource({"train": np.arange(rows)}).deal(ranks, place)
    parts = [list(pickle.loads(pickle.dumps(each)).batches()) for each in dealt]
    counts = [sum(batch.num_rows for _, batch in part) for part in parts]
    assert len(counts) == ranks
    assert max(counts) - min(counts) <= 1
    got = [value for part in parts for _, batch in part for value in batch.column("x").to_pylist()]
    assert got == list(range(rows))


def test_each_form_of_data_becomes_columns():
    images = np.arange(24, dtype=np.uint8).reshape(3, 2, 4)
    x = np.array([1.0, np.nan, 3.0])
    assert to_table(x).column_names == ["x"]
    assert to_table((images, x)).column_names == ["x", "y"]
    table = to_table({"image": images, "word": np.array(["a", "b", "c"]), "flag": x > 1})
    assert table.schema.field("image").type == pa.list_(pa.list_(pa.uint8(), 4), 2)
    assert table.column("image").to_pylist() == images.tolist()
    frame = pd.DataFrame(
        {"n": x, "s": ["a", None, "c"], "when": pd.to_datetime(["2024-01-01"] * 3)}
    )
    table = to_table(frame)
    assert table.column("n").null_count == 0
    assert table.column("s").null_count == 1
    assert to_table(table) is table
    assert to_table(pa.record_batch({"x": [1.0]})).to_pydict() == {"x": [1.0]}


def test_what_a_mask_hides_is_null():
    table = to_table(
        {
            "x": np.ma.array([1.0, 2.0], mask=[False, True]),
            "image": np.ma.array([[1, 2], [3, 4]], mask=[[False, True], [False, False]]),
            "rows": [np.ma.array([1, 2], mask=[True, False]), np.ma.array([3, 4])],
            "word": np.ma.array(["a", "b"], mask=[True, False]),
            "plain": np.ma.array([1, 2]),
        }
    )
    assert table.to_pydict() == {
        "x": [1.0, None],
        "image": [[1, None], [3, 4]],
        "rows": [[None, 2], [3, 4]],
        "word": [None, "b"],
        "plain": [1, 2],
    }


def test_lists_of_numbers_keep_their_integers():
    assert to_table({"x": [2**60 + 1, 3]}).to_pydict() == {"x": [2**60 + 1, 3]}
    with pytest.raises(SchemaError, match="the integer 1152921504606846977 would become the float"):
        to_table({"x": [0.5, 2**60 + 1]})


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"a": np.zeros(3), "b": np.zeros(2)}, "different lengths: a: 3, b: 2"),
        ((np.zeros(3),), "has 1 items"),
        ([1, 2], "is a list"),
        ({}, "is a dict"),
        ({"a": np.float32(3)}, "single value"),
        ({3: np.zeros(3)}, "must be text"),
        ({"a": np.array([{1}, 2], object)}, "can't become a column"),
    ],
)
def test_data_that_can_t_be_used_is_refused_with_its_name(rows, message):
    with pytest.raises(InvalidArgument, match=message):
        ArraySource({"train": rows})


def test_columns_that_can_t_be_fed_are_left_out_with_the_reason(tmp_path):
    frame = pd.DataFrame(
        [[1.0, dt.timedelta(1), object(), 4, 5]], columns=["x", "delta", "mixed", "twice", "twice"]
    )
    table, reasons = feedable(frame, "train")
    assert table.column_names == ["x"]
    unit = (
        pa.Table.from_pandas(frame[["delta"]]).schema.field("delta").type.unit
    )  # by pandas' version
    assert (
        f"type duration[{unit}], which can't become a tensor. Cast it to long" in reasons["delta"]
    )
    assert "'mixed' of dataset 'train' can't become a column" in reasons["mixed"]
    assert "'twice' of dataset 'train' is there 2 times" in reasons["twice"]
    source = ArraySource({"train": frame})
    assert source.left_out == {"train": reasons}
    assert source.columns == ("x", *reasons)
    (rows,) = source.deal(1, tmp_path)
    ((name, batch),) = rows.batches()
    assert (name, batch.schema.names) == ("train", ["x"])
    for whole in (frame[["delta"]], (np.zeros(1), np.array([dt.timedelta(1)]))):
        with pytest.raises(InvalidArgument, match="can't become a tensor"):
            feedable(whole, "train")


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([2**70, 1], "integers that don't fit into 64 bits. Make them floats or text"),
        (np.array([[-(2**70)], [1]], object), "integers that don't fit into 64 bits"),
        (pd.Series([2**70, 1]), "integers that don't fit into 64 bits"),
        (np.zeros((2, 3, 0)), "arrays without values, of the shape (3, 0). Leave it out"),
        (pd.to_datetime([1, 1000], unit="ns"), "would lose data: 1. Round it, as by pandas' .dt."),
        (np.array([[1], [1000]], "datetime64[ns]"), "would lose data: 1. Round it"),
        (np.array([2**60, 1], "datetime64[s]"), "out of bounds timestamp: 1152921504606846976"),
    ],
)
def test_values_that_have_no_tensor_leave_their_column_out_alone(values, reason):
    table, reasons = feedable({"odd": values, "x": np.zeros(2)}, "train")
    assert table.column_names == ["x"]
    assert reasons["odd"].startswith("column 'odd' of dataset 'train' ")
    assert reason in reasons["odd"]
    with pytest.raises(SchemaError, match="column 'odd' of dataset 'train'"):
        feedable({"odd": values}, "train")


@pytest.mark.parametrize(
    ("kind", "fits"),
    [
        (pa.dictionary(pa.int8(), pa.string()), True),
        (pa.list_(pa.list_(pa.float32())), True),
        (pa.binary_view(), True),
        (pa.timestamp("ns", "UTC"), True),
        (pa.map_(pa.string(), pa.int8()), False),
        (pa.list_(pa.decimal128(9, 2)), True),
        (pa.struct({"a": pa.int8(), "b": pa.null()}), True),
        (pa.struct({"b": pa.null()}), False),
        (pa.list_view(pa.int8()), False),
        (pa.null(), False),
        (pa.uuid(), True),
    ],
)
def test_a_type_alone_tells_whether_a_column_can_be_fed(kind, fits):
    assert (reason_against(kind, "it") is None) == fits


def test_names_and_numbers_of_ranks_are_checked(tmp_path):
    with pytest.raises(InvalidArgument, match="identifier"):
        ArraySource({"../x": np.zeros(3)})
    with pytest.raises(InvalidArgument, match="num_ranks"):
        ArraySource({"x": np.zeros(3)}).deal(0, tmp_path)
