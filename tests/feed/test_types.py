"""The table of types: all of Spark's are in it, and Java has the classes that it names."""

from pathlib import Path

import pyarrow as pa
import pytest

from gridflow._feed.types import KINDS, spark_refusal, stored
from gridflow.errors import SchemaError

JAVA = Path(__file__).parents[2] / "java/src/main/java/io/gridflow/feed"


def test_each_type_of_spark_has_one_line():
    types = pytest.importorskip("pyspark.sql.types")
    known = [name for kind in KINDS for name in kind.spark]
    assert len(known) == len(set(known))
    assert {kind.__name__ for kind in types._atomic_types} <= set(known)


def test_java_has_a_class_for_each():
    for kind in KINDS:
        assert (JAVA / f"{kind.java}.java").exists(), kind


@pytest.mark.parametrize(
    "array", [pa.array([{"a": 1}]), pa.array([None]), pa.array([0], pa.time32("s"))]
)
def test_what_is_no_tensor_is_refused_with_a_hint(array):
    with pytest.raises(SchemaError, match=r"x has the type .* can't become a tensor\. \w+"):
        stored(array, "x")


def test_a_type_that_nobody_knows_is_refused():
    assert "can't become a tensor. Leave it out" in spark_refusal("GeometryType", "geometry", "x")
    assert spark_refusal("LongType", "bigint", "x") is None
