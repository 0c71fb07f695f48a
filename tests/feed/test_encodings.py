"""Nested and ragged columns: what was fed is what arrives, bit for bit, or is refused."""

from __future__ import annotations

import decimal
import io

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gridflow import Keys, Padded, Ragged
from gridflow._feed.normalize import FeedOptions, Findings, normalise
from gridflow._feed.plan.epochs import steps_for
from gridflow._feed.store import SpoolReader, SpoolWriter
from gridflow.data import array_decoder
from gridflow.errors import DataError, InvalidArgument, SchemaError
from suite import batches
from suite.batches import make_dataset

LEAVES = {
    **batches.LEAVES,
    "timestamp": (pa.timestamp("us", "UTC"), st.integers(-(2**50), 2**50)),
    "decimal": (
        pa.decimal128(15, 4),
        st.integers(-(10**15) + 1, 10**15 - 1).map(lambda n: decimal.Decimal(n).scaleb(-4)),
    ),
}


@st.composite
def column(draw, name, rows, depth=0):
    """Return an array, its form, and by name of what is fed the values that have to arrive."""
    kinds = ["leaf", "fixed", "ragged", "padded", *(["struct", "map"] if depth < 2 else [])]
    kind = draw(st.sampled_from(kinds))
    if kind == "struct":
        parts = {f"f{i}": draw(column(f"{name}.f{i}", rows, depth + 1)) for i in range(2)}
        array = pa.StructArray.from_arrays([part[0] for part in parts.values()], list(parts))
        forms, values = {}, {}
        for part in parts.values():
            forms |= part[1]
            values |= part[2]
        return array, forms, values
    leaf, values = LEAVES[draw(st.sampled_from(sorted(LEAVES)))]
    one = st.lists(values, min_size=rows, max_size=rows)
    if kind == "map":
        found = {key: draw(one) for key in ("a", "b c")}
        pairs = [[("a", x), ("b c", y)] for x, y in zip(*found.values(), strict=True)]
        array = pa.array(pairs, pa.map_(pa.string(), leaf))
        fed = {f"{name}.{key}": pa.array(each, leaf) for key, each in found.items()}
        return array, {name: Keys("a", "b c")}, fed
    if kind == "leaf":
        array = pa.array(draw(one), leaf)
        return array, {}, {name: array}
    most = 2 if kind == "fixed" else 4
    least = most if kind == "fixed" else 0
    lists = st.lists(st.lists(values, min_size=least, max_size=most), min_size=rows, max_size=rows)
    array = pa.array(draw(lists), pa.list_(leaf))
    if kind == "padded":
        spare = pa.array([0, False, "", b"", decimal.Decimal(0)][0:0], leaf)
        plain = [row[:3] for row in pa.array(array).to_pylist()]
        return array, {name: Padded(3)}, {name: (plain, spare.type)}
    return array, {name: Ragged()} if kind == "ragged" else {}, {name: array}


@st.composite
def tables(draw):
    rows = draw(st.integers(1, 25))
    arrays, forms, fed = {}, {}, {}
    for i in range(draw(st.integers(1, 3))):
        array, form, values = draw(column(f"c{i}", rows))
        arrays[f"c{i}"] = array
        forms |= form
        fed |= values
    return pa.table({**arrays, "row": pa.array(range(rows))}), forms, fed


def plain(value):
    """Return a value as a tensor holds it."""
    if isinstance(value, list):
        return [plain(each) for each in value]
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, decimal.Decimal):
        return float(value)
    if hasattr(value, "timestamp"):
        return pa.scalar(value, pa.timestamp("us", "UTC")).value
    return value


def padding(kind):
    return {"string": b"", "binary": b"", "bool": False}.get(str(kind), 0)


