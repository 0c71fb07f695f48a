"""What arrives becomes columns of fixed shape without nulls, or an error that names the column."""

import datetime as dt
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridflow._feed.normalize import FeedOptions, Findings, normalise, tensor_specs
from gridflow.errors import DataError, InvalidArgument, SchemaError


def batch(**columns):
    return pa.RecordBatch.from_pydict(columns)


def fixed(rows, options=FeedOptions(), expected=None):  # noqa: B008 - frozen
    return normalise(rows, "train", options, expected)


def test_a_list_of_regular_length_becomes_a_fixed_size_list_without_a_copy():
    values = pa.array(np.arange(12, dtype=np.float32))
    rows = batch(x=pa.ListArray.from_arrays(pa.array([0, 4, 8, 12], pa.int32()), values))
    out, dropped = fixed(rows)
    assert out.column("x").type == pa.list_(pa.float32(), 4)
    assert dropped == 0
    assert out.column("x").values.buffers()[1].address == values.buffers()[1].address
    assert tensor_specs(out.schema) == {"x": (np.dtype("f4"), (4,))}


def test_nested_lists_slices_and_large_lists_keep_their_values():
    nested = pa.array([[[1, 2], [3, 4], [5, 6]], [[7, 8], [9, 10], [11, 12]]] * 3)
    out, _ = fixed(batch(x=nested).slice(1, 4))
    assert tensor_specs(out.schema)["x"] == (np.dtype("i8"), (3, 2))
    assert out.column("x").to_pylist() == nested.to_pylist()[1:5]
    large = pa.array([[1.0], [2.0], [3.0]], pa.large_list(pa.float64()))
    assert fixed(batch(x=large).slice(1))[0].column("x").to_pylist() == [[2.0], [3.0]]


def test_a_changing_length_is_an_error_that_names_column_and_lengths():
    with pytest.raises(DataError, match=r"'x' of dataset 'train' has arrays of 2 and of 3"):
        fixed(batch(x=[[1, 2], [1, 2, 3]]))
    first, _ = fixed(batch(x=[[1, 2]]))
    with pytest.raises(DataError, match=r"arrays of 2 and of 1"):
        fixed(batch(x=[[1]]), expected=first.schema)


@pytest.mark.parametrize("options", [FeedOptions(), FeedOptions(nulls={"x": 0})])
def test_arrays_that_are_all_empty_are_refused_in_words(options):
    rows = [[], []] if options == FeedOptions() else [[], None]
    with pytest.raises(DataError, match=r"'x' of dataset 'train' has only empty arrays.*Ragged"):
        fixed(batch(x=pa.array(rows, pa.list_(pa.int64()))), options)
    with pytest.raises(DataError, match=r"'x' of dataset 'train' has only empty arrays"):
        fixed(batch(x=pa.array([[[], []]], pa.list_(pa.list_(pa.int64())))))


def test_a_changing_type_is_an_error():
    first, _ = fixed(batch(x=[1, 2]))
    with pytest.raises(DataError, match=r"was int64 .* is now double"):
        fixed(batch(x=[1.0]), expected=first.schema)
    with pytest.raises(DataError, match="the same columns"):
        fixed(batch(z=[1]), expected=first.schema)


def test_booleans_dates_and_timestamps_become_numbers():
    moment = dt.datetime(2024, 2, 3, 4, 5, 6, 7, tzinfo=dt.UTC)
    out, _ = fixed(
        batch(
            b=[True, False],
            bs=[[True, False], [False, False]],
            d=[dt.date(1970, 1, 2), dt.date(1969, 12, 31)],
            t=pa.array([moment, moment], pa.timestamp("us", "Europe/Berlin")),
            n=pa.array([moment.replace(tzinfo=None)] * 2, pa.timestamp("ns")),
        )
    )
    specs = tensor_specs(out.schema)
    assert specs["b"] == (np.dtype(bool), ())
    assert specs["bs"] == (np.dtype(bool), (2,))
    assert out.column("b").to_pylist() == [1, 0]
    assert out.column("d").to_pylist() == [1, -1]
    microseconds = int(moment.timestamp() * 1e6)
    assert out.column("t").to_pylist() == [microseconds] * 2
    assert out.column("n").to_pylist() == [microseconds] * 2


