"""Identifies a DataFrame's query and sources by a text that changes whenever the rows may change.

The text is the analyzed plan in its canonical form (without the numbers and names that Spark
assigns each time), the schema of the rows, and the version of each source: for files their paths,
sizes and modification times, as Spark will read them; for Delta and Iceberg tables the snapshot.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gridflow._launch.spark.session import classic_context
from gridflow._spec import jvm
from gridflow.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

__all__ = ["PlanIdentity", "identify"]

_FIELDS: Final = "spark.sql.debug.maxToStringFields"
_FILE: Final = re.compile(r"path=(.*?); isDirectory=.*?length=(\d+);.*?modification_time=(\d+);")
#: Nodes that run user functions; a plan doesn't show their code.
_FUNCTIONS: Final = re.compile(r"Python|InArrow|InPandas|MapPartitions|MapElements|InR\b")
#: Spark's lists of files, unlike those of table formats.
_OWN_LISTS: Final = "org.apache.spark.sql.execution."
_WAY_OUT: Final = (
    "Give a version: gridflow.materialize(df, path, version='…'), any text that you change "
    "when the rows must be written again."
)


@dataclass(frozen=True)
class PlanIdentity:
    """What a DataFrame's rows depend on.

    `key`: Changes when the rows may change.
    `source`: What is read, in words.
    """

    key: str
    source: str


def identify(frame: DataFrame, version: str | None) -> PlanIdentity:
    """Return what the rows of a DataFrame depend on.

    `version`: The user's version of everything that a plan doesn't show.
    Raises `InvalidArgument`: It is unknown, and there is no `version`.
    """
    told = [frame.schema.json()]
    if version is not None:
        told += ["version", version]
    spark = frame.sparkSession
    if classic_context(spark) is None:
        if version is None:
            raise InvalidArgument(
                f"over Spark Connect, gridflow can't determine what a DataFrame reads. {_WAY_OUT}"
            )
        return _identity(told, [f"version {version!r}"])
    told.append(_text_of(frame, jvm.java_frame(frame).queryExecution().analyzed()))
    sources = []
    plan = _plan_by_now(frame)
    plans = [plan, *_items(plan.subqueriesAll())]
    if version is None:
        for each in plans:
            _refuse_unknown(frame, each)
    for each in plans:
        for leaf in _items(each.collectLeaves()):
            name, known = _version_of(spark, leaf, has_other=version is not None)
            sources.append(name)
            told += [name, known]
    return _identity(told, [*([f"version {version!r}"] if version else []), *sources])


def _identity(told: list[str], sources: list[str]) -> PlanIdentity:
    digest = hashlib.sha256("\0".join(told).encode()).hexdigest()
    return PlanIdentity(digest[:32], "; ".join(dict.fromkeys(sources)))


def _plan_by_now(frame: DataFrame) -> Any:
    """Return the plan of a query that is created from a DataFrame now.

    Since Spark 4.1, such a query reads the newest version of its tables, unless it asks for an
    older one, and not the version at the time when the DataFrame was created.
    """
    query = jvm.java_frame(frame.select("*")).queryExecution()
    if hasattr_java(query, "tableVersionsRefreshed"):
        return query.tableVersionsRefreshed()
    return query.analyzed()


def _text_of(frame: DataFrame, plan: Any) -> str:
    """Return the complete canonical plan: by default Spark shows only 25 columns."""
    settings = frame.sparkSession.conf
    before = settings.get(_FIELDS, None)
    settings.set(_FIELDS, str(2**31 - 2))
    try:
        return str(plan.canonicalized().toString())
    finally:
        if before is None:
            settings.unset(_FIELDS)
        else:
            settings.set(_FIELDS, before)


def _refuse_unknown(frame: DataFrame, plan: Any) -> None:
    """Refuse rows that may differ each time, and functions whose code isn't visible."""
    if not plan.deterministic():
        raise InvalidArgument(
            "the rows may differ each time, as the plan has rand(), uuid() or the like. So "
            f"existing files can't be recognised as the same rows. {_WAY_OUT}"
        )
    patterns = jvm.classes(frame.sparkSession).org.apache.spark.sql.catalyst.trees.TreePattern
    found = [
        name
        for name in ("PYTHON_UDF", "SCALA_UDF")
        if plan.containsPattern(getattr(patterns, name)())
    ]
    found += [line for line in str(plan.toString()).splitlines() if _FUNCTIONS.search(line)]
    if found:
        raise InvalidArgument(
            "the plan runs your own functions, and doesn't show whether their code has changed "
            f"({found[0].strip(' +-:')[:80]}). {_WAY_OUT}"
        )


