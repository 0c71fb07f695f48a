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


def space():
    """The same columns but the text, as one FeatureSpace."""
    import keras

    make = keras.utils.FeatureSpace
    return make(
        {
            "age": "float_normalized",
            "income": make.float_discretized(num_bins=20),
            "city": make.string_categorical(max_tokens=10_000),
            "shop": "integer_categorical",
        }
    )


def by_keras(frame, found) -> None:
    if not isinstance(found, dict):
        import tensorflow as tf

        table = frame.select(*found.features).toPandas()
        columns = {name: table[name].to_numpy() for name in found.features}
        columns["city"] = columns["city"].astype("S")
        found.adapt(tf.data.Dataset.from_tensor_slices(columns).batch(1024))
        return
    for column, layer in found.items():
        values = frame.select(column).toPandas()[column]
        layer.adapt(values.tolist() if values.dtype == object else values.to_numpy()[:, None])


def by_spark(frame, found) -> None:
    from gridflow.ml import adapt

    adapt(found, frame)


def check(ours: dict, theirs: dict, frame) -> None:
    """Refuse to report a time of something else than the same state."""
    import numpy as np

    for column in {"city", "shop", "words"} & set(ours):
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
    every = list(layers())
    print(f"\nadapt on {ROWS:,} rows, medians of {repetitions} (single layers: 1)\n")
    print(f"{'':<34}{'gridflow':>10}{'Keras':>12}{'ratio':>8}")
    cases = {"all layers, one by one in Keras": every, "FeatureSpace, batches of 1024": None}
    cases |= {column: [column] for column in every}
    for title, columns in cases.items():
        state, seconds = {}, {}
        is_single = columns is not None and len(columns) == 1
        for name, learn in (("gridflow", by_spark), ("Keras", by_keras)):
            times = []
            for _ in range(1 if is_single else repetitions):
                fresh = space() if columns is None else {c: layers()[c] for c in columns}
                begin = time.monotonic()
                learn(frame, fresh)
                times.append(time.monotonic() - begin)
                state[name] = fresh if columns is not None else fresh.preprocessors
            seconds[name] = statistics.median(times)
        ours, theirs = seconds["gridflow"], seconds["Keras"]
        mark = "reached" if theirs / ours >= GOAL else "MISSED"
        goal = "" if is_single else f"   goal {GOAL}x  {mark}"
        print(f"{title:<34}{ours:>8.2f} s{theirs:>10.2f} s{theirs / ours:>7.1f}x{goal}", flush=True)
        if not is_single:
            check(state["gridflow"], state["Keras"], frame)
    spark.stop()


if __name__ == "__main__":
    main()
