"""Parts of partitions, counted by gridflow's jar where Spark has the rows: none comes to Python.

What it counts, it counts as `gridflow.ml.tokens` does, which stays for arrays, for users' functions
and for sessions that can't have the jar.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gridflow._feed.ingest.names import quoted
from gridflow._feed.ingest.packing import can_pack
from gridflow._spec import jvm
from gridflow.ml.statistics import Moments, Quantiles, Vocabulary, columns_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

    from gridflow.ml.statistics import Want


def is_counted(want: Want) -> bool:
    """Return whether the jar knows a want: a user's function is Python's alone."""
    return not (
        isinstance(want, Vocabulary) and (callable(want.standardize) or callable(want.split))
    )


def parts(frame: DataFrame, wants: Sequence[Want]) -> DataFrame | None:
    """Return the parts of all partitions, as `tokens.parts` makes them.

    None where the session can't have the jar.

    `frame`: Without arrays in the columns that are wanted.
    `wants` (sequence of Want): Such as `is_counted`.
    """
    from pyspark.sql import DataFrame
    from pyspark.sql import functions as f

    spark = frame.sparkSession
    if not can_pack(spark):
        return None
    names = list(dict.fromkeys(name for want in wants for name in columns_of(want)))
    # As they are: a cast, or another name, would let Spark copy each row once more.
    chosen = frame.select(*(f.col(quoted(name)) for name in names))
    package: Any = jvm.classes(spark).io.gridflow.adapt
    try:
        asked = package.Wants(jvm.java_frame(chosen))
    except TypeError:  # no class: the session was made with the jar of an older release
        return None
    for want in wants:
        _ask(asked, want, [names.index(name) for name in columns_of(want)])
    # The tokens come as the bytes that they are: Spark takes them for text without a look.
    return DataFrame(asked.parts(), spark).withColumn("token", f.col("token").cast("string"))


def _ask(asked: Any, want: Want, places: list[int]) -> None:
    """Ask Java's Wants for one."""
    if isinstance(want, Moments):
        asked.moments(places)
    elif isinstance(want, Quantiles):
        asked.quantiles(places[0], float(want.error))
    elif not isinstance(want, Vocabulary):
        asked.extremes(places[0])
    elif want.is_text:
        how = want.standardize or ""
        # Of each width as it stands: one is asked for twice, it is counted twice.
        widths = [1] if want.ngrams is None else [int(width) for width in want.ngrams]
        asked.tokens(
            places[0], want.needs_documents, "lower" in how, "strip" in how, want.split, widths
        )
    else:
        asked.values(places[0], want.needs_documents)
