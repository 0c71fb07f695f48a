"""The part without Spark: checksums, frames, messages, tables, the command line."""

from __future__ import annotations

import argparse
import decimal
import gzip
import itertools
import json
import math
import pickle
import random
import zlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gridflow import tfrecord
from gridflow._spec.exits import Exit
from gridflow.errors import DataError, InvalidArgument, MissingDependency, SchemaError
from gridflow.tfrecord import cli, jars
from gridflow.tfrecord.framing import CorruptRecord, masked_crc32c
from suite.disk import files_of_at_most


def test_the_checksum_is_that_of_the_published_vectors():
    # RFC 3720, B.4; masked as TensorFlow's lib/hash/crc32c.h has it.
    for data, crc in [
        (bytes(32), 0x8A9136AA),
        (bytearray(b"\xff" * 32), 0x62A8AB43),
        (memoryview(bytes(range(32))), 0x46DD794E),
    ]:
        rotated = masked_crc32c(data) - 0xA282EAD8 & 0xFFFFFFFF
        assert (rotated >> 17 | rotated << 15) & 0xFFFFFFFF == crc


def test_a_description_of_a_column_that_does_not_exist_is_refused():
    schema = pa.schema([("label", pa.int64()), ("x", pa.list_(pa.float32()))])
    words = "shapes names 'labl', the columns are label, x. Did you mean 'label'"
    with pytest.raises(InvalidArgument, match=words):
        tfrecord.feature_spec(schema, shapes={"labl": [1]})
    with pytest.raises(InvalidArgument, match="defaults names 'y'"):
        tfrecord.sequence_feature_spec(schema, defaults={"y": 0})


@pytest.mark.parametrize("name", ["x.tfrecord", "x.tfrecord.gz", "x.tfrecord.deflate"])
def test_records_come_back(tmp_path, name):
    records = [b"", b"a", bytes(3_000_000), random.Random(1).randbytes(2_000_000)]
    assert tfrecord.write_records(tmp_path / name, records) == 4
    assert list(tfrecord.read_records(tmp_path / name)) == records


@pytest.mark.parametrize("compress", [gzip.compress, zlib.compress])
def test_compressed_parts_behind_one_another_are_one_file(tmp_path, compress):
    tfrecord.write_records(tmp_path / "plain", [b"one", b"two"])
    data = (tmp_path / "plain").read_bytes()
    (tmp_path / "file").write_bytes(compress(data) + compress(data[:7]) + compress(data[7:]))
    name = "gzip" if compress is gzip.compress else "deflate"
    assert list(tfrecord.read_records(tmp_path / "file", compression=name)) == [b"one", b"two"] * 2


@pytest.mark.parametrize("name", ["x", "x.gz", "x.deflate"])
def test_a_file_cut_at_any_byte_is_damaged_unless_a_record_ends_there(tmp_path, name):
    records = [b"abc", b"", b"defgh"]
    tfrecord.write_records(tmp_path / name, records)
    data = (tmp_path / name).read_bytes()
    ends = {0, 19, 35, 56} if name == "x" else {0, len(data)}
    for size in range(len(data) + 1):
        (tmp_path / name).write_bytes(data[:size])
        if size in ends:
            whole = sorted(ends).index(size) if name == "x" else 3 * (size > 0)
            assert list(tfrecord.read_records(tmp_path / name)) == records[:whole]
        else:
            with pytest.raises(CorruptRecord):
                list(tfrecord.read_records(tmp_path / name))


def test_every_flipped_bit_is_found_with_its_record(tmp_path):
    tfrecord.write_records(tmp_path / "x", [b"abc", b"de"])
    data = (tmp_path / "x").read_bytes()
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        (tmp_path / "x").write_bytes(damaged)
        with pytest.raises(CorruptRecord) as error:
            list(tfrecord.read_records(tmp_path / "x"))
        assert error.value.index == int(bit // 8 >= 19)
        assert error.value.offset == 19 * error.value.index
        assert pickle.loads(pickle.dumps(error.value)).offset == error.value.offset


def test_a_compressed_file_is_recognised_in_the_message(tmp_path):
    tfrecord.write_records(tmp_path / "x.gz", [b"abc"])
    with pytest.raises(CorruptRecord, match="compression 'gzip'"):
        list(tfrecord.read_records(tmp_path / "x.gz", compression="none"))
    with pytest.raises(InvalidArgument, match="Did you mean 'gzip'"):
        list(tfrecord.read_records(tmp_path / "x.gz", compression="gzipp"))


names = st.text(min_size=1, max_size=6)
features = st.dictionaries(
    names,
    st.one_of(
        st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5).map(lambda v: np.array(v, "i8")),
        st.lists(st.floats(width=32, allow_nan=False), max_size=5).map(lambda v: np.array(v, "f4")),
        st.lists(st.binary(max_size=9), max_size=4),
    ),
    max_size=5,
)


