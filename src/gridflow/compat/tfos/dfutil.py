"""DataFrames to and from TFRecord files, with gridflow's data source.

No configuration is needed: the data source's jar is loaded on first use.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Final

from gridflow._spec import jvm
from gridflow.errors import DataError, InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.types import StructType

#: Source folders of the loaded DataFrames that still exist.
loadedDF: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()

_FLOATS: Final = frozenset({"float", "double"})
_INTEGERS: Final = frozenset({"boolean", "tinyint", "smallint", "int", "bigint", "long"})
_BYTES: Final = frozenset({"binary", "string"})


def isLoadedDF(df: Any) -> bool:
    """Return whether a DataFrame comes from `loadTFRecords`."""
    return any(df is known for known in loadedDF.keys())  # noqa: SIM118 (== makes a Column)


def saveAsTFRecords(df: DataFrame, output_dir: str) -> None:
    """Write a DataFrame as Examples.

    Supports numbers, booleans, strings and binary values, and arrays of them. Omits nulls.

    Parameters
    ----------
    df : DataFrame
    output_dir : str
        A folder that doesn't exist yet.
    """
    _with_jar(df.sparkSession)
    df.write.format("tfrecord").save(output_dir)


def loadTFRecords(sc: Any, input_dir: str, binary_features: Sequence[str] = ()) -> DataFrame:
    """Read Examples as a DataFrame with columns sorted by name.

    The first record determines the types, as in the original: integers, doubles or strings, and
    arrays of them for features with several values.

    Parameters
    ----------
    sc : SparkContext
    input_dir : str
    binary_features : sequence of str
        Columns with binary values instead of strings.

    Raises
    ------
    DataError
        If there are no records.
    """
    from pyspark.sql import SparkSession

    from gridflow.tfrecord.example import parse_example

    del sc
    spark = SparkSession.builder.getOrCreate()
    _with_jar(spark)
    raw = spark.read.format("tfrecord").option("recordType", "ByteArray").load(input_dir)
    first = raw.head()
    if first is None:
        raise DataError(f"{input_dir} has no records to infer types from.")
    features = parse_example(bytes(first[0])).features
    schema = _schema({name: _plain(values) for name, values in features.items()}, binary_features)
    df = spark.read.format("tfrecord").schema(schema).load(input_dir)
    loadedDF[df] = input_dir
    return df


def toTFExample(
    dtypes: Sequence[tuple[str, str]],
) -> Callable[[Iterable[Any]], Iterator[tuple[bytearray, None]]]:
    """Return a function for ``mapPartitions`` that turns rows into Examples.

    Parameters
    ----------
    dtypes : sequence of (str, str)
        ``df.dtypes``.

    Raises
    ------
    InvalidArgument
        If a column's type can't be stored in an Example.
    """
    kinds = {name: _kind(name, dtype) for name, dtype in dtypes}

    def examples(rows: Iterable[Any]) -> Iterator[tuple[bytearray, None]]:
        from gridflow.tfrecord.example import serialize_example

        for row in rows:
            cells = {name: kind(row[name]) for name, kind in kinds.items() if row[name] is not None}
            yield bytearray(serialize_example(cells)), None

    return examples


def fromTFExample(iter: Iterable[Any], binary_features: Sequence[str] = ()) -> list[Row]:  # noqa: A002 (its name)
    """Return the rows of serialized Examples, with columns sorted by name.

    Parameters
    ----------
    iter : iterable of (bytes, None)
    binary_features : sequence of str
        Columns with binary values instead of strings.
    """
    from pyspark.sql import Row

    from gridflow.tfrecord.example import parse_example

    rows = []
    for record in iter:
        features = parse_example(bytes(record[0])).features
        cells = {
            name: _cell(_plain(features[name]), is_binary=name in binary_features)
            for name in sorted(features)
        }
        rows.append(Row(**cells))
    return rows


def infer_schema(example: Any, binary_features: Sequence[str] = ()) -> StructType:
    """Return the schema that matches an Example.

    Parameters
    ----------
    example : tf.train.Example
    binary_features : sequence of str
        Columns with binary values instead of strings.
    """
    found = {}
    for name, feature in example.features.feature.items():
        lists = (feature.int64_list.value, feature.float_list.value, feature.bytes_list.value)
        found[name] = next((list(values) for values in lists if values), [])
    return _schema(found, binary_features)


def _schema(features: dict[str, list[Any]], binary_features: Sequence[str]) -> StructType:
    from pyspark.sql import types

    fields = []
    for name in sorted(features):
        values = features[name]
        kind: Any = types.StringType()
        if name in binary_features:
            kind = types.BinaryType()
        elif values and isinstance(values[0], int):
            kind = types.LongType()
        elif values and isinstance(values[0], float):
            kind = types.DoubleType()
        fields.append(
            types.StructField(name, types.ArrayType(kind) if len(values) > 1 else kind, True)
        )
    return types.StructType(fields)


def _plain(values: Any) -> list[Any]:
    """Return a feature's values as Python objects."""
    if values is None:
        return []
    return list(values.tolist() if hasattr(values, "tolist") else values)


def _cell(values: list[Any], *, is_binary: bool) -> Any:
    if values and isinstance(values[0], bytes):
        values = [bytearray(each) if is_binary else each.decode() for each in values]
    return values if len(values) > 1 else values[0] if values else None


def _kind(name: str, dtype: str) -> Callable[[Any], list[Any]]:
    """Return a function that turns a cell into a feature's values."""
    is_array = dtype.startswith("array<")
    base = dtype.removeprefix("array<").removesuffix(">")
    converters: dict[bool, Callable[[Any], Any]] = {
        base in _FLOATS: float,
        base in _INTEGERS: int,
        base in _BYTES: lambda cell: cell.encode() if isinstance(cell, str) else bytes(cell),
    }
    convert = converters.get(True)
    if convert is None:
        raise InvalidArgument(
            f"column {name!r} has type {dtype}, which an Example can't hold: cast it to numbers, "
            "text or bytes, or arrays of them."
        )
    return lambda cell: [convert(each) for each in (cell if is_array else (cell,))]


def _with_jar(spark: SparkSession) -> None:
    """Load the data source's jar, unless the session or this thread has it already."""
    from gridflow.tfrecord.jars import jar

    java: Any = jvm.classes(spark.sparkContext)
    loader = java.Thread.currentThread().getContextClassLoader()
    name = "io/gridflow/tfrecord/hadoop/TFRecordInputFormat.class"
    if loader is None or loader.getResource(name) is None:
        spark.sql(f"ADD JAR '{jar()}'")
