"""Every rule about types, reading what TensorFlow wrote and writing what it reads."""

from __future__ import annotations

import decimal
import math

import judge
import numpy as np
import pytest
import tensorflow as tf
from pyspark.ml.linalg import Vectors, VectorUDT
from pyspark.sql import Row
from pyspark.sql import functions as sf
from pyspark.sql.types import StructField, StructType

D = decimal.Decimal


def read(spark, folder, schema=None, **options):
    reader = spark.read.format("tfrecord").options(**options)
    return (reader.schema(schema) if schema else reader).load(folder)


def one(spark, folder, schema, record, **options):
    judge.write(folder, [record])
    row = read(spark, folder, schema, **options).collect()
    assert len(row) == 1
    return row[0]


def error_of(action):
    with pytest.raises(Exception) as caught:
        action()
    return str(caught.value)


@pytest.mark.parametrize(
    ("type_", "values", "expected"),
    [
        ("bigint", ("i", [2**63 - 1]), 2**63 - 1),
        ("int", ("i", [-(2**31)]), -(2**31)),
        ("smallint", ("i", [-5]), -5),
        ("tinyint", ("i", [127]), 127),
        ("boolean", ("i", [1]), True),
        ("float", ("f", [1.5]), 1.5),
        ("double", ("f", [0.1]), float(np.float32(0.1))),
        ("decimal(5,2)", ("f", [1.25]), D("1.25")),
        ("decimal(3,1)", ("f", [0.25]), D("0.3")),
        ("decimal(25,3)", ("f", [0.5]), D("0.500")),
        ("string", ("b", ["grün".encode()]), "grün"),
        ("binary", ("b", [b"\xff\x00"]), bytearray(b"\xff\x00")),
        ("array<bigint>", ("i", [1, -1, 300]), [1, -1, 300]),
        ("array<int>", ("i", [1, 2]), [1, 2]),
        ("array<smallint>", ("i", [1, 2, 3]), [1, 2, 3]),
        ("array<tinyint>", ("i", [1, 2, 3]), [1, 2, 3]),
        ("array<boolean>", ("i", [1, 0, 1]), [True, False, True]),
        ("array<float>", ("f", [1.5, 2.5, 3.5]), [1.5, 2.5, 3.5]),
        ("array<double>", ("f", [1.5, 2.5]), [1.5, 2.5]),
        ("array<decimal(4,1)>", ("f", [1.5, 2.5]), [D("1.5"), D("2.5")]),
        ("array<string>", ("b", [b"a", b""]), ["a", ""]),
        ("array<binary>", ("b", [b"a", b"\xfe"]), [bytearray(b"a"), bytearray(b"\xfe")]),
        ("array<float>", ("f", []), []),
        ("array<string>", ("b", []), []),
        ("bigint", ("i", []), None),
        ("string", ("b", []), None),
        ("float", None, None),
        ("array<float>", None, None),
    ],
)
def test_a_feature_is_read_as_the_type(spark, folder, type_, values, expected):
    row = one(spark, folder, f"a bigint, x {type_}, absent {type_}", judge.example(x=values))
    assert row.x == expected
    assert row.a is None
    assert row.absent is None


@pytest.mark.parametrize(
    ("type_", "values", "words"),
    [
        ("bigint", ("i", [1, 2]), "has 2 values"),
        ("string", ("b", [b"a", b"b", b"c"]), "has 3 values"),
        ("int", ("i", [2**31]), "out of the type's range"),
        ("tinyint", ("i", [-129]), "out of the type's range"),
        ("boolean", ("i", [2]), "out of the type's range"),
        ("array<smallint>", ("i", [1, 2**15]), "out of the type's range"),
        ("decimal(3,2)", ("f", [10.0]), "overflows"),
        ("decimal(3,2)", ("f", [math.nan]), "overflows"),
        ("bigint", ("f", [1.0]), "is a FloatList, the type needs a Int64List"),
        ("string", ("i", [1]), "is a Int64List"),
        ("array<float>", ("b", [b"x"]), "is a BytesList"),
    ],
)
def test_a_feature_that_does_not_fit_is_an_error_with_its_place(
    spark, folder, type_, values, words
):
    judge.write(folder, [judge.example(), judge.example(x=values)])
    message = error_of(read(spark, folder, f"x {type_}").collect)
    assert words in message
    assert "column 'x'" in message
    assert "/data, record at byte 1" in message


