"""Train on parameter servers from a DataFrame, on a Spark cluster of its own; write what came out.

Run by test_servers_on_spark.py: four slots are more than the cluster that the tests share has.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession

from conformance import asynchronous
from gridflow import Role, SparkLauncher, TensorflowDistributor


def train(ctx):
    """Train by ctx.fit, and tell of it."""
    import keras
    from gridflow import trainable_variables

    with ctx.strategy.scope():
        model = asynchronous.build(keras)
    columns = {"batch_size": asynchronous.BATCH, "features": "x", "label": "y"}
    history = ctx.fit(model, "rows", shuffle=True, epochs=asynchronous.EPOCHS, **columns)
    return {
        "history": history.history,
        "steps": int(model.optimizer.iterations.numpy()),
        "devices": [variable.value.device for variable in trainable_variables(model)],
        "roles": {role: len(hosts) for role, hosts in ctx.cluster_spec.addresses.items()},
        "evaluated": ctx.evaluate(model, "rows", **columns),
    }


def main(path):
    """Write the findings as JSON."""
    builder = SparkSession.builder.master("local-cluster[2,2,1024]").appName("servers")
    spark = builder.config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    rows = asynchronous.rows()["rows"]
    table = [(x.tolist(), float(y)) for x, y in zip(rows["x"], rows["y"], strict=True)]
    frame = spark.createDataFrame(table, "x array<float>, y float")
    distributor = TensorflowDistributor(
        roles=[Role("chief"), Role("ps"), Role("worker", 2)],
        strategy="parameter_server",
        launcher=SparkLauncher(spark),
        logs="none",
        progress=False,
    )
    result = distributor.run(train, data={"rows": frame})
    counts = {f"{name} {rank}": count.rows for (name, rank), count in result.ledger.counts.items()}
    spark.stop()

    import keras

    _, synchronous = asynchronous.plain_results(keras).values()
    found = {"synchronous": synchronous.losses[0], "rows": counts, "reported": result.history}
    with open(path, "w", encoding="utf-8") as file:
        json.dump({**result.value, **found}, file)


if __name__ == "__main__":
    main(sys.argv[1])