@pytest.fixture(scope="module", autouse=True)
def tf():
    """Import it when the first test runs."""
    return pytest.importorskip("tensorflow")


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(tables(), st.integers(1, 7), st.booleans())
def test_what_was_fed_is_what_arrives(tmp_path_factory, made, batch_size, shuffle):
    table, forms, fed = made
    place = tmp_path_factory.mktemp("spool")
    with SpoolWriter(place, FeedOptions(columns=forms)) as writer:
        for batch in table.to_batches(max_chunksize=7):
            writer.write("train", batch)
    reader = SpoolReader(place, "train")
    assert reader.left_out == {}
    dataset = make_dataset(
        reader,
        features=["row", *fed],
        batch_size=batch_size,
        steps=steps_for([table.num_rows], batch_size, "spread"),
        shuffle=shuffle,
        window_rows=8,
    )
    seen = []
    for batch in dataset:
        rows = batch["row"].numpy().tolist()
        seen += rows
        for name, values in fed.items():
            got = batch[name]
            got = got.to_list() if hasattr(got, "to_list") else got.numpy().tolist()
            if isinstance(values, tuple):
                all_rows, kind = values
                want = [plain(all_rows[row]) for row in rows]
                want = [row + [padding(kind)] * (3 - len(row)) for row in want]
            else:
                want = plain(values.take(pa.array(rows)).to_pylist())
            np.testing.assert_equal(got, want)
    assert sorted(seen) == list(range(table.num_rows))


def fed(array, form=None, **options):
    forms = {} if form is None else {"c": form}
    batch = pa.RecordBatch.from_arrays([array, pa.array(range(len(array)))], names=["c", "i"])
    findings = Findings()
    found, _ = normalise(batch, "train", FeedOptions(columns=forms, **options), None, findings)
    return found, findings.left_out


@pytest.mark.parametrize(
    ("array", "form", "message"),
    [
        (pa.array([1]), Keys("a"), r"'c'.*int64; Keys\(…\) is for maps"),
        (pa.array([1]), Padded(2), "'c'.*int64; Padded"),
        (pa.array([[[1]]]), Ragged(), "'c'.*list.*Flatten"),
        (pa.array([[1]]), Padded(2, "x"), "value 'x' of Padded doesn't fit"),
        (pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())), None, "columns=.*Keys"),
        (pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())), Keys(1.5), "key 1.5"),
        (pa.array([[{"a": 1}]]), None, r"arrays of their fields: transform"),
        (pa.array([[1], [1, 2]]), None, r"same length.*Padded\(length\).*Ragged\(\)"),
        (pa.array([[("a", 1)], []], pa.map_(pa.string(), pa.int64())), Keys("a"), "'c.a'.*nulls"),
    ],
)
def test_a_column_that_cannot_be_fed_names_its_type_and_the_way_out(array, form, message):
    import re

    found, left_out = fed(array, form)
    assert found.schema.names == ["i"]
    assert re.search(message, " ".join(left_out.values()))


def test_nulls_of_parts_are_nulls_of_their_columns():
    array = pa.array([{"a": 1, "b": "x"}, None, {"a": None, "b": "y"}])
    found, left_out = fed(array, nulls={"c.a": 7, "c.b": "z"})
    assert found.to_pydict() == {"c.a": [1, 7, 7], "c.b": ["x", "z", "y"], "i": [0, 1, 2]}
    assert left_out == {}
    array = pa.array([[("a", 1)], []], pa.map_(pa.string(), pa.int64()))
    assert fed(array, Keys("a", default=5))[0].to_pydict()["c.a"] == [1, 5]
    found, _ = fed(pa.array([[1], None, [1, 2, 3]]), Padded(2, value=-1), nulls="drop")
    assert found.to_pydict()["c"] == [[1, -1], [1, 2]]


def test_forms_are_checked_where_they_are_said():
    with pytest.raises(InvalidArgument, match="at least 1, got 0"):
        Padded(0)
    with pytest.raises(InvalidArgument, match="at least one key"):
        Keys()
    with pytest.raises(InvalidArgument, match="'a' is given twice"):
        Keys("a", "b", "a")
    with pytest.raises(InvalidArgument, match=r"must be Ragged\(\)"):
        FeedOptions(columns={"x": 3})
    with pytest.raises(InvalidArgument, match="'toks'.*not a column.*Did you mean 'tokens'"):
        FeedOptions(columns={"toks": Ragged()}).check_columns(["tokens"])
    with pytest.raises(InvalidArgument, match=r"parameter_server.*Padded"):
        FeedOptions(columns={"x": Ragged()}).check_strategy("parameter_server")


