"""From DataFrames to the one stage whose partitions are the agents' rows.

`check` and `stage_frame` run in the driver, on classic Spark and Spark Connect; `Tags` separates
the datasets again in the agents, with pyarrow only.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from gridflow._feed.encodings import Sparse
from gridflow._feed.ingest.base import RankRows, check_name, quoted
from gridflow._feed.ingest.partitions import partitions, repartitioned
from gridflow._feed.types import refusal, spark_refusal
from gridflow._spec import jvm
from gridflow.errors import InvalidArgument, SchemaError

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Iterable, Iterator

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

    from gridflow._feed.ingest.partitions import Repartition

__all__ = ["Tags", "check", "is_dataframe", "plain_frame", "readable", "stage_frame"]

#: Prefix of the feed's own column names.
_RESERVED: Final = "__gridflow_"
_TAG: Final = f"{_RESERVED}dataset"
_MAX_DATASETS: Final = 127


@dataclass(frozen=True)
class Tags(RankRows):
    """The layout of the datasets in the staged DataFrame, whose partitions are the ranks' rows.

    `datasets`: The names; if there are several, a row's tag is its dataset's index here.
    `columns`: For each dataset, its columns' names in the staged DataFrame and in its own.
    """

    datasets: tuple[str, ...]
    columns: tuple[tuple[tuple[str, str], ...], ...]

    @property
    def tag(self) -> str | None:
        """The column with a row's tag; None for a single dataset."""
        return _TAG if len(self.datasets) > 1 else None

    def batches(
        self, arriving: Iterable[pa.RecordBatch] = ()
    ) -> Generator[tuple[str, pa.RecordBatch]]:
        """Yield the rows of a partition with the name of their dataset."""
        for batch in arriving:
            if batch.num_rows:
                yield from self._parted(batch)

    def _parted(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        if len(self.datasets) == 1:
            own_names = [own for _, own in self.columns[0]]
            same = batch.schema.names == own_names
            yield self.datasets[0], batch if same else batch.rename_columns(own_names)
            return
        tag = batch.column(_TAG).to_numpy()
        for number in np.unique(tag):
            mine = tag == number
            inside, own = zip(*self.columns[number], strict=True)
            selected = batch.select(list(inside))
            if not mine.all():
                selected = selected.filter(pa.array(mine))
            yield (
                self.datasets[number],
                pa.RecordBatch.from_arrays(selected.columns, names=list(own)),
            )


def is_dataframe(rows: object) -> bool:
    """Return whether this is a DataFrame, of classic Spark or Spark Connect, streaming or not.

    No other attribute tells: a DataFrame of Spark Connect takes any name for a column.
    """
    return hasattr(rows, "mapInArrow")


def readable(frame: DataFrame, dataset: str) -> tuple[DataFrame, dict[str, str]]:
    """Return a frame without columns of types that PySpark doesn't know, and why, by column.

    With one of them, PySpark can't tell a frame's columns. Spark 4.3 has one: nanoseconds.

    Raises `SchemaError`: No column remains; or over Spark Connect, where they can't be told apart.
    """
    from pyspark.errors import PySparkValueError
    from pyspark.sql import functions as f
    from pyspark.sql.types import StructType

    try:
        frame.schema  # noqa: B018 (it is read once)
    except PySparkValueError as error:
        jdf = jvm.java_frame(frame)
        if jdf is None:
            raise SchemaError(
                f"dataset {dataset!r} has a column of a type that this PySpark doesn't know: "
                f"{error} Leave it out: df.drop('name')."
            ) from error
    else:
        return frame, {}
    told = json.loads(jdf.schema().json())["fields"]
    kinds = [field.dataType().simpleString() for field in jdf.schema().fields()]
    known: dict[str, str] = {}
    reasons: dict[str, str] = {}
    for place, (field, kind) in enumerate(zip(told, kinds, strict=True)):
        try:
            StructType.fromJson({"fields": [field]})
        except Exception:  # noqa: BLE001 (PySpark's own parser raises what comes)
            where = f"column {field['name']!r} of dataset {dataset!r}"
            reasons[field["name"]] = refusal(where, kind, None)
        else:
            known[f"{_RESERVED}{place}"] = field["name"]
    if not known:
        raise SchemaError(" ".join(reasons.values()))
    numbered = frame.toDF(*(f"{_RESERVED}{place}" for place in range(len(told))))
    return numbered.select([f.col(inside).alias(own) for inside, own in known.items()]), reasons


def check(datasets: Mapping[str, DataFrame]) -> dict[str, dict[str, str]]:
    """Reject what can't be fed, before anything is launched.

    Returns: Columns that are left out because they can't be fed, with the reason, by dataset.
    Raises `SchemaError`: No column remains; the message names dataset, columns and types, and says
        what to do.
    Raises `InvalidArgument`: A dataset's name isn't an identifier, or there is no dataset.
    """
    if not datasets:
        raise InvalidArgument("data contains no dataset: pass at least one, {'train': df}.")
    if len(datasets) > _MAX_DATASETS:
        raise InvalidArgument(f"too many datasets: {len(datasets)} (limit {_MAX_DATASETS}).")
    left_out = {}
    for name, frame in datasets.items():
        check_name(name)
        if not frame.schema.fields:
            raise SchemaError(f"dataset {name!r} has no columns.")
        reasons = _reasons(frame, name)
        if all(field.name in reasons for field in frame.schema.fields):
            raise SchemaError(" ".join(reasons.values()))
        if reasons:
            left_out[name] = reasons
    return left_out


def _reasons(frame: DataFrame, dataset: str) -> dict[str, str]:
    """Return the columns that can't be fed, and fields of structs by path, with the reason."""
    return {".".join(path): why for path, why in _refused(frame.schema, (), dataset).items()}


def _refused(
    struct: StructType, above: tuple[str, ...], dataset: str
) -> dict[tuple[str, ...], str]:
    """Return the paths of fields that can't be fed; of structs without any other, their own."""
    from pyspark.sql.types import StructType

    times = Counter(struct.names)
    reasons: dict[tuple[str, ...], str] = {}
    for field in struct.fields:
        kind, path = field.dataType, (*above, field.name)
        where = f"column {'.'.join(path)!r} of dataset {dataset!r}"
        reason: str | None = None
        if times[field.name] > 1:
            reason = f"{where} is there {times[field.name]} times. Rename it or drop all but one."
        elif not above and field.name.startswith(_RESERVED):
            reason = f"{where}: names that begin with {_RESERVED} are reserved. Rename it."
        elif isinstance(kind, StructType):  # its fields are columns
            inside = _refused(kind, path, dataset)
            if not inside or any((*path, name) not in inside for name in kind.names):
                reasons |= inside
            else:
                reason = next(iter(inside.values()))
        else:
            reason = _reason_against(kind, where)
        if reason is not None:
            reasons[path] = reason
    return reasons


def _feedable(frame: DataFrame, dataset: str, kept: Collection[str] = ()) -> DataFrame:
    """Return the frame without what can't be fed, columns and fields, except those to keep."""
    refused = [path for path in _refused(frame.schema, (), dataset) if ".".join(path) not in kept]
    if not refused:
        return frame
    numbered, columns = _by_position(frame)
    fed = []
    for name, column in zip(frame.columns, columns, strict=True):
        if (name,) not in refused:
            inside = [path[1:] for path in refused if path[0] == name and name not in kept]
            fields = [".".join(map(quoted, path)) for path in inside]
            fed.append((column.dropFields(*fields) if fields else column).alias(name))
    return numbered.select(fed)


def _by_position(frame: DataFrame) -> tuple[DataFrame, list[Column]]:
    """Return the frame with other names, and its columns.

    Spark can't resolve a name that occurs twice, or that differs from another only in case.
    """
    from pyspark.sql import functions as f

    numbered = [f"{_RESERVED}{place}" for place in range(len(frame.columns))]
    return frame.toDF(*numbered), [f.col(name) for name in numbered]


def _reason_against(kind: DataType, where: str) -> str | None:
    from pyspark.sql import types as t

    leaf = kind
    while isinstance(leaf, t.ArrayType):
        leaf = leaf.elementType
    if leaf is kind and is_vector(kind):
        return None
    return spark_refusal(type(leaf).__name__, kind.simpleString(), where)


def is_vector(kind: DataType) -> bool:
    """Return whether this is the type of Spark ML vectors."""
    return type(kind).__name__ == "VectorUDT" and type(kind).__module__.startswith("pyspark.ml")


def plain_frame(name: str, frame: DataFrame, kept: Collection[str] = ()) -> tuple[DataFrame, Tags]:
    """Return a DataFrame of what can be fed, unchanged, and the names of its columns."""
    frame = _vectors_to_arrays(_feedable(frame, name, kept), kept)
    own = frame.columns
    frame = _plainly_named(frame)
    return frame, Tags((name,), (tuple(zip(frame.columns, own, strict=True)),))


def stage_frame(
    datasets: Mapping[str, DataFrame],
    num_partitions: int,
    repartition: Repartition = "auto",
    kept: Collection[str] = (),
) -> tuple[DataFrame, Tags]:
    """Return the one DataFrame whose partitions go to the agents.

    `datasets`: DataFrames by name, accepted by `check`.
    `num_partitions`: Number of agents, with one partition each, accepted by `check_partitions`.
    `repartition` ({"auto", "always", "never"}): ``"auto"``: a single DataFrame that has exactly
        this number of partitions, as far as Spark knows before running, is used unchanged (cached,
        ``repartition(n)``, ``range``). ``"never"``: it is used unchanged in any case, and must have
        that number.
    `kept` (collection of str, or mapping of str to Form): Columns to keep: the agents convert them.
    Returns: The tags go to the agents.
    """
    if len(datasets) == 1:
        ((name, given),) = datasets.items()
        frame, tags = plain_frame(name, given, kept)
        keeps = repartition == "never" or (
            repartition == "auto" and partitions(frame) == num_partitions
        )
        return (frame if keeps else repartitioned(frame, num_partitions)), tags
    frames = {
        name: _vectors_to_arrays(_feedable(frame, name, kept), kept)
        for name, frame in datasets.items()
    }
    union, tags = _tagged_union(frames)
    return repartitioned(union, num_partitions), tags


def _vectors_to_arrays(frame: DataFrame, kept: Collection[str] = ()) -> DataFrame:
    """Return the frame with vectors as arrays, or as structs if they will be sparse."""
    fields = frame.schema.fields
    if not any(_has_vectors(field.dataType) for field in fields):
        return frame
    numbered, columns = _by_position(frame)
    return numbered.select(
        [
            _without_vectors(column, field.dataType, field.name, kept).alias(field.name)
            for field, column in zip(fields, columns, strict=True)
        ]
    )


def _has_vectors(kind: DataType) -> bool:
    fields = getattr(kind, "fields", ())  # of a struct
    return is_vector(kind) or any(_has_vectors(field.dataType) for field in fields)


def _without_vectors(column: Column, kind: DataType, path: str, kept: Collection[str]) -> Column:
    from pyspark.ml.functions import vector_to_array
    from pyspark.sql import functions as f

    if is_vector(kind):
        if isinstance(kept, Mapping) and isinstance(kept.get(path), Sparse):
            return f.unwrap_udt(column)
        # vector_to_array rejects nulls; as a null array they are handled by the feed's rule.
        return f.when(column.isNotNull(), vector_to_array(column, "float32"))
    for field in getattr(kind, "fields", ()):
        if _has_vectors(field.dataType):
            inside, below = column.getField(field.name), f"{path}.{field.name}"
            array = _without_vectors(inside, field.dataType, below, kept)
            column = column.withField(quoted(field.name), array)
    return column


def _plainly_named(frame: DataFrame) -> DataFrame:
    """Return the frame with its columns numbered, if Spark would misunderstand a name.

    ``mapInArrow`` looks its columns up by name: ``a.b`` would be a field of ``a``, and ``x`` might
    be ``X``.
    """
    names = frame.columns
    are_clear = len({name.lower() for name in names}) == len(names)
    if are_clear and not any(character in name for name in names for character in ".`"):
        return frame
    return frame.toDF(*(f"{_RESERVED}c{number}" for number in range(len(frame.columns))))


def _tagged_union(frames: Mapping[str, DataFrame]) -> tuple[DataFrame, Tags]:
    from pyspark.sql import functions as f

    shared: dict[str, DataType] = {}
    fields: dict[str, DataType] = {}
    named: list[dict[str, str]] = []
    odd: dict[str, str] = {}
    cases: dict[str, str] = {}
    for tag, frame in enumerate(frames.values()):
        names = {}
        for field in frame.schema.fields:
            kind = shared.setdefault(field.name, field.dataType)
            same = kind.simpleString() == field.dataType.simpleString()
            inside = field.name if same else f"{_RESERVED}{tag}_{field.name}"
            is_clear = cases.setdefault(inside.lower(), inside) == inside
            if not is_clear or "." in inside or "`" in inside:  # as in `_plainly_named`
                inside = odd.setdefault(inside, f"{_RESERVED}c{len(odd)}")
            names[field.name] = inside
            fields.setdefault(inside, field.dataType)
        named.append(names)
    union: DataFrame | None = None
    for tag, (frame, names) in enumerate(zip(frames.values(), named, strict=True)):
        numbered, given = _by_position(frame)
        own = dict(zip(names.values(), given, strict=True))
        columns = [
            (own[inside] if inside in own else f.lit(None).cast(kind)).alias(inside)
            for inside, kind in fields.items()
        ]
        part = numbered.select(f.lit(tag).cast("tinyint").alias(_TAG), *columns)
        union = part if union is None else union.union(part)
    assert union is not None
    tags = Tags(
        tuple(frames),
        tuple(tuple((inside, column) for column, inside in names.items()) for names in named),
    )
    return union, tags
