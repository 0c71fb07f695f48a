"""What layers want to know, found by Spark: by aggregates of its own, and of Python workers."""

from __future__ import annotations

import math
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gridflow.errors import DataError, SchemaError
from gridflow.ml import tokens
from gridflow.ml.wants import (
    Extremes,
    FoundMoments,
    FoundVocabulary,
    Moments,
    Quantiles,
    Vocabulary,
    Want,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

#: GROUPING SETS number their columns by the bits of a long.
_MOST_COLUMNS: Final = 60
_PART_DDL: Final = "want int, token string, number bigint, n bigint, documents bigint, state binary"


def find(
    frame: DataFrame, wants: Sequence[Want], limits: Mapping[Want, int | None]
) -> dict[Want, Any]:
    """Return what is found of each want.

    Parameters
    ----------
    frame : DataFrame
    wants : sequence of Want
    limits : mapping
        How many tokens of a vocabulary are needed, the most frequent ones; None: all.

    Raises
    ------
    DataError, SchemaError
        Columns that don't have what is wanted.
    """
    from gridflow.launch.spark.session import run_this_python_where_it_can

    run_this_python_where_it_can(frame.sparkSession)
    kinds = _Kinds(frame)
    frame = kinds.with_arrays(frame)
    for want in wants:
        kinds.check(want)
    in_python = [want for want in wants if kinds.is_for_python(want)]
    of_items = [want for want in wants if isinstance(want, Quantiles) and kinds.depth(want.column)]
    in_spark = [want for want in wants if want not in in_python and want not in of_items]
    found: dict[Want, Any] = {}
    if in_spark:
        found |= _by_spark(frame, in_spark, limits)
    if in_python:
        found |= _by_python(frame, in_python, limits)
    for want in of_items:
        items = frame.select(_quoted(want.column))
        for _ in range(kinds.depth(want.column)):
            items = items.selectExpr(f"explode({_name(want.column)}) AS {_name(want.column)}")
        found |= _by_spark(items, [want], limits)
    return found


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
        """Return the DataFrame with arrays in the place of vectors of Spark ML."""
        if not self._vectors:
            return frame
        from pyspark.ml.functions import vector_to_array

        return frame.withColumns({name: vector_to_array(_quoted(name)) for name in self._vectors})

    def depth(self, column: str) -> int:
        """Return how many axes a row of a column has."""
        return self._depths[column]

    def is_for_python(self, want: Want) -> bool:
        """Return whether Spark's own functions can't find it."""
        if isinstance(want, Vocabulary):
            return want.is_text or self.depth(want.column) > 0
        return isinstance(want, Moments) and any(self.depth(name) for name in want.columns)

    def check(self, want: Want) -> None:
        """Refuse columns of other types than a layer of the kind takes.

        Raises
        ------
        SchemaError
            With the column and its type.
        """
        integers = ("byte", "short", "integer", "long")
        numbers = (*integers, "float", "double", "decimal", "boolean")
        allowed: tuple[str, ...]
        columns: tuple[str, ...] = (want.column,) if not isinstance(want, Moments) else want.columns
        if isinstance(want, Vocabulary):
            allowed = ("string",) if want.is_text else ("string", *integers)
        else:
            allowed = integers if isinstance(want, Extremes) else numbers
        for name in columns:
            if self._leaves[name] not in allowed:
                raise SchemaError(
                    f"the column {name!r} is of {self._leaves[name]}, and the layer takes "
                    f"{', '.join(allowed)}. Cast it before, as it is cast for the model."
                )
            if isinstance(want, Moments) and len(columns) > 1 and self.depth(name):
                raise SchemaError(
                    f"the column {name!r} holds arrays; only columns of numbers are put side by "
                    "side. Give arrays to a layer of their own."
                )

    def is_string(self, column: str) -> bool:
        """Return whether a column holds strings."""
        return self._leaves[column] == "string"


def _name(column: str) -> str:
    return "`" + column.replace("`", "``") + "`"


def _quoted(column: str) -> Column:
    from pyspark.sql import functions

    return functions.col(_name(column))


def _by_spark(
    frame: DataFrame, wants: Sequence[Want], limits: Mapping[Want, int | None]
) -> dict[Want, Any]:
    """Find what Spark's own functions can; no column is read twice for one want."""
    found: dict[Want, Any] = {}
    vocabularies = [want for want in wants if isinstance(want, Vocabulary)]
    metrics = _metrics(wants)
    values = frame.agg(*metrics).collect()[0].asDict() if metrics else {}
    table = None
    if vocabularies:
        # Not beside the other aggregates, by an Observation: that counts again what is run again.
        most = {place: limits[want] for place, want in enumerate(vocabularies)}
        table = _most_frequent(_counted(frame, [w.column for w in vocabularies]), most).toArrow()
    for i, want in enumerate(wants):
        if isinstance(want, Vocabulary):
            rows = int(values.get(f"rows_{i}", 0))
            found[want] = _vocabulary(table, vocabularies.index(want), rows)
            _some(len(found[want].tokens), want.column)
        else:
            found[want] = _of_metrics(i, want, values)
    return found


def _metrics(wants: Sequence[Want]) -> list[Column]:
    from pyspark.sql import functions as f

    metrics = []
    for i, want in enumerate(wants):
        if isinstance(want, Moments):
            columns = [_quoted(name).cast("double") for name in want.columns]
            is_whole = reduce(lambda a, b: a & b, [column.isNotNull() for column in columns])
            for j, column in enumerate(columns):
                value = f.when(is_whole, column) if len(columns) > 1 else column
                if j == 0:
                    metrics.append(f.count(value).alias(f"n_{i}"))
                metrics += [
                    f.avg(value).alias(f"mean_{i}_{j}"),
                    f.var_pop(value).alias(f"variance_{i}_{j}"),
                ]
        elif isinstance(want, Quantiles):
            at = [(k + 1) / want.bins for k in range(want.bins - 1)]
            cut = f.percentile_approx(
                _quoted(want.column).cast("float"), at, math.ceil(1 / want.error)
            )
            metrics.append(cut.alias(f"cut_{i}"))
        elif isinstance(want, Extremes):
            column = _quoted(want.column)
            metrics += [f.min(column).alias(f"least_{i}"), f.max(column).alias(f"most_{i}")]
        elif want.needs_rows:
            metrics.append(f.count(_quoted(want.column)).alias(f"rows_{i}"))
    return metrics


def _of_metrics(i: int, want: Want, values: Mapping[str, Any]) -> Any:
    if isinstance(want, Moments):
        of_columns = range(len(want.columns))
        mean, variance = (
            np.asarray([values[f"{what}_{i}_{j}"] for j in of_columns], np.float64)
            for what in ("mean", "variance")
        )
        is_single = len(want.columns) == 1
        count = int(values[f"n_{i}"])
        _some(count, *want.columns)
        return FoundMoments(
            count, mean[0] if is_single else mean, variance[0] if is_single else variance
        )
    if isinstance(want, Quantiles):
        cut = values[f"cut_{i}"] or []
        _some(len(cut) or want.bins == 1, want.column)
        return [float(value) for value in cut]
    assert isinstance(want, Extremes)
    _some(values[f"most_{i}"] is not None, want.column)
    return int(values[f"least_{i}"]), int(values[f"most_{i}"])


def _some(rows: object, *columns: str) -> None:
    if not rows:
        listed = ", ".join(repr(name) for name in columns)
        raise DataError(
            f"there is no row without a null in {listed}, so there is nothing to learn."
        )


def _counted(frame: DataFrame, columns: Sequence[str]) -> DataFrame:
    """Return how often each value of each column occurs, by the columns' places."""
    from pyspark.sql import functions as f

    if len(columns) > _MOST_COLUMNS:
        raise SchemaError(
            f"at most {_MOST_COLUMNS} columns can be looked up in one call of adapt; got "
            f"{len(columns)}. Call it several times."
        )
    kinds = {field.name: field.dataType.typeName() for field in frame.schema}
    names = [f"c{i}" for i in range(len(columns))]
    chosen = frame.select(
        *(_quoted(column).alias(name) for column, name in zip(columns, names, strict=True))
    )
    sets = [[f.col(name)] for name in names]
    counted = chosen.groupingSets(sets, *names).agg(
        f.count(f.lit(1)).alias("n"), f.grouping_id().alias("bits")
    )
    every = (1 << len(names)) - 1
    want = f.lit(None).cast("int")
    token, number = f.lit(None).cast("string"), f.lit(None).cast("bigint")
    for i, (column, name) in enumerate(zip(columns, names, strict=True)):
        is_this = f.col("bits") == every ^ (1 << (len(names) - 1 - i))
        want = f.when(is_this, f.lit(i)).otherwise(want)
        if kinds[column] == "string":
            token = f.coalesce(f.col(name), token)
        else:
            number = f.coalesce(f.col(name).cast("bigint"), number)
    return (
        counted.select(want.alias("want"), token.alias("token"), number.alias("number"), "n")
        .where("token IS NOT NULL OR number IS NOT NULL")
        .withColumn("documents", f.col("n"))
    )


def _most_frequent(
    counted: DataFrame, most: Mapping[int, int | None], *before: Column
) -> DataFrame:
    """Return the most frequent tokens of each want, as many as are needed.

    What is put before them by an order of its own counts as one.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    limited = {want: limit for want, limit in most.items() if limit is not None}
    if not limited:
        return counted
    order = [*before, f.desc("n"), f.desc("number"), f.desc("token")]
    place = f.row_number().over(Window.partitionBy("want").orderBy(*order))
    greatest = max(limited.values())
    is_wanted = f.col("place") <= greatest
    free = [want for want in most if want not in limited]
    if free:
        is_wanted = is_wanted | f.col("want").isin(free)
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


def _by_python(
    frame: DataFrame, wants: Sequence[Want], limits: Mapping[Want, int | None]
) -> dict[Want, Any]:
    """Find what is in arrays and texts: parts of partitions, put together by Spark."""
    import pyarrow.compute as pc
    from pyspark.sql import functions as f

    columns = [want.columns[0] if isinstance(want, Moments) else want.column for want in wants]
    chosen = frame.select(*(_quoted(column).alias(f"c{i}") for i, column in enumerate(columns)))
    # Functions of the user, and modules beside his script, travel with the wants.
    wanted = list(wants)

    def part(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return iter(tokens.parts(wanted, iter(batches)))

    parts = chosen.mapInArrow(part, _PART_DDL)
    summed = parts.groupBy("want", "token", "number").agg(
        f.sum("n").alias("n"),
        f.sum("documents").alias("documents"),
        f.collect_list("state").alias("states"),
    )
    is_state = "token IS NULL AND number IS NULL"
    summed = summed.withColumn("is_state", f.expr(is_state))
    most = {
        place: (None if limits.get(want) is None else int(limits[want] or 0) + 1)
        for place, want in enumerate(wants)
    }
    table = _most_frequent(summed, most, f.desc("is_state")).toArrow()
    found: dict[Want, Any] = {}
    states = {row["want"]: row for row in table.filter(table["is_state"]).to_pylist()}
    rest = table.filter(pc.invert(table["is_state"]))
    for place, want in enumerate(wants):
        row = states.get(place)
        _some(row is not None and row["n"], columns[place])
        assert row is not None
        if isinstance(want, Moments):
            found[want] = _moments(row["states"], columns[place])
        else:
            found[want] = _vocabulary(rest, place, int(row["n"]))
    return found


def _moments(states: Sequence[bytes], column: str) -> FoundMoments:
    try:
        return FoundMoments(*tokens.merged(states))
    except ValueError as error:
        raise DataError(f"the column {column!r}: {error}. All rows need one shape.") from error
