"""gridflow.predict and predict_udf, and pyspark's predict_batch_udf, in turn in one application."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator

from cases import BATCH, CASES, Case
from measure import idle_rate, measured, session

#: pyspark's own takes about ten times as long for a row, and reads the rows once.
ROADS = ("transport", "predict", "gridflow")
FLOATS = "784 floats"


def road(name: str, case: Case, model: str):
    """Return a function of the rows, which keeps all columns."""
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
            columns = batch if isinstance(batch, tuple) else (batch,)
            yield pa.nulls(len(columns[0]), pa.float32())

    if name == "predict":
        places = {"x": list(case.columns) if len(case.columns) > 1 else case.columns[0]}
        return lambda rows: gridflow.predict(
            rows, model, columns=places, prediction="p", batch_size=BATCH
        )
    if name == "gridflow":
        function = gridflow.predict_udf(model, batch_size=BATCH)
    elif name == "transport":
        taken = pa.Array if len(case.columns) == 1 else tuple[pa.Array, ...]
        nothing.__annotations__ = {"batches": Iterator[taken], "return": Iterator[pa.Array]}
        function = arrow_udf(nothing, "float")
    else:
        function = predict_batch_udf(
            make,
            return_type=ArrayType(FloatType()),
            batch_size=BATCH,
            input_tensor_shapes=[[784]],
        )
    return lambda rows: rows.withColumn("p", function(*case.columns))


def main(repetitions: int, model: str, name: str) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    case, spark = CASES[name], session("inference")
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "10000")  # Spark's default
    results = {}
    for each in (*ROADS, *(["predict_batch_udf"] if name == FLOATS else [])):
        times = case.times if each in ROADS else 1
        predicted = road(each, case, model)(case.frame(spark, name, times))

        def work(predicted=predicted):
            predicted.write.format("noop").mode("overwrite").save()

        work()
        work()  # Java compiles what runs often
        idle = idle_rate()
        samples = [vars(measured(work, idle)) for _ in range(repetitions)]
        results[each] = {"rows": case.rows * times, "samples": {"all": samples}}
    spark.stop()
    print("RESULT " + json.dumps(results))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