def same(a, b):
    if isinstance(a, list) or isinstance(b, list):
        return a == b
    return a.dtype == b.dtype and np.array_equal(a, b)


@given(features)
def test_an_example_comes_back(given_features):
    parsed = tfrecord.parse_example(tfrecord.serialize_example(given_features)).features
    assert parsed.keys() == given_features.keys()
    assert all(same(parsed[name], given_features[name]) for name in parsed)


@pytest.mark.parametrize(
    ("values", "error", "said"),
    [
        ([0, 0.25, 0.5], InvalidArgument, r"mixes whole numbers \(int\) with floats \(float\)"),
        ([0.5, True], InvalidArgument, r"whole numbers \(bool\) with floats"),
        ([1, "a"], InvalidArgument, r"whole numbers \(int\) with text"),
        (np.array([1, 2.5], object), InvalidArgument, "whole numbers"),
        ([decimal.Decimal("0.5")], InvalidArgument, "type Decimal"),
        ([1j], InvalidArgument, "type complex"),
        ([1, None], InvalidArgument, "type NoneType"),
        ([[0.5]], InvalidArgument, "type list"),
        (np.array([1], "M8[s]"), InvalidArgument, "type datetime64"),
        ("text", InvalidArgument, r"type str; give a list of values"),
        (b"\x00\x01", InvalidArgument, "type bytes"),
        (7, InvalidArgument, "type int"),
        ({1: 2}, InvalidArgument, "type dict"),
        (np.ma.array([1, 2], mask=[False, True]), InvalidArgument, "masked values"),
        (["\ud800"], InvalidArgument, "isn't Unicode"),
        ([2**63], DataError, "9223372036854775808, which doesn't fit into the 64 bits"),
        ([-(2**63) - 1], DataError, "64 bits"),
        (np.array([0, 2**64 - 1], np.uint64), DataError, "18446744073709551615"),
        ([np.uint64(2**64 - 1)], DataError, "18446744073709551615"),
        ([0.5, 1e300], DataError, r"1e\+300, which doesn't fit into the 32 bits"),
        (np.array([-1e39, math.inf]), DataError, r"-1e\+39"),
    ],
)
def test_values_that_an_example_cannot_hold_are_refused(values, error, said):
    with pytest.raises(error, match=f"feature 'x' .*{said}"):
        tfrecord.serialize_example({"x": values})


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([np.float32(0.7), np.float16(0.5), 0.1], np.array([0.7, 0.5, 0.1], "f4")),
        ([np.int8(-1), np.uint64(2**63 - 1), True, np.True_], np.array([-1, 2**63 - 1, 1, 1])),
        ([math.nan, math.inf, -math.inf], np.array([math.nan, math.inf, -math.inf], "f4")),
        (np.array([math.nan, -math.inf, 1e-300]), np.array([math.nan, -math.inf, 0], "f4")),
        (np.array([0.5, 1.5], object), np.array([0.5, 1.5], "f4")),
        (np.array([[1, 2], [3, 4]], np.uint8), np.array([1, 2, 3, 4])),
        ((value / 2 for value in range(3)), np.array([0, 0.5, 1], "f4")),
        (["a", b"b", bytearray(b"c"), np.str_("d")], [b"a", b"b", b"c", b"d"]),
    ],
)
def test_values_of_one_kind_are_written_as_they_are(values, expected):
    found = tfrecord.parse_example(tfrecord.serialize_example({"x": values})).features["x"]
    assert type(found) is type(expected)
    np.testing.assert_array_equal(found, expected)


def test_names_are_text_and_records_bytes_of_any_type():
    for name in (b"a", 1, "\ud83d"):
        with pytest.raises(InvalidArgument, match="must be text"):
            tfrecord.serialize_example({name: [1]})
    record = tfrecord.serialize_example({"a": ["x"]})
    for type_ in (bytes, bytearray, memoryview):
        features = tfrecord.parse_example(type_(record)).features
        assert features == {"a": [b"x"]}
        assert type(features["a"][0]) is bytes