def test_of_several_values_the_first_is_taken_if_asked_for(spark, folder):
    record = judge.example(x=("i", [7, 8]))
    assert one(spark, folder, "x int", record, multivaluescalar="FIRST").x == 7


@pytest.mark.interface
def test_without_ansi_a_decimal_that_overflows_is_null(spark, folder):
    spark.conf.set("spark.sql.ansi.enabled", "false")
    try:
        record = judge.example(x=("f", [1e9]), y=("f", [1e30]))
        row = one(spark, folder, "x decimal(3,2), y decimal(20,2), z bigint", record)
    finally:
        spark.conf.unset("spark.sql.ansi.enabled")
    assert (row.x, row.y, row.z) == (None, None, None)


@pytest.mark.interface
def test_a_vector_is_a_list_of_floats(spark, folder):
    schema = StructType([StructField("v", VectorUDT())])
    frame = spark.createDataFrame(
        [(Vectors.dense(1.5, 2.5),), (Vectors.sparse(4, {1: 3.0}),), (None,)], schema
    )
    frame.coalesce(1).write.format("tfrecord").save(folder)
    wanted = [{"v": ("f", [1.5, 2.5])}, {"v": ("f", [0, 3, 0, 0])}, {}]
    assert [judge.parsed(record) for record in judge.records(folder)] == wanted
    rows = [row.v for row in read(spark, folder, schema).collect()]
    assert rows == [Vectors.dense(1.5, 2.5), Vectors.dense(0, 3, 0, 0), None]


@pytest.mark.interface
def test_feature_lists_are_arrays_of_arrays(spark, folder):
    record = judge.sequence(
        {"label": ("i", [3]), "both": ("i", [1, 2])},
        {
            "tokens": [("b", [b"a", b"b"]), ("b", []), ("b", [b"c"])],
            "x": [("f", [1.0]), ("f", [2.0])],
            "gaps": [("i", [1]), None],
            "both": [("i", [5])],
        },
    )
    schema = (
        "label int, tokens array<array<string>>, x array<float>, gaps array<array<bigint>>,"
        " one array<array<float>>, both array<bigint>"
    )
    row = one(spark, folder, schema, record, recordType="sequenceexample")
    assert row.label == 3
    assert row.tokens == [["a", "b"], [], ["c"]]
    assert row.x == [1.0, 2.0]
    assert row.gaps == [[1], None]
    assert row.one is None
    assert row.both == [1, 2]  # the context comes first
    for type_, words in [
        ("tokens array<string>", "has 2 values in step 0"),
        ("x float", "feature list with steps"),
        ("both array<array<bigint>>", "in the record's context"),
    ]:
        frame = read(spark, folder, type_, recordType="SequenceExample")
        assert words in error_of(frame.collect)


@pytest.mark.interface
def test_records_of_bytes_are_one_column(spark, folder):
    judge.write(folder, [b"", b"\x00\xff", b"abc"])
    frame = read(spark, folder, recordType="ByteArray")
    assert frame.columns == ["byteArray"]
    assert [bytes(row[0]) for row in frame.collect()] == [b"", b"\x00\xff", b"abc"]
    frame.coalesce(1).write.format("tfrecord").option("recordType", "bytearray").save(folder + "2")
    assert judge.records(folder + "2") == [b"", b"\x00\xff", b"abc"]
    two = spark.range(1).selectExpr("id", "id b").write.format("tfrecord")
    assert "one column" in error_of(
        lambda: two.option("recordType", "ByteArray").save(folder + "3")
    )


@pytest.mark.interface
def test_everything_written_is_what_tensorflow_reads(spark, folder):
    frame = spark.sql(
        "select true b, cast(-3 as tinyint) t, cast(4 as smallint) s, 5 i, -6L l,"
        " cast(1.5 as float) f, 2.5d d, cast(1.25 as decimal(10,2)) n, 'ü' str, x'ff00' bin,"
        " array(1L, -1L) al, array(1.5d) ad, array('a', '') astr, array(x'01') abin,"
        " cast(array() as array<float>) empty, cast(null as int) gone, array(true, false) ab"
    )
    frame.write.format("tfrecord").save(folder)
    (record,) = judge.records(folder)
    assert judge.parsed(record) == {
        "b": ("i", [1]),
        "t": ("i", [-3]),
        "s": ("i", [4]),
        "i": ("i", [5]),
        "l": ("i", [-6]),
        "f": ("f", [1.5]),
        "d": ("f", [2.5]),
        "n": ("f", [1.25]),
        "str": ("b", ["ü".encode()]),
        "bin": ("b", [b"\xff\x00"]),
        "al": ("i", [1, -1]),
        "ad": ("f", [1.5]),
        "astr": ("b", [b"a", b""]),
        "abin": ("b", [b"\x01"]),
        "empty": ("f", []),
        "ab": ("i", [1, 0]),
    }
    assert read(spark, folder, frame.schema).collect() == frame.collect()