def test_two_columns_of_one_name_are_refused():
    batch = pa.RecordBatch.from_pydict({"a": [{"b": 1}], "a.b": [2], "i": [0]})
    findings = Findings()
    normalise(batch, "train", FeedOptions(), None, findings)
    assert "is a duplicate" in findings.left_out["a.b"]
    with pytest.raises((SchemaError, DataError), match="is a duplicate"):
        normalise(batch, "train", FeedOptions())


def test_images_are_decoded_in_the_pipeline(tmp_path, tf):
    from gridflow.data import image_decoder

    pictures = [np.full((4 + i, 6, 3), 40 * i, np.uint8) for i in range(5)]
    data = {"png": [tf.io.encode_png(p).numpy() for p in pictures], "y": list(range(5))}
    with SpoolWriter(tmp_path) as writer:
        writer.write("train", pa.RecordBatch.from_pydict(data))
    dataset = make_dataset(
        SpoolReader(tmp_path, "train"), features="png", label="y", batch_size=2, steps=3
    )
    for x, y in dataset.map(image_decoder(3, 2)):
        assert x.shape[1:] == (3, 2, 3)
        assert x.numpy()[:, 0, 0, 0].tolist() == [40.0 * label for label in y.numpy()]
    named = dataset.map(lambda x, y: ({"a": x, "b": y}, y)).map(image_decoder(3, 2, 1, key="a"))
    assert next(iter(named))[0]["a"].shape[1:] == (3, 2, 1)
    with pytest.raises(InvalidArgument, match="1, 3 or 4"):
        image_decoder(3, 2, 2)


def saved(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


@pytest.mark.parametrize("dtype", ["float32", "uint8", "int64", "float16"])
@pytest.mark.parametrize("library", ["numpy", "tensorflow"])
def test_arrays_are_decoded_from_their_bytes(request, library, dtype):
    made = [np.arange(6).reshape(2, 3).astype(dtype) + i for i in range(3)]
    rows = np.array([made[0].tobytes(), saved(made[1]), saved(made[2])], object)
    decode = array_decoder((2, 3), dtype)
    other = "int32" if dtype == "float32" else "float32"
    wrong = [
        b"",
        made[0].tobytes()[1:],
        made[0].tobytes() + b"x",
        saved(made[0].T),
        saved(np.asfortranarray(made[0])),
        saved(made[0].astype(other)),
        b"\x93NUMPY" + made[0].tobytes(),
    ]
    errors = DataError
    if library == "tensorflow":
        tf = request.getfixturevalue("tf")
        errors = tf.errors.InvalidArgumentError
        decode = tf.function(decode, input_signature=[tf.TensorSpec([None], tf.string)])
    found = np.asarray(decode(rows))
    np.testing.assert_array_equal(found, made)
    assert found.dtype == dtype
    for content in wrong:
        with pytest.raises(errors, match="a row has other bytes"):
            decode(np.array([rows[0], content], object))


def test_a_decoder_leaves_what_it_is_not_asked_to_decode():
    x, y = {"a": np.array([b"\1"], object), "b": np.zeros(1)}, np.ones(1)
    found, label = array_decoder([1], "uint8", key="a")(x, y)
    assert (found["a"].tolist(), found["b"] is x["b"], label is y) == ([[1]], True, True)
    with pytest.raises(InvalidArgument, match="unknown key='c'; the inputs are a, b"):
        array_decoder([1], key="c")(x, y)
    for shape, dtype in (((0,), "float32"), ((1,), "complex64")):
        with pytest.raises(InvalidArgument):
            array_decoder(shape, dtype)
