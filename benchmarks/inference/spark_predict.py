"""gridflow.predict_udf and pyspark's predict_batch_udf, in turn in one application."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "feed")]

from measure import cached_frame, idle_rate, measured, session

BATCH = 1024
#: pyspark's own takes about ten times as long for a row.
ROWS = {"transport": 120_000, "gridflow": 120_000, "predict_batch_udf": 20_000}


def functions(model: str) -> dict:
    import pyarrow as pa
    from pyspark.ml.functions import predict_batch_udf
    from pyspark.sql.functions import arrow_udf
    from pyspark.sql.types import ArrayType, FloatType

    import gridflow

    def make():
        import keras

        loaded = keras.saving.load_model(model)
        return lambda rows: loaded.predict(rows, batch_size=BATCH, verbose=0)

    def nothing(batches):
        for batch in batches:
            yield pa.nulls(len(batch), pa.float32())

    nothing.__annotations__ = {"batches": Iterator[pa.Array], "return": Iterator[pa.Array]}
    return {
        "transport": arrow_udf(nothing, "float"),
        "gridflow": gridflow.predict_udf(model, batch_size=BATCH),
        "predict_batch_udf": predict_batch_udf(
            make,
            return_type=ArrayType(FloatType()),
            batch_size=BATCH,
            input_tensor_shapes=[[784]],
        ),
    }


def main(repetitions: int, model: str) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = session("inference")
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "10000")  # Spark's default
    results = {}
    for name, predict in functions(model).items():
        frame = cached_frame(spark, "784 floats", ROWS[name]).select("x")
        predicted = frame.select(predict("x").alias("p"))

        def work(predicted=predicted):
            predicted.write.format("noop").mode("overwrite").save()

        work()
        idle = idle_rate()
        samples = [vars(measured(work, idle)) for _ in range(repetitions)]
        results[name] = {"rows": ROWS[name], "samples": {"all": samples}}
    spark.stop()
    print("RESULT " + json.dumps(results))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
