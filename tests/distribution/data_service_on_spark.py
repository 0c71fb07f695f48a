"""Count what comes through the data service on a Spark cluster of its own; write what was found.

Run by test_data_service_on_spark.py: five slots are more than the cluster that tests share has.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession

from gridflow import Role, SparkLauncher, TensorflowDistributor
from gridflow.testing.deaths import kill_task, process_of
from suite.data_service import BATCH, train
from suite.waiting import wait_for


def read(ctx, count):
    """Return the numbers of two passes of a rank; in the second the dispatcher dies."""
    import tensorflow as tf

    found, killed = [], None
    dataset = ctx.data_service(tf.data.Dataset.range(count).batch(BATCH))
    for part in range(2):
        found.append([])
        for place, batch in enumerate(dataset):
            found[-1] += batch.numpy().tolist()
            if part and ctx.is_chief and place == 2:
                killed = kill_task(ctx, "dispatcher:0")
    if ctx.is_chief:  # the job mustn't end before its driver has heard of it
        wait_for(lambda: is_replaced(ctx, "dispatcher:0", killed), "another dispatcher")
    return found


def is_replaced(ctx, task, killed):
    """Return whether a task has a process other than the killed one, which may take its time."""
    try:
        return process_of(ctx, task).pid != killed
    except ProcessLookupError:
        return False


def trained_twice(ctx):
    """Return what a fit through the service finds, and one without it."""
    served = train(lambda rows: ctx.data_service(rows, sharding="off"), ctx.callbacks())
    with ctx.alone():
        return served, train(lambda rows: rows)


def main(path):
    """Write the findings as JSON."""
    builder = SparkSession.builder.master("local-cluster[3,2,1024]").appName("data service")
    spark = builder.config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")

    def job(workers, data):
        return TensorflowDistributor(
            roles=[Role("worker", workers), Role("data", data)],
            strategy="none",
            launcher=SparkLauncher(spark),
            logs="none",
            progress=False,
        )

    plan = job(2, 2).plan(read, 2_000)
    passes = job(2, 2).run(read, 2_000).values
    served, plain = job(1, 1).run(trained_twice).value
    spark.stop()
    found = {"passes": list(passes), "plan": str(plan), "served": served, "plain": plain}
    with open(path, "w", encoding="utf-8") as file:
        json.dump(found, file)


if __name__ == "__main__":
    main(sys.argv[1])
