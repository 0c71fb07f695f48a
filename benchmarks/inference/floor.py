"""Where the CPU time of a predicted row goes: ``benchmarks/inference/floor.py [times]``.

The model and the cached DataFrame of ``bench.py``, and one part of the way after the other: reading
cached rows, making bytes of their arrays, bringing those to Python, predicting. What a column
expression can reach at most follows: its model computes, and its rows have to be brought.

A query takes some time whatever it reads. So each part is measured on few rows and on many, and
what a row more costs is told apart from that.
"""

from __future__ import annotations

import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "feed"))

from measure import cached_frame, idle_rate, measured, session

MODEL = """
import keras, sys
x = keras.Input((784,))
y = keras.layers.Dense(10, "softmax")(keras.layers.Dense(128, "relu")(x))
keras.Model(x, y).save(sys.argv[1])
"""
ROWS = 60_000
#: How often they are read by the query that is compared with one that reads them once.
TIMES = 6
GOAL = 0.8


def of_numpy(model: str, repetitions: int) -> float:
    """Return the CPU-seconds that ``model.predict`` takes for a row."""
    words = [sys.executable, HERE / "numpy_predict.py", str(repetitions), model]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("RESULT "))
    found = json.loads(line.removeprefix("RESULT "))["numpy"]
    return statistics.median(each["cpu"] for each in found["samples"]["all"]) / found["rows"]


def parts(spark, model: str) -> dict:
    """Return functions of the rows, each with one part of the way more than the one before."""
    import pyarrow as pa
    from pyspark.sql.functions import arrow_udf

    import gridflow
    from gridflow._feed.ingest import packing

    def nothing(batches):
        for batch in batches:
            yield pa.nulls(len(batch), pa.float32())

    nothing.__annotations__ = {"batches": Iterator[pa.Array], "return": Iterator[pa.Array]}
    empty = arrow_udf(nothing, "float")
    predict = gridflow.predict_udf(model, batch_size=1024)
    assert packing.can_pack(spark)

    def whole(rows):
        return gridflow.predict(rows, model, columns=["x"])

    return {
        "reading the cached rows": lambda rows: rows,
        "the same, and their arrays as bytes": lambda rows: rows.select(packing.pack("x")),
        "transport: arrow_udf of those, doing nothing": lambda rows: rows.select(
            empty(packing.pack("x"))
        ),
        "predict_udf": lambda rows: rows.select(predict("x")),
        "arrow_udf of arrays, doing nothing": lambda rows: rows.select(empty("x")),
        "gridflow.predict, the prediction alone": lambda rows: whole(rows).select("prediction"),
        "gridflow.predict, all columns kept": whole,
    }


def run(frame) -> None:
    """Compute all rows."""
    frame.write.format("noop").mode("overwrite").save()


def of_query(frame, repetitions: int) -> float:
    """Return the CPU-seconds of a query, warm."""
    run(frame)
    idle = idle_rate()
    return statistics.median(measured(lambda: run(frame), idle).cpu for _ in range(repetitions))


def main() -> None:
    repetitions = max(1, int(sys.argv[1]) if len(sys.argv) > 1 else 5)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/model.keras"
        subprocess.run([sys.executable, "-c", MODEL, path], check=True, capture_output=True)
        model = of_numpy(path, repetitions)
        spark = session("floor")
        spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "10000")  # Spark's default
        once = cached_frame(spark, "784 floats", ROWS).select("x")
        often = functools.reduce(type(once).union, [once] * TIMES)
        print(f"\nCPU time, medians of {repetitions}\n")
        print(f"{'':<46}{'a row, µs':>12}{'a query, s':>12}")
        print(f"{'model.predict on numpy':<46}{1e6 * model:>12.2f}", flush=True)
        found, every = {}, parts(spark, path)
        for part in every.values():  # until Java has compiled what they have in common
            run(part(often))
        for title, part in every.items():
            few, many = (of_query(part(rows), repetitions) for rows in (once, often))
            found[title] = (many - few) / (ROWS * (TIMES - 1))
            rest = few - found[title] * ROWS
            print(f"{title:<46}{1e6 * found[title]:>12.2f}{rest:>12.2f}", flush=True)
        spark.stop()
    *_, transport, predicted, _, _, whole = found.values()
    print(
        f"\ntransport alone costs {1e6 * transport:.1f} µs a row, the model {1e6 * model:.1f}: a "
        f"column expression reaches at most {model / (model + transport):.2f} of the model alone, "
        f"predict_udf reaches {model / predicted:.2f}; gridflow.predict {model / whole:.2f} of it "
        f"(goal {GOAL})"
    )


if __name__ == "__main__":
    main()
