"""(c) TensorFlowOnSpark's feed: run by the Python of an environment of its own."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from measure import SHAPES, cached_frame, idle_rate, measured, session


def drain(args, ctx):
    """Take all that comes, into numpy."""
    import numpy as np

    feed = ctx.get_data_feed(train_mode=True)
    while not feed.should_stop():
        batch = feed.next_batch(args["batch"])
        if batch:
            np.array([row[0] for row in batch], np.float32)
            np.array([row[1] for row in batch])


#: How a program may say the same RDD: as it is, or made by a function of its own.
AS_IT_IS = ", df.rdd"


def rows_of(frame, shape: str):
    """Return the RDD that is fed."""
    if shape.endswith(AS_IT_IS):
        return frame.rdd
    if shape == "784 floats":
        return frame.rdd.map(lambda row: (row.x, row.y))
    return frame.rdd.map(lambda row: (list(row)[:10], row[10]))


def main(repetitions: int, rows: dict[str, int] | None = None) -> None:
    """Feed each shape; where `rows` are given, so many of those shapes."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from tensorflowonspark import TFCluster

    results = {}
    wanted = rows or {shape: options["rows_slow"] for shape, options in SHAPES.items()}
    for shape, count in wanted.items():
        kind = shape.removesuffix(AS_IT_IS)
        batch = SHAPES[kind]["batch"]
        spark = session("TensorFlowOnSpark feed")
        rdd = rows_of(cached_frame(spark, kind, count), shape)
        cluster = TFCluster.run(
            spark.sparkContext, drain, {"batch": batch}, 2, 0, input_mode=TFCluster.InputMode.SPARK
        )

        def feed(cluster=cluster, rdd=rdd):
            cluster.train(rdd, num_epochs=1)

        feed()
        idle = idle_rate()
        samples = [vars(measured(feed, idle)) for _ in range(repetitions)]
        results[shape] = {"rows": count, "idle": idle, "samples": {"tfos": samples}}
        # No limit: the original's alarm outlives the cluster, and would end a later shape.
        cluster.shutdown(timeout=-1)
        spark.stop()
    print("RESULT " + json.dumps(results))


if __name__ == "__main__":
    main(int(sys.argv[1]))
