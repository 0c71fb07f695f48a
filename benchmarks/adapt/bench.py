"""gridflow.ml.adapt beside Keras's adapt of toPandas(): ``benchmarks/adapt/bench.py [times]``.

Seconds of wall time on one cached DataFrame, from the call to layers that know all; medians.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "feed"))

from measure import session

ROWS = 5_000_000
GOAL = 5


def layers() -> dict:
    """Layers of a usual table of customers."""
    import keras

    make = keras.layers
    return {
        "age": make.Normalization(axis=None),
        "income": make.Discretization(num_bins=20),
        "city": make.StringLookup(max_tokens=10_000),
        "shop": make.IntegerLookup(),
        "words": make.TextVectorization(max_tokens=20_000),
    }


def rows(spark):
    frame = spark.range(0, ROWS, 1, 2).selectExpr(
        "cast(18 + pmod(hash(id), 70) as float) age",
        "cast(exp(10 + pmod(hash(id, 1), 1000) / 400) as float) income",
        "concat('city ', cast(sqrt(pmod(hash(id, 2), 400000000)) as int)) city",
        "cast(pmod(hash(id, 3), 2000) as bigint) shop",
        "concat_ws(' ', concat('Word', cast(sqrt(pmod(hash(id, 4), 100000000)) as int)), 'of,', "
        "concat('thing', pmod(hash(id, 5), 50)), 'bought!') words",
    )
    frame = frame.cache()
    assert frame.count() == ROWS
    return frame


def by_keras(frame, found: dict) -> None:
    for column, layer in found.items():
        values = frame.select(column).toPandas()[column]
        layer.adapt(values.tolist() if values.dtype == object else values.to_numpy()[:, None])


def by_spark(frame, found: dict) -> None:
    from gridflow.ml import adapt

    adapt(found, frame)


def check(ours: dict, theirs: dict, frame) -> None:
    """Refuse to report a time of something else than the same state."""
    import numpy as np

    for column in ("city", "shop", "words"):
        assert ours[column].get_vocabulary() == theirs[column].get_vocabulary(), column
    for what in ("mean", "variance"):
        pair = [np.ravel(getattr(each["age"], what)) for each in (ours, theirs)]
        np.testing.assert_allclose(*pair, rtol=1e-4)
    income = np.sort(frame.select("income").toPandas().income.to_numpy())
    boundaries = np.asarray(ours["income"].bin_boundaries, "float32")
    least, most = (np.searchsorted(income, boundaries, side) / ROWS for side in ("left", "right"))
    wanted = np.arange(1, 20) / 20
    assert (np.maximum(least - wanted, wanted - most) <= ours["income"].epsilon / 10).all()


def main() -> None:
    repetitions = max(1, int(sys.argv[1]) if len(sys.argv) > 1 else 3)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = session("adapt")
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    spark.conf.set("spark.sql.execution.arrow.pyspark.enabled", "true")  # the faster toPandas
    frame = rows(spark)
    by_spark(frame.limit(1000), layers())  # everything is started and warm, as in a session
    times: dict[str, list[float]] = {}
    state: dict[str, dict] = {}
    columns = list(layers())
    print(f"\nadapt on {ROWS:,} rows, medians of {repetitions}\n")
    for columns_of in (columns, *([column] for column in columns)):
        title = ", ".join(columns_of) if len(columns_of) == 1 else "all"
        for name, learn in (("gridflow", by_spark), ("Keras, toPandas", by_keras)):
            for _ in range(repetitions if title == "all" else 1):
                found = {column: layers()[column] for column in columns_of}
                begin = time.monotonic()
                learn(frame, found)
                times.setdefault(f"{title}: {name}", []).append(time.monotonic() - begin)
                if title == "all":
                    state[name] = found
        ours, theirs = (
            statistics.median(times[f"{title}: {name}"]) for name in ("gridflow", "Keras, toPandas")
        )
        mark = ("reached" if theirs / ours >= GOAL else "MISSED") if title == "all" else ""
        goal = f"goal {GOAL}x  {mark}" if mark else ""
        print(
            f"{title:<10}{ours:>8.2f} s{theirs:>10.2f} s{theirs / ours:>8.1f}x  {goal}", flush=True
        )
        if title == "all":
            check(state["gridflow"], state["Keras, toPandas"], frame)
    spark.stop()


if __name__ == "__main__":
    main()
