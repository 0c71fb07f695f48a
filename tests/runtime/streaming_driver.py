"""A driver that trains on a stream of five files, each a micro-batch."""

import json
import os
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

from gridflow import SparkLauncher, TensorflowDistributor
from gridflow.coordinator.pushing import StreamDesk


def train(ctx):
    """Train on what comes."""
    import keras

    model = keras.Sequential(
        [keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")]
    )
    model.compile(keras.optimizers.Adam(0.01), "mse")
    model.fit(ctx.stream(8, features="x", label="y"), verbose=0, callbacks=ctx.callbacks())
    return model.get_weights()[0].tolist(), int(model.optimizer.iterations.numpy())


def main():
    """Train to the end, or stop where the environment says."""
    folder = Path(sys.argv[1])
    folder.mkdir(exist_ok=True)
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "1")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    files = folder / "files"
    if not files.exists():
        for number in range(5):
            rows = spark.range(number * 20, number * 20 + 20, 1, 1)
            frame = rows.selectExpr("id * 0.01d x", "id * 0.03d y")
            frame.write.mode("append").parquet(str(files))
            time.sleep(0.01)
    stop_at = int(os.environ.get("STOP_AT", "-1"))
    original = StreamDesk.end_section

    def end_section(self, label, give_up):
        done = original(self, label, give_up)
        if label.endswith(f"/{stop_at}"):
            (folder / "stopped").touch()
            time.sleep(300)
        return done

    StreamDesk.end_section = end_section
    distributor = TensorflowDistributor(
        1,
        "none",
        launcher=SparkLauncher(spark),
        checkpoint_dir=str(folder / "checkpoints"),
        logs="none",
        progress=False,
    )
    stream = spark.readStream.schema("x double, y double").option("maxFilesPerTrigger", 1)
    with distributor.start(train) as job:
        taken = job.feed(
            stream.parquet(str(files)),
            checkpoint_location=str(folder / "noted"),
            trigger={"availableNow": True},
        )
    weights, iterations = job.result().value
    spark.stop()
    print(json.dumps({"weights": weights, "iterations": iterations, "taken": taken}))


if __name__ == "__main__":
    main()