def _version_of(spark: SparkSession, leaf: Any, *, has_other: bool) -> tuple[str, str]:
    """Return what a plan's leaf reads, and its version.

    Raises `InvalidArgument`: The version is unknown.
    """
    kind = str(leaf.nodeName())
    schema = str(leaf.schema().json())
    if kind in {"Range", "OneRowRelation"}:
        return str(leaf.canonicalized().toString()), schema
    if kind == "LocalRelation":
        rows = str(leaf.data().mkString("\n"))
        return "rows of the query", f"{schema}\n{rows}"
    if kind.startswith(("LogicalRelation", "Relation")) and hasattr_java(leaf, "relation"):
        relation = leaf.relation()
        if (snapshot := _snapshot_of(relation)) is not None:
            name, table = snapshot
            return name, f"{schema}\n{_options_of(relation)}\n{table}"
        found = _files_of(spark, relation)
        if found is not None:
            files, options = found
            folders = sorted({path.rpartition("/")[0] for path, _, _ in files})
            name = ", ".join(folders[:3]) + (" …" if len(folders) > 3 else "")  # noqa: PLR2004
            listed = "\n".join(f"{path} {size} {changed}" for path, size, changed in files)
            return f"{len(files)} files in {name}", f"{schema}\n{options}\n{listed}"
    if kind.startswith(("DataSourceV2", "RelationV2")) and hasattr_java(leaf, "table"):
        table = leaf.table()
        if hasattr_java(table, "version") and (number := table.version()) is not None:
            # Options may select a part of it, which the table doesn't see.
            asked = "\n".join(sorted(f"{key} {value}" for key, value in leaf.options().items()))
            return f"{table.name()}, version {number}", f"{schema}\n{asked}"
    if has_other:
        return kind, schema
    raise InvalidArgument(
        f"the plan reads {kind}, whose version Spark doesn't report: it does so only for files "
        f"and versioned tables. {_WAY_OUT}"
    )


def _snapshot_of(relation: Any) -> tuple[str, str] | None:
    """Return a Delta table with the version that will be read, and its id.

    Its files don't show it: deleted rows may be recorded beside unchanged files.
    """
    if not hasattr_java(relation, "location"):
        return None
    place = relation.location()
    if not (hasattr_java(place, "deltaLog") and hasattr_java(place, "getSnapshot")):
        return None
    snapshot = place.getSnapshot()
    # A table recreated at the same place restarts its version numbers.
    return f"{place.path()}, version {snapshot.version()}", str(snapshot.metadata().id())


def _options_of(relation: Any) -> str:
    return "\n".join(sorted(str(relation.options().mkString("\n")).split("\n")))


def _files_of(spark: SparkSession, relation: Any) -> tuple[list[tuple[str, str, str]], str] | None:
    """Return path, size and modification time of each file, and the reader's options."""
    if not hasattr_java(relation, "location"):
        return None
    place = relation.location()
    if not str(place.getClass().getName()).startswith(_OWN_LISTS):
        return None  # only the format knows what its files mean for the rows
    place.refresh()  # Spark lists files when a DataFrame is created, and reads those
    if hasattr_java(place, "allFiles"):
        text = str(place.allFiles().mkString("\n"))
        files = [(path, size, at) for path, size, at in _FILE.findall(text)]
    else:  # a table of Hive's catalog
        files = [_status(spark, str(path)) for path in place.inputFiles()]
    return sorted(files), _options_of(relation)


def _status(spark: SparkSession, path: str) -> tuple[str, str, str]:
    """Return path, size and modification time of one file."""
    java = jvm.classes(spark)
    assert java is not None
    place = java.org.apache.hadoop.fs.Path(java.java.net.URI(path))
    settings = jvm.java_context(classic_context(spark)).hadoopConfiguration()
    found = place.getFileSystem(settings).getFileStatus(place)
    return str(place), str(found.getLen()), str(found.getModificationTime())


def hasattr_java(thing: Any, method: str) -> bool:
    """Return whether a Java object has a public method of that name."""
    return any(each.getName() == method for each in thing.getClass().getMethods())


def _items(sequence: Any) -> Iterator[Any]:
    for number in range(sequence.size()):
        yield sequence.apply(number)
