"""Computes statistics for layers with Spark, in one pass over a DataFrame."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gridflow._feed.ingest.base import quoted
from gridflow.errors import DataError, SchemaError
from gridflow.ml import statistics, tokens
from gridflow.ml.statistics import (
    Extremes,
    FoundMoments,
    FoundVocabulary,
    Moments,
    Quantiles,
    Vocabulary,
    Want,
    columns_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

_PART_DDL: Final = "want int, token string, number bigint, n bigint, documents bigint, state binary"


def find(frame: DataFrame, limits: Mapping[Want, int | None]) -> dict[Want, Any]:
    """Return the result of each want.

    `limits`: The wants, and how many of the most frequent tokens are needed; None: all.
    Raises `DataError`, `SchemaError`: Columns don't have the required type or values.
    """
    kinds = _Kinds(frame)
    for want in limits:
        kinds.check(want)
    return _found(_parts(kinds.with_arrays(frame), list(limits)), limits)


class _Kinds:
    """The types of a DataFrame's columns."""

    def __init__(self, frame: DataFrame) -> None:
        from pyspark.sql.types import ArrayType

        self._vectors = [
            field.name for field in frame.schema if field.dataType.typeName() == "vectorudt"
        ]
        self._depths: dict[str, int] = {}
        self._leaves: dict[str, str] = {}
        for field in frame.schema:
            kind, depth = field.dataType, 0
            while isinstance(kind, ArrayType):
                kind, depth = kind.elementType, depth + 1
            is_vector = field.name in self._vectors
            self._depths[field.name] = 1 if is_vector else depth
            self._leaves[field.name] = "double" if is_vector else kind.typeName()

    def with_arrays(self, frame: DataFrame) -> DataFrame:
        """Return the DataFrame with Spark ML vectors as arrays."""
        if not self._vectors:
            return frame
        from pyspark.ml.functions import vector_to_array

        return frame.withColumns({name: vector_to_array(_quoted(name)) for name in self._vectors})

    def depth(self, column: str) -> int:
        """Return the number of axes of a row of a column."""
        return self._depths[column]

    def check(self, want: Want) -> None:
        """Reject columns of types that the layer doesn't accept.

        Raises `SchemaError`: Names the column and its type.
        """
        integers = ("byte", "short", "integer", "long")
        numbers = (*integers, "float", "double", "boolean")
        allowed: tuple[str, ...]
        columns = columns_of(want)
        if isinstance(want, Vocabulary):
            allowed = ("string",) if want.is_text else ("string", *integers)
        else:
            allowed = integers if isinstance(want, Extremes) else numbers
        for name in columns:
            if self._leaves[name] not in allowed:
                raise SchemaError(
                    f"the column {name!r} is of {self._leaves[name]}, and the layer takes "
                    f"{', '.join(allowed)}. Cast it first, as for the model."
                )
            if isinstance(want, Vocabulary) and want.is_text and self.depth(name):
                raise SchemaError(
                    f"the column {name!r} holds arrays, and a TextVectorization takes one text per "
                    "row. Make it one first (Spark: array_join, explode)."
                )
            if isinstance(want, Moments) and len(columns) > 1 and self.depth(name):
                raise SchemaError(
                    f"the column {name!r} holds arrays; only columns of numbers can be combined. "
                    f"Give arrays to a separate layer."
                )


def _quoted(column: str) -> Column:
    from pyspark.sql import functions

    return functions.col(quoted(column))


