"""Count what comes through the data service on a Spark cluster of its own; write what was found.

Run by test_data_service_on_spark.py: five slots are more than the cluster that tests share has.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession

from gridflow import Role, SparkLauncher, TensorflowDistributor
from gridflow.testing.data_service import BATCH
from gridflow.testing.deaths import kill_task


def read(ctx, count):
    """Return the numbers of two passes of a rank; in the second the dispatcher dies."""
    import tensorflow as tf

    found = []
    dataset = ctx.data_service(tf.data.Dataset.range(count).batch(BATCH))
    for part in range(2):
        found.append([])
        for place, batch in enumerate(dataset):
            found[-1] += batch.numpy().tolist()
            if part and ctx.is_chief and place == 2:
                kill_task(ctx, "dispatcher:0")
    return found


def main(path):
    """Write the findings as JSON."""
    builder = SparkSession.builder.master("local-cluster[3,2,1024]").appName("data service")
    spark = builder.config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    distributor = TensorflowDistributor(
        roles=[Role("worker", 2), Role("data", 2)],
        strategy="none",
        launcher=SparkLauncher(spark),
        logs="none",
        progress=False,
    )
    plan = distributor.plan(read, 2_000)
    result = distributor.run(read, 2_000)
    spark.stop()
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"passes": list(result.values), "plan": str(plan)}, file)


if __name__ == "__main__":
    main(sys.argv[1])