def test_steps_of_a_feature_list_are_of_one_kind():
    with pytest.raises(InvalidArgument, match="'x' has steps of whole numbers and floats"):
        tfrecord.serialize_example({}, {"x": [[1], [0.5]]})
    record = tfrecord.serialize_example({}, {"x": [[], [1]]})
    first, second = tfrecord.parse_example(record, sequence=True).feature_lists["x"]
    assert (first.dtype, second.tolist()) == (np.int64, [1])


scalars = {
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.int8(): st.integers(-128, 127),
    pa.float32(): st.floats(width=32, allow_nan=False),
    pa.binary(): st.binary(max_size=5),
    pa.string(): st.text(max_size=5),
    pa.bool_(): st.booleans(),
}


@st.composite
def tables(draw):
    arrays = {}
    rows = draw(st.integers(0, 6))
    for name in draw(st.lists(names, unique=True, max_size=4)):
        leaf = draw(st.sampled_from(list(scalars)))
        depth = draw(st.integers(0, 2))
        type_, cells = leaf, scalars[leaf]
        for _ in range(depth):
            type_, cells = pa.list_(type_), st.lists(cells, max_size=3)
        cells = st.none() | cells
        arrays[name] = pa.array(draw(st.lists(cells, min_size=rows, max_size=rows)), type_)
    return pa.table(arrays) if arrays else pa.table({"x": pa.array([], pa.int64())})


@given(table=tables())
@settings(max_examples=150, deadline=None)
def test_a_table_comes_back_as_sequence_examples(tmp_path_factory, table):
    path = tmp_path_factory.mktemp("t") / "x.tfrecord"
    assert tfrecord.write_table(table, path, record_type="SequenceExample") == table.num_rows
    read = tfrecord.read_table(path, schema=table.schema, record_type="SequenceExample")
    assert read.equals(table)


def test_the_schema_is_the_widest_of_all_records(tmp_path):
    path = tmp_path / "x"
    rows = [
        {"a": [1], "b": [1.0], "c": [b"x"], "d": np.array([], "i8"), "none": None},
        {"a": [1, 2], "b": np.array([], "f4"), "c": [b"x"]},
    ]
    tfrecord.write_records(path, map(tfrecord.serialize_example, rows))
    assert tfrecord.infer_schema(path) == pa.schema(
        {"a": pa.list_(pa.int64()), "b": pa.float32(), "c": pa.binary(), "d": pa.int64()}
    )
    table = tfrecord.read_table(path, columns=["c", "b"])
    assert table.to_pydict() == {"c": [b"x", b"x"], "b": [1.0, None]}
    assert tfrecord.infer_schema(path, limit=1).field("a").type == pa.int64()


def test_no_more_records_are_read_than_the_limit(tmp_path):
    path = tmp_path / "x"
    tfrecord.write_records(path, [tfrecord.serialize_example({"a": [1]}), b"no example"])
    assert tfrecord.infer_schema(path, limit=1).names == ["a"]
    assert tfrecord.read_table(path, limit=1).num_rows == 1
    with pytest.raises(InvalidArgument, match="limit"):
        tfrecord.infer_schema(path, limit=-1)


@pytest.mark.parametrize(
    ("leaf", "values"),
    [
        (pa.int32(), [1, 2]),
        (pa.float16(), [np.float16(1.5), np.float16(2)]),
        (pa.decimal128(10, 2), [decimal.Decimal("1.10"), decimal.Decimal("-2.00")]),
        (pa.large_string(), ["ü", ""]),
    ],
    ids=str,
)
@pytest.mark.parametrize("listed", [pa.list_, pa.large_list, lambda leaf: pa.list_(leaf, 2)])
def test_lists_of_every_layout_come_back(tmp_path, leaf, values, listed):
    columns = {"v": pa.array(values, leaf), "l": pa.array([values, None], listed(leaf))}
    tfrecord.write_table(pa.table(columns), tmp_path / "x")
    schema = pa.schema({name: column.type for name, column in columns.items()})
    assert tfrecord.read_table(tmp_path / "x", schema=schema).equals(pa.table(columns))


def test_rows_without_values_are_not_lost(tmp_path):
    path = tmp_path / "x"
    tfrecord.write_table(pa.table({"a": pa.array([None, None], pa.int64())}), path)
    with pytest.raises(DataError, match="no values"):
        tfrecord.read_table(path)
    assert tfrecord.read_table(path, schema=pa.schema({"a": pa.int64()})).num_rows == 2
    tfrecord.write_records(path, [])
    assert tfrecord.read_table(path).num_rows == 0


