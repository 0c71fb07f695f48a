"""Arrays of numbers as bytes on their way from Spark to Python."""

from __future__ import annotations

import pyarrow as pa
import pytest

from gridflow._feed.ingest.packing import can_pack, packed_frame, unpacked, unpacked_batch

#: pyspark leaves the sockets of collect() to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

COLUMNS = """id long, small array<smallint>, whole array<int>, big array<bigint>, x array<float>,
d array<double>, words array<string>, pairs array<array<float>>, `odd.name` array<float>, y float"""
ROWS = [
    (0, [1, -2], [1, 2, 3], [2**40], [0.5, 1.5], [1e-300], ["a"], [[1.0], []], [9.0], 0.5),
    (1, None, None, None, None, None, None, None, None, None),
    (2, [], [], [], [], [], [], [], [], 1.0),
    (3, [None, 7], [None] * 70, [5, None], [None, 2.5], [None], [None], [None], [None], 2.0),
    (4, [3] * 65, [4], [5], [float("inf"), -0.0], [2.5], ["b", "c"], [[2.0]], [8.0], 3.0),
]


def test_packed_arrays_arrive_as_they_were(spark):
    assert can_pack(spark)
    plain = spark.createDataFrame(ROWS, COLUMNS)
    packed = packed_frame(plain.repartition(2))
    kinds = {field.name: field.dataType.typeName() for field in packed.schema}
    changed = {name for name, kind in kinds.items() if kind == "struct"}
    assert changed == {"small", "whole", "big", "x", "d", "odd.name"}
    batches = [unpacked_batch(batch) for batch in packed.toArrow().to_batches()]
    found = pa.Table.from_batches(batches).sort_by("id")
    assert found.to_pylist() == plain.sort("id").toArrow().to_pylist()
    kinds = [found.schema.field(name).type.value_type for name in ("small", "whole", "big", "x")]
    assert kinds == [pa.int16(), pa.int32(), pa.int64(), pa.float32()]
    some = found.slice(2, 3)  # arrays that begin in the middle of their memory
    assert some.column("x").to_pylist() == [ROWS[i][4] for i in (2, 3, 4)]


def test_a_slice_of_a_packed_column_is_unpacked(spark):
    packed = packed_frame(spark.createDataFrame(ROWS, COLUMNS).coalesce(1))
    column = packed.toArrow().combine_chunks().column("x").chunk(0)
    lists = unpacked(column)
    assert unpacked(column.slice(3, 2)).to_pylist() == lists.to_pylist()[3:]
    assert unpacked(column.slice(1, 1)).to_pylist() == [None]
    assert unpacked(column.slice(1, 0)).to_pylist() == []


def test_arrays_that_spark_computes_are_packed_too(spark):
    """They lie in memory otherwise than those that it has read."""
    frame = spark.range(3).selectExpr("id", "transform(sequence(1, 3), i -> float(i * id)) AS x")
    frame = frame.selectExpr("id", "IF(id = 1, array_append(x, NULL), x) AS x")
    found = packed_frame(frame).toArrow().to_batches()
    rows = [row for batch in found for row in unpacked_batch(batch).to_pylist()]
    assert [row["x"] for row in rows] == [[0, 0, 0], [1, 2, 3, None], [2, 4, 6]]


def test_without_the_function_columns_stay_as_they_are(spark, monkeypatch):
    from gridflow.tfrecord import jars

    other = spark.newSession()
    monkeypatch.setattr(jars, "CATALOG_CLASS", "there.is.no.Catalog")
    frame = other.createDataFrame([([1.0],)], "x array<float>")
    assert not can_pack(other)
    assert packed_frame(frame) is frame
    assert other.conf.get(jars.CATALOG, None) is None