@pytest.mark.interface
@pytest.mark.parametrize(
    "expression",
    ["current_timestamp()", "current_date()", "map('a', 1)", "struct(1 a)", "array(struct(1 a))"],
)
def test_types_without_a_list_are_refused_before_anything_is_written(spark, folder, expression):
    frame = spark.sql(f"select 1 a, {expression} bad")
    message = error_of(lambda: frame.write.format("tfrecord").save(folder))
    assert "bad" in message
    assert "TFRecord" in message or "Example" in message


def test_arrays_of_arrays_need_a_sequence_example(spark, folder):
    frame = spark.sql("select 1L a, array(array(1L, 2L), array()) x, array(1.5f) c")
    message = error_of(lambda: frame.write.format("tfrecord").save(folder))
    assert "'x'" in message
    assert "recordType" in message
    frame.write.format("tfrecord").option("recordType", "SequenceExample").mode("append").save(
        folder
    )
    context, lists = judge.parsed(judge.records(folder)[0], tf.train.SequenceExample)
    assert context == {"a": ("i", [1]), "c": ("f", [1.5])}
    assert lists == {"x": [("i", [1, 2]), ("i", [])]}
    deep = spark.sql("select array(array(array(1))) y").write.format("tfrecord")
    assert "'y'" in error_of(
        lambda: deep.option("recordType", "SequenceExample").save(folder + 2 * "x")
    )


@pytest.mark.parametrize("value", ["1e300d", "array(0d, -1e39d)", "array(array(1e39d))"])
def test_a_double_beyond_a_float_is_an_error(spark, folder, value):
    kind = "SequenceExample" if "array(array" in value else "Example"
    rows = spark.sql(f"SELECT {value} AS x")
    writer = rows.write.format("tfrecord").option("recordType", kind)
    message = error_of(lambda: writer.save(folder))
    assert "column 'x'" in message
    assert "doesn't fit into the 32 bits" in message


@pytest.mark.parametrize("vector", [Vectors.dense(0, 1e39), Vectors.sparse(3, [1], [-1e39])])
def test_a_vector_beyond_floats_is_an_error(spark, folder, vector):
    rows = spark.createDataFrame([(vector,)], ["x"])
    assert "column 'x'" in error_of(lambda: rows.write.format("tfrecord").save(folder))


def test_infinity_and_nan_are_written(spark, folder):
    rows = spark.sql("SELECT array(double('inf'), double('-inf'), double('nan'), 3.4e38d) AS x")
    rows.write.format("tfrecord").save(folder)
    (row,) = read(spark, folder).collect()
    assert row.x[:2] == [math.inf, -math.inf]
    assert math.isnan(row.x[2])


@pytest.mark.parametrize("value", ["array(1, null)", "array('a', null)", "array(1.5f, null)"])
def test_a_null_in_an_array_is_an_error(spark, folder, value):
    frame = spark.range(1).select(sf.expr(value).alias("x"))
    message = error_of(lambda: frame.write.format("tfrecord").save(folder))
    assert "element 1 is null" in message
    assert "'x'" in message


@pytest.mark.interface
def test_rows_that_python_made_are_written_too(spark, folder):
    rows = [Row(a=1, x=[1.0, 2.0]), Row(a=None, x=None)]
    spark.createDataFrame(rows, "a int, x array<float>").coalesce(1).write.format("tfrecord").save(
        folder
    )
    assert read(spark, folder, "a int, x array<float>").collect() == rows


@pytest.mark.interface
def test_a_read_type_that_no_feature_gives_is_refused(spark, folder):
    judge.write(folder, [judge.example()])
    for type_ in ("timestamp", "map<string,int>"):
        assert "x" in error_of(lambda t=type_: read(spark, folder, f"x {t}").collect())