def test_what_cannot_be_read_or_written_is_refused_by_name(tmp_path):
    path = tmp_path / "x"
    tfrecord.write_records(path, [tfrecord.serialize_example({"a": [1, 2]})])
    for type_, words in [(pa.int64(), "2 values"), (pa.string(), "Int64List")]:
        with pytest.raises(DataError, match=f"'a'.*{words}"):
            tfrecord.read_table(path, schema=pa.schema({"a": type_}))
    with pytest.raises(SchemaError, match="Did you mean 'a'"):
        tfrecord.read_table(path, columns=["aa"])
    with pytest.raises(SchemaError, match="'t' has the type timestamp"):
        tfrecord.write_table(pa.table({"t": pa.array([1], pa.timestamp("s"))}), path)
    with pytest.raises(SchemaError, match="nested too deep for Example"):
        tfrecord.write_table(pa.table({"t": [[[1]]]}), path)
    with pytest.raises(DataError, match="'t' has the value 18446744073709551615"):
        tfrecord.write_table(pa.table({"t": pa.array([2**64 - 1], pa.uint64())}), path)
    with pytest.raises(DataError, match=r"'t' has the value 1e\+300"):
        tfrecord.write_table(pa.table({"t": [[0.5, 1e300]]}), path)
    with pytest.raises(DataError, match="null inside a list"):
        tfrecord.write_table(pa.table({"t": [[1, None]]}), path)
    with pytest.raises(DataError, match="null inside a list"):
        steps = pa.table({"t": [[[1], None]]})
        tfrecord.write_table(steps, path, record_type="SequenceExample")
    with pytest.raises(DataError, match="'byteArray' has a null"):
        tfrecord.write_table(pa.table({"byteArray": [b"a", None]}), path, record_type="ByteArray")
    with pytest.raises(SchemaError, match="two columns have the name 't'"):
        tfrecord.write_table(pa.table([[1], [2]], names=["t", "t"]), path)
    with pytest.raises(InvalidArgument, match="Did you mean 'SequenceExample'"):
        tfrecord.read_table(path, record_type="SequenzExample")


def run(*args):
    parser = argparse.ArgumentParser()
    cli.add_parser(parser.add_subparsers())
    arguments = parser.parse_args(["tfrecord", *map(str, args)])
    return arguments.run(arguments)


@pytest.fixture
def folder(tmp_path):
    table = pa.table({"i": [1, 2, 3], "x": [[1.0, 2.0], [], None], "s": ["a", "ü", "c"]})
    (tmp_path / "data").mkdir()
    tfrecord.write_table(table, tmp_path / "data" / "a.tfrecord")
    tfrecord.write_table(table, tmp_path / "data" / "b.tfrecord.gz")
    (tmp_path / "data" / "_SUCCESS").touch()
    return tmp_path / "data"


def test_the_command_line_looks_into_a_folder(folder, capsys):
    assert run("schema", folder) == 0
    out = capsys.readouterr().out
    assert out == "i\tint64\ns\tbinary\nx\tlist<item: double>\n".replace("double", "float")
    assert run("head", folder, "-n", 4) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[:2] == [{"i": [1], "x": [1.0, 2.0], "s": ["a"]}, {"i": [2], "x": [], "s": ["ü"]}]
    assert len(lines) == 4
    assert run("count", folder) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "total\t6"


def test_the_command_line_reports_the_first_bad_record(folder, capsys):
    assert run("verify", folder) == 0
    assert "b.tfrecord.gz\tok, 3 records" in capsys.readouterr().out
    path = folder / "a.tfrecord"
    data = bytearray(path.read_bytes())
    first = 16 + int.from_bytes(data[:8], "little")
    data[first + 13] ^= 1
    path.write_bytes(data)
    assert run("verify", folder) == 1
    assert f"record 1 at byte {first}" in capsys.readouterr().out
    tfrecord.write_records(path, [b"", b"\x0a\x05"])
    assert run("verify", path) == 1
    assert "record 1 at byte 16" in capsys.readouterr().out
    assert run("verify", "--record-type", "ByteArray", path) == 0


