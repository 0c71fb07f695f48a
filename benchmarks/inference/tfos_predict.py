"""TensorFlowOnSpark's TFModel: run by the Python of an environment of its own."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "feed"))

from measure import cached_frame, idle_rate, measured, session

BATCH = 1024
ROWS = 10_000


def main(repetitions: int, model: str) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from tensorflowonspark.pipeline import TFModel

    spark = session("TensorFlowOnSpark inference")
    frame = cached_frame(spark, "784 floats", ROWS).select("x")
    predict = (
        TFModel(argparse.Namespace())
        .setExportDir(model)
        .setSignatureDefKey("serving_default")
        .setTagSet("serve")
        .setInputMapping({"x": "x"})
        .setOutputMapping({"output_0": "p"})
        .setBatchSize(BATCH)
    )

    def work():
        predict.transform(frame).write.format("noop").mode("overwrite").save()

    work()
    idle = idle_rate()
    samples = [vars(measured(work, idle)) for _ in range(repetitions)]
    print("RESULT " + json.dumps({"tfos": {"rows": ROWS, "samples": {"all": samples}}}))
    spark.stop()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