def _most_frequent(counted: DataFrame, most: Mapping[int, int | None]) -> DataFrame:
    """Return the states, and as many of the most frequent tokens of each want as needed."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    limited = {want: limit for want, limit in most.items() if limit is not None}
    if not limited:
        return counted
    order = [f.desc("n"), f.desc("number"), f.desc("token")]
    # Each state is the first of its own group. An exception for states in the condition would
    # prevent Spark from dropping later rows of a group before the shuffle.
    groups = Window.partitionBy("want", "part")
    place = f.row_number().over(groups.orderBy(*order))
    is_wanted = f.col("place") <= max(limited.values())
    if len(limited) < len(most):
        is_wanted = is_wanted | ~f.col("want").isin(list(limited))
    return counted.withColumn("place", place).where(is_wanted).drop("place")


def _vocabulary(table: Any, want: int, rows: int) -> FoundVocabulary:
    """Return the tokens in Keras's order: ties by the tokens' bytes, the greater ones first."""
    import pyarrow as pa
    import pyarrow.compute as pc

    own = table.filter(pc.equal(table["want"], want))
    is_text = own["number"].null_count == len(own)
    column = own["token" if is_text else "number"].to_numpy()
    counts, documents = own["n"].to_numpy(), own["documents"].to_numpy()
    order = pc.sort_indices(
        pa.table({"n": counts, "token": column}),
        sort_keys=[("n", "descending"), ("token", "descending")],
    ).to_numpy()
    return FoundVocabulary(column[order], counts[order], documents[order], rows)


def _parts(frame: DataFrame, wants: Sequence[Want]) -> DataFrame:
    """Aggregate parts of partitions in Python workers."""
    from gridflow._launch.spark.session import run_this_python_where_it_can

    run_this_python_where_it_can(frame.sparkSession)
    chosen = frame.select(*(_column(want).alias(f"c{i}") for i, want in enumerate(wants)))

    def part(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return iter(tokens.parts(wants, iter(batches)))

    return chosen.mapInArrow(part, _PART_DDL)


def _found(parts: DataFrame, limits: Mapping[Want, int | None]) -> dict[Want, Any]:
    """Combine the parts of partitions in Spark."""
    import pyarrow.compute as pc
    from pyspark.sql import functions as f

    titles = [", ".join(map(repr, columns_of(want))) for want in limits]
    # Each state is its own key, by partition. Collecting them would prevent Spark's plain hash
    # aggregate, and the other aggregate sorts everything with more than 128 keys
    # (spark.sql.objectHashAggregate.sortBased.fallbackThreshold).
    of_state = f.expr("CASE WHEN state IS NOT NULL THEN spark_partition_id() END")
    summed = (
        parts.withColumn("part", of_state)
        .groupBy("want", "token", "number", "part", "state")
        .agg(f.sum("n").alias("n"), f.sum("documents").alias("documents"))
    )
    most = {
        place: limit
        for place, (want, limit) in enumerate(limits.items())
        if isinstance(want, Vocabulary)
    }
    table = _most_frequent(summed, most).toArrow()
    rest = table.filter(pc.is_null(table["part"]))
    rows = table.filter(pc.is_valid(table["part"])).sort_by("part").to_pylist()
    found: dict[Want, Any] = {}
    for place, want in enumerate(limits):
        mine = [row for row in rows if row["want"] == place]
        count, states = sum(row["n"] for row in mine), [row["state"] for row in mine]
        if not count:
            raise DataError(
                f"{titles[place]} has no row without a null, so there is nothing to adapt to."
            )
        if isinstance(want, Vocabulary):
            found[want] = _vocabulary(rest, place, count)
        elif isinstance(want, Moments):
            found[want] = _moments(states, titles[place])
        elif isinstance(want, Quantiles):
            found[want] = statistics.boundaries(states, want.bins)
        else:
            found[want] = tokens.extremes(states)
    return found


def _column(want: Want) -> Column:
    from pyspark.sql import functions as f

    columns = [_quoted(name) for name in columns_of(want)]
    return columns[0] if len(columns) == 1 else f.array(*(each.cast("double") for each in columns))


def _moments(states: Sequence[bytes], title: str) -> FoundMoments:
    try:
        return FoundMoments(*tokens.merged(states))
    except ValueError as error:
        raise DataError(f"the column {title}: {error}. All rows need the same shape.") from error