def test_the_command_line_converts_to_parquet_and_back(folder, tmp_path, capsys):
    parquet, back = tmp_path / "x.parquet", tmp_path / "x.tfrecord.gz"
    assert run("convert", folder, parquet) == 0
    assert pq.read_table(parquet).num_rows == 6
    assert run("convert", parquet, back) == 0
    assert tfrecord.read_table(back).equals(pq.read_table(parquet))
    assert run("convert", back, tmp_path / "y.tfrecord") == 0
    assert tfrecord.read_table(tmp_path / "y.tfrecord").num_rows == 6
    assert run("convert", back, back) == Exit.USAGE
    assert run("head", tmp_path / "nowhere") == Exit.USAGE
    assert "no file or folder" in capsys.readouterr().err
    assert run("convert", tmp_path / "nowhere.parquet", back) == Exit.OTHER
    assert run("convert", back, tmp_path / "nowhere" / "x") == Exit.OTHER
    (tmp_path / "bad.parquet").write_bytes(b"PAR1")
    assert run("convert", tmp_path / "bad.parquet", back) == Exit.DATA
    assert "bad.parquet can't be read" in capsys.readouterr().err


def test_every_line_of_head_is_json(tmp_path, capsys):
    path = tmp_path / "x"
    values = [0.5, math.nan, math.inf, -math.inf]
    tfrecord.write_records(path, [tfrecord.serialize_example({"x": values})])
    assert run("head", path) == 0
    row = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert row == {"x": [0.5, "NaN", "Infinity", "-Infinity"]}


def whole(folder):
    """Return what lies in a folder, by name."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_a_record_is_bytes_of_any_type(tmp_path):
    path = tmp_path / "x"
    numbers = np.arange(3, dtype="<i4")
    tfrecord.write_records(path, [bytearray(b"a"), memoryview(numbers)])
    assert list(tfrecord.read_records(path)) == [b"a", numbers.tobytes()]
    for records in (["text"], b"one record", [None]):
        with pytest.raises(InvalidArgument, match="must be bytes"):
            tfrecord.write_records(path, records)


@pytest.mark.parametrize("name", ["x.tfrecord", "x.tfrecord.gz", "x.tfrecord.deflate"])
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_file_stays_when_its_replacement_fails(tmp_path, name, error):
    def records():
        yield b"new"
        raise error

    path = tmp_path / name
    tfrecord.write_records(path, [b"old"])
    path.chmod(0o640)
    before = whole(tmp_path)
    with pytest.raises(error):
        tfrecord.write_records(path, records())
    with pytest.raises(DataError, match="null inside a list"):
        tfrecord.write_table(pa.table({"t": [[1], [None]]}), path)
    assert whole(tmp_path) == before
    with pytest.raises(error):
        tfrecord.write_records(tmp_path / "new", records())
    assert whole(tmp_path) == before
    tfrecord.write_records(path, itertools.chain(tfrecord.read_records(path), [b"more"]))
    assert list(tfrecord.read_records(path)) == [b"old", b"more"]
    assert path.stat().st_mode & 0o777 == 0o640
    assert list(whole(tmp_path)) == [name]


def test_a_link_and_a_device_are_written_through(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert tfrecord.write_records(tmp_path / "link", [b"a"]) == 1
    assert (tmp_path / "link").is_symlink()
    assert list(tfrecord.read_records(tmp_path / "file")) == [b"a"]
    assert tfrecord.write_records("/dev/null", [b"a"]) == 1
    with pytest.raises(FileNotFoundError, match="nowhere/x"):
        tfrecord.write_records(tmp_path / "nowhere" / "x", [b"a"])


def test_a_conversion_that_fails_replaces_nothing(folder, tmp_path, capsys):
    parquet, records = tmp_path / "x.parquet", tmp_path / "x.tfrecord"
    assert run("convert", folder, parquet) == 0
    assert run("convert", folder, records) == 0
    before = whole(tmp_path)
    (folder / "b.tfrecord.gz").write_bytes((folder / "b.tfrecord.gz").read_bytes()[:-9])
    assert run("convert", folder, records) == Exit.DATA
    assert run("convert", folder, parquet) == Exit.DATA
    with files_of_at_most(10):
        assert run("convert", records, parquet) == Exit.OTHER
        assert run("convert", parquet, records) == Exit.OTHER
    assert capsys.readouterr().err.count("large") == 2
    assert whole(tmp_path) == before


def test_a_missing_jar_is_told_with_the_command_that_builds_it(monkeypatch, tmp_path):
    monkeypatch.setattr(jars, "__file__", str(tmp_path / "a" / "b" / "c" / "jars.py"))
    with pytest.raises(MissingDependency, match="make jar"):
        tfrecord.jar()


def test_floats_that_are_no_numbers_survive():
    values = np.array([math.nan, math.inf, -0.0], "f4")
    parsed = tfrecord.parse_example(tfrecord.serialize_example({"x": values})).features["x"]
    assert parsed.tobytes() == values.tobytes()
