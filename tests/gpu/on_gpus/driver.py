"""Jobs on a Spark cluster with stand-in GPUs, one after the other; prints what their tasks saw.

A process of its own: a process has one Spark application, and this one has other settings than that
of the other tests. Two executors of three cores and two GPUs each; a task gets one by default.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import cloudpickle

from gridflow import (
    GpuOptions,
    Role,
    SparkLauncher,
    TensorflowDistributor,
    errors,
    util,
)
from gridflow.testing.cluster import StandaloneCluster, wait_for_slots

ROWS = 40


def look(ctx, folder):
    """Write down what this task sees."""
    import json
    import os
    from pathlib import Path

    seen = {"gpus": ctx.gpus, "visible": os.environ["CUDA_VISIBLE_DEVICES"]}
    Path(folder, str(ctx.task).replace(":", "-")).write_text(json.dumps(seen))


def stain(_):
    """Leave a variable behind in a Python worker that Spark will use again."""
    import os

    os.environ["CUDA_VISIBLE_DEVICES"] = "7"
    return os.getpid()


def run(launcher, num_workers=None, strategy="none", **options):
    """Run a job; return what its tasks saw, or its error."""
    data = options.pop("data", None)
    with tempfile.TemporaryDirectory() as folder:
        try:
            distributor = TensorflowDistributor(
                num_workers, strategy, launcher=launcher, logs="none", progress=False, **options
            )
            distributor.run(look, folder, data=data)
        except errors.NotEnoughSlots as error:
            return {
                "error": type(error).__name__,
                "text": str(error),
                "numbers": [error.required, error.available],
            }
        return {path.name: json.loads(path.read_text()) for path in Path(folder).iterdir()}


def main():
    """Run all jobs in one application."""
    cloudpickle.register_pickle_by_value(sys.modules["__main__"])
    seen = {}
    with StandaloneCluster(workers=2, cores=3, memory="1g", gpus=2) as cluster:
        spark = cluster.session(
            **{
                "spark.executor.memory": "600m",
                "spark.executor.resource.gpu.amount": "2",
                "spark.task.resource.gpu.amount": "1",
                "spark.gridflow.num.ps": "2",
            }
        )
        spark.sparkContext.setLogLevel("OFF")
        wait_for_slots(spark, 4)
        launcher = SparkLauncher(spark)
        seen["by default"] = run(launcher, 3)
        seen["two each"] = run(launcher, 2, gpus=2)
        rows = spark.range(ROWS).selectExpr("id AS x")
        seen["fed"] = run(launcher, 2, gpus=2, data=rows)
        seen["parts"] = run(launcher, 6, gpus=0.5, gpu_options=GpuOptions(allow_growth=True))
        sc = spark.sparkContext
        sc.parallelize(range(8), 4).map(stain).collect()
        seen["stale"] = run(launcher, 2, gpus=0)
        workers = Role("worker", 2, gpus=2)
        seen["evaluator"] = run(launcher, roles=[workers, Role("evaluator")])
        seen["ps"] = run(launcher, strategy="server", roles=[workers, Role("ps")])
        seen["three"] = run(launcher, 1, gpus=3)
        seen["five"] = run(launcher, 5, gpus=1)
        seen["slots"] = run(launcher, 7, gpus=0)
        seen["util"] = [util.num_executors(spark), util.num_param_servers(spark)]
        spark.stop()
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