def test_moments_finer_than_microseconds_are_refused_and_not_cut():
    findings = Findings()
    rows = batch(x=[1], t=pa.array([[1001]], pa.list_(pa.timestamp("ns"))))
    out, _ = normalise(rows, "train", FeedOptions(), findings=findings)
    assert out.schema.names == ["x"]
    assert "column 't' of dataset 'train' can't become a tensor" in findings.left_out["t"]
    assert "would lose data: 1001. Round it, as by" in findings.left_out["t"]


def test_text_binary_and_dictionaries_stay_text():
    words = pa.array(["a", "b", "a"])
    out, _ = fixed(
        batch(
            s=words,
            ls=words.cast(pa.large_string()),
            b=pa.array([b"1", b"", b"\0"]),
            d=words.dictionary_encode(),
            f=pa.array([b"ab"] * 3, pa.binary(2)),
            many=[["x", "y"]] * 3,
        )
    )
    specs = tensor_specs(out.schema)
    assert {name: spec[1] for name, spec in specs.items()}["many"] == (2,)
    assert {spec[0] for spec in specs.values()} == {"string"}
    assert out.column("d").to_pylist() == ["a", "b", "a"]


@pytest.mark.parametrize(
    ("column", "hint"),
    [
        (pa.array([[{"a": 1}]]), "arrays of their fields"),
        (pa.array([dt.timedelta(1)]), "Cast it to long"),
        (pa.array([[[(1, 2)]]], pa.list_(pa.map_(pa.int8(), pa.int8()))), "become a tensor"),
    ],
)
def test_what_can_t_be_a_tensor_is_refused_with_a_hint(column, hint):
    with pytest.raises(SchemaError, match=f"'x' of dataset 'train'.*{hint}"):
        fixed(batch(x=column))


def test_a_null_is_an_error_by_default_that_says_how_many_and_where():
    with pytest.raises(DataError, match=r"'y' of dataset 'train' has nulls in 2 of 3 rows"):
        fixed(batch(x=[1, 2, 3], y=[None, 1.0, None]))
    with pytest.raises(DataError, match=r"nulls in 1 of 2 rows"):
        fixed(batch(y=[[[1], [None]], [[1], [2]]]))


def test_nan_is_a_number():
    out, dropped = fixed(batch(x=[float("nan"), 1.0]), FeedOptions(nulls="drop"))
    assert dropped == 0
    assert np.isnan(out.column("x")[0].as_py())


def test_drop_leaves_out_rows_with_a_null_in_any_column_at_any_depth():
    rows = batch(
        x=[1, None, 3, 4, 5],
        y=[[1, 2], [1, 2], None, [1, None], [3, 4]],
    )
    out, dropped = fixed(rows, FeedOptions(nulls="drop"))
    assert dropped == 3
    assert out.to_pydict() == {"x": [1, 5], "y": [[1, 2], [3, 4]]}


def test_arrays_that_are_all_null_take_the_length_of_the_value():
    batch = pa.record_batch({"x": pa.array([None, None], pa.list_(pa.int64()))})
    found, _ = normalise(batch, "train", FeedOptions(nulls={"x": [1, 2, 3]}))
    assert found.column("x").to_pylist() == [[1, 2, 3]] * 2
    with pytest.raises(DataError, match="the value for nulls as a whole array"):
        normalise(batch, "train", FeedOptions(nulls={"x": 0}))


def test_decimals_which_are_fed_as_floats_are_filled_with_floats():
    kind = pa.decimal128(4, 2)
    price, pair = Decimal("0.75"), [Decimal("1.5"), None]
    arrays = [pa.array([price, None], kind), pa.array([pair, None], pa.list_(kind))]
    batch = pa.record_batch(arrays, ["price", "pair"])
    filled, _ = normalise(batch, "train", FeedOptions(nulls={"price": 0.1, "pair": -0.5}))
    assert filled.to_pydict() == {"price": [0.75, 0.1], "pair": [[1.5, -0.5], [-0.5, -0.5]]}
    with pytest.raises(DataError, match=r"the value 0\.125 for nulls in column 'price'"):
        normalise(batch, "train", FeedOptions(nulls={"price": 0.125, "pair": 0}))


