"""The demo's flights with fewer and fewer averages, beside synchronous training.

``python benchmarks/training/local_steps.py``: two workers on Spark train the demo's model for eight
epochs, exchanging gradients in each step, and then averaging their models every so many steps.
Prints the seconds of training and the validation's mean absolute error (minutes) after each epoch.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from gridflow import Distribution, LocalSteps, TensorflowDistributor
from gridflow.demo import flights
from gridflow.demo.training import train
from gridflow.testing.cluster import StandaloneCluster

WAYS = {
    "synchronous": None,
    "every 8": LocalSteps(sync_every=8),
    "every 32": LocalSteps(sync_every=32),
    "every 128": LocalSteps(sync_every=128),
    "every 128, DiLoCo": LocalSteps(sync_every=128, outer_learning_rate=0.7, outer_momentum=0.9),
}


def timed(ctx, *facts):
    """Return the seconds of the demo's training."""
    import time

    began = time.monotonic()
    train(ctx, *facts)
    return time.monotonic() - began


def main():
    """Train in each way."""
    with (
        tempfile.TemporaryDirectory() as folder,
        StandaloneCluster(workers=2, cores=1, memory="3g") as cluster,
    ):
        spark = cluster.session(spark_executor_memory="1500m", spark_sql_session_timeZone="UTC")
        spark.sparkContext.setLogLevel("ERROR")
        flights.load(spark, Path(folder))
        rows, validation, _ = flights.prepare(spark)
        facts = flights.facts_about(rows)
        for name, local_steps in WAYS.items():
            result = TensorflowDistributor(
                2,
                seed=1,
                logs="none",
                progress=False,
                distribution=Distribution(local_steps=local_steps),
            ).run(timed, *facts, data={"train": rows, "validation": validation})
            errors = "".join(f"{each:7.2f}" for each in result.history["val_mae"])
            print(f"{name:20}{result.value:7.1f} s {errors}", flush=True)
        spark.stop()


if __name__ == "__main__":
    main()
