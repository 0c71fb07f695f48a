"""A driver that trains on a stream of five micro-batches: files, or rows of a topic of Kafka."""

import json
import os
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

from gridflow import SparkLauncher, TensorflowDistributor
from gridflow._features.streams.control import StreamControl


def train(ctx):
    """Train on what comes."""
    import keras

    model = keras.Sequential(
        [keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")]
    )
    model.compile(keras.optimizers.Adam(0.01), "mse")
    model.fit(ctx.stream(8, features="x", label="y"), verbose=0, callbacks=ctx.callbacks())
    return model.get_weights()[0].tolist(), int(model.optimizer.iterations.numpy())


def of_files(spark, folder):
    """Return a stream of five files, written if need be."""
    if not folder.exists():
        for number in range(5):
            rows = spark.range(number * 20, number * 20 + 20, 1, 1)
            frame = rows.selectExpr("id * 0.01d x", "id * 0.03d y")
            frame.write.mode("append").parquet(str(folder))
            time.sleep(0.01)
    stream = spark.readStream.schema("x double, y double").option("maxFilesPerTrigger", 1)
    return stream.parquet(str(folder))


def of_a_topic(spark):
    """Return a stream of a topic's rows, of which the first driver is told to write them."""
    options, topic = {"kafka.bootstrap.servers": os.environ["BROKER"]}, os.environ["TOPIC"]
    if "PRODUCE" in os.environ:
        rows = spark.range(0, 100, 1, 1).selectExpr("concat(id * 0.01d, ' ', id * 0.03d) value")
        rows.write.format("kafka").options(**options, topic=topic).save()
    options |= {"subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "20"}
    found = spark.readStream.format("kafka").options(**options).load()
    parts = "split(cast(value as string), ' ')"
    return found.selectExpr(f"double({parts}[0]) x", f"double({parts}[1]) y")


def main():
    """Train to the end, or stop where the environment says."""
    folder = Path(sys.argv[1])
    folder.mkdir(exist_ok=True)
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.jars", os.environ.get("JARS", ""))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    stream = of_a_topic(spark) if "BROKER" in os.environ else of_files(spark, folder / "files")
    original = StreamControl.end_section

    def stop(when, label):
        if label.rpartition("/")[2] == os.environ.get(when):
            (folder / "stopped").touch()
            time.sleep(300)

    def end_section(self, label, give_up):
        stop("STOP_WITHIN", label)  # its rows have come, and maybe some were trained on
        done = original(self, label, give_up)
        stop("STOP_AFTER", label)  # its checkpoint is there, and Spark hasn't noted it
        return done

    StreamControl.end_section = end_section
    distributor = TensorflowDistributor(
        1,
        "none",
        launcher=SparkLauncher(spark),
        checkpoint_dir=str(folder / "checkpoints"),
        logs="none",
        progress=False,
    )
    with distributor.start(train) as job:
        taken = job.feed(
            stream,
            checkpoint_location=str(folder / "noted"),
            trigger={"availableNow": True},
        )
    weights, iterations = job.result().value
    spark.stop()
    print(json.dumps({"weights": weights, "iterations": iterations, "taken": taken}))


if __name__ == "__main__":
    main()