def test_a_mapping_fills_its_columns_and_others_stay_an_error():
    options = FeedOptions(nulls={"x": -1, "y": 0.5, "s": "none", "z": [7, 8]})
    rows = batch(
        x=[None, 2],
        y=[[[1.0, None]], None],
        s=["a", None],
        z=[None, [1, 2]],
    )
    out, dropped = fixed(rows.slice(0, 2), options)
    assert dropped == 0
    assert out.to_pydict() == {
        "x": [-1, 2],
        "y": [[[1.0, 0.5]], [[0.5, 0.5]]],
        "s": ["a", "none"],
        "z": [[7, 8], [1, 2]],
    }
    with pytest.raises(DataError, match="'other'"):
        fixed(batch(x=[None, 1], other=[None, 1]), options)


def test_a_value_that_does_not_fit_the_column_is_an_error():
    with pytest.raises(DataError, match="'many' for nulls in column 'x'"):
        fixed(batch(x=[1, None]), FeedOptions(nulls={"x": "many"}))
    with pytest.raises(DataError, match="has 3 items, but its arrays have 2"):
        fixed(batch(x=[[1, 2], None]), FeedOptions(nulls={"x": [1, 2, 3]}))
    with pytest.raises(DataError, match="before any row has shown the length"):
        fixed(batch(x=pa.array([None], pa.list_(pa.int32()))), FeedOptions(nulls={"x": 1}))


def test_a_rule_that_does_not_exist_is_refused_at_the_call():
    with pytest.raises(InvalidArgument, match="Did you mean 'drop'"):
        FeedOptions(nulls="dropp")
    with pytest.raises(InvalidArgument, match="'x': None"):
        FeedOptions(nulls={"x": None})


def test_a_batch_without_rows_keeps_what_the_schema_tells():
    empty = pa.RecordBatch.from_pydict(
        {"x": pa.array([], pa.list_(pa.float32())), "y": pa.array([], pa.list_(pa.int8(), 3))}
    )
    out, _ = fixed(empty)
    assert tensor_specs(out.schema) == {
        "x": (np.dtype("f4"), (None,)),
        "y": (np.dtype("i1"), (3,)),
    }
    first, _ = fixed(batch(x=[[1.0, 2.0]], y=[[1, 2, 3]]))
    assert fixed(empty, expected=first.schema)[0].num_rows == 0


cells = st.one_of(st.none(), st.integers(-5, 5))
lists = st.lists(st.one_of(st.none(), st.lists(cells, min_size=2, max_size=2)), max_size=30)


@given(lists, st.integers(0, 3))
def test_drop_keeps_exactly_the_rows_without_a_null(rows, skip):
    array = pa.array(rows, pa.list_(pa.int64())).slice(skip)
    want = [row for row in rows[skip:] if row is not None and None not in row]
    out, dropped = fixed(batch(x=array), FeedOptions(nulls="drop"))
    assert out.column("x").to_pylist() == want
    assert dropped == len(rows[skip:]) - len(want)


@given(lists.filter(lambda rows: any(row is not None for row in rows)))
def test_a_fill_value_takes_the_place_of_each_null_and_no_other(rows):
    want = [
        [9, 9] if row is None else [9 if cell is None else cell for cell in row] for row in rows
    ]
    out, _ = fixed(batch(x=pa.array(rows, pa.list_(pa.int64()))), FeedOptions(nulls={"x": 9}))
    assert out.column("x").to_pylist() == want


@pytest.mark.parametrize("kind", [pa.string_view(), pa.binary_view(), pa.list_(pa.string_view())])
def test_views_with_nulls_are_dropped_and_filled_like_other_texts(kind):
    if pa.types.is_list(kind):
        values, fill = [["ab"], None, ["a long text, not in the view itself"]], ["?"]
    else:
        values, fill = ["ab", None, "a long text, not in the view itself"], "?"
    batch = pa.RecordBatch.from_pydict({"x": pa.array(values, kind), "n": pa.array([1, 2, 3])})
    kept, dropped = normalise(batch, "train", FeedOptions(nulls="drop"))
    filled, _ = normalise(batch, "train", FeedOptions(nulls={"x": fill}))

    def texts(batch):
        leaves = batch.column("x")
        leaves = leaves.flatten() if pa.types.is_fixed_size_list(leaves.type) else leaves
        assert leaves.type in (pa.string(), pa.binary())
        return leaves.cast(pa.string()).to_pylist()

    assert (dropped, kept.column("n").to_pylist()) == (1, [1, 3])
    assert texts(kept) == ["ab", "a long text, not in the view itself"]
    assert texts(filled) == ["ab", "?", "a long text, not in the view itself"]
