"""Spark's streams pushed into a job: what Spark has noted, the model's checkpoint covers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.java_gateway import ensure_callback_server_started

from gridflow import InvalidArgument, SparkLauncher, TensorflowDistributor
from suite import kafka
from suite.waiting import LONGEST, wait_for

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]

QUIET = {"logs": "none", "progress": False}
THREES = [(0, 1, 2), (3, 4, 5)]
DRIVER = Path(__file__).with_name("streaming_driver.py")


@pytest.fixture
def with_callbacks(spark):
    """Let Spark's server for calls from the JVM be there: it stays for good."""
    ensure_callback_server_started(spark.sparkContext._gateway)


@pytest.fixture(autouse=True)
def _no_leaks(with_callbacks, no_leaks, by_value):
    """Apply to all."""


def add_up(ctx):
    """Train a model whose only weight is the sum of the rows; return it, and the rows."""
    import keras

    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    model.compile(keras.optimizers.SGD(1e-4), "mse")
    done = model.fit(ctx.stream(8, features="x", label="y"), verbose=0, callbacks=ctx.callbacks())
    return model.get_weights()[0].tolist(), int(model.optimizer.iterations.numpy()), len(done.epoch)


def test_files_and_rates_are_fed_until_they_end(spark, tmp_path):
    spark.range(0, 60, 1, 3).selectExpr("id * 1d x", "id * 2d y").write.parquet(
        str(tmp_path / "files")
    )
    files = spark.readStream.schema("x double, y double").option("maxFilesPerTrigger", 1)
    rows = files.parquet(str(tmp_path / "files"))
    distributor = TensorflowDistributor(1, "none", launcher=SparkLauncher(spark), **QUIET)
    with distributor.start(add_up) as job:
        with pytest.raises(InvalidArgument, match="checkpoint_location="):
            job.feed(rows)
        with pytest.raises(
            InvalidArgument, match="epochs=2: a streaming DataFrame can be read only once"
        ):
            job.feed(rows, epochs=2, checkpoint_location=str(tmp_path / "noted"))
        with pytest.raises(InvalidArgument, match="are only for a streaming DataFrame"):
            job.feed(spark.range(3), trigger={"availableNow": True})
        taken = job.feed(
            rows, checkpoint_location=str(tmp_path / "noted"), trigger={"availableNow": True}
        )
        assert taken == 60
        # The same again: Spark has noted all of it.
        again = job.feed(
            rows, checkpoint_location=str(tmp_path / "noted"), trigger={"availableNow": True}
        )
        assert again == 0
    _, steps, epochs = job.result().value
    assert (steps, epochs) == (9, 1)  # three of twenty rows, each its own section
    assert job.result().ledger.check() == []

    def some(ctx):
        seen = 0
        for (x,) in zip(ctx.stream(4, features="value"), strict=False):
            seen += len(x)
            if seen >= 8:
                ctx.stop_feeding()
        return seen

    rate = spark.readStream.format("rate").option("rowsPerSecond", 20).load().select("value")
    with distributor.start(some) as job:
        job.feed(rate, checkpoint_location=str(tmp_path / "rate"))
    assert job.result().value >= 8


def run(folder, **changes):
    """Run the driver to its end; return what it printed."""
    done = subprocess.run(
        [sys.executable, str(DRIVER), str(folder)],
        env={**os.environ, **changes},
        capture_output=True,
        text=True,
        check=False,
        timeout=LONGEST,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-5000:]
    return json.loads(done.stdout.splitlines()[-1])


def kill(folder, **changes):
    """Start the driver, and kill it where the changes of its environment say."""
    driver = subprocess.Popen(
        [sys.executable, str(DRIVER), str(folder)],
        env={**os.environ, **changes},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        stopped = folder / "stopped"
        wait_for(lambda: stopped.exists() or driver.poll() is not None, "the place to kill it")
        assert stopped.exists(), "the driver has ended"
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    (folder / "stopped").unlink()


@pytest.mark.parametrize(
    ("source", "kills"),
    [
        # After the checkpoint of the third micro-batch, before Spark has noted it.
        ("files", [{"STOP_AFTER": "2"}]),
        # The rows of the second one come again, and those of the fourth do.
        ("kafka", [{"STOP_WITHIN": "1"}, {"STOP_AFTER": "3"}]),
    ],
)
def test_a_driver_that_is_killed_loses_no_row_and_trains_on_none_twice(
    tmp_path, request, source, kills
):
    broker = {}
    if source == "kafka":
        broker = {"BROKER": request.getfixturevalue("kafka"), **kafka.environment()}
        broker["TOPIC"] = "whole"
    whole = run(tmp_path / "whole", **broker, PRODUCE="1")
    for stop in kills:
        kill(tmp_path / "broken", **broker, **stop)
    rest = run(tmp_path / "broken", **broker)
    assert rest["weights"] == whole["weights"]
    assert rest["iterations"] == whole["iterations"] == 15
    assert whole["taken"] == 100
    covered = 1 + int(kills[-1]["STOP_AFTER"])
    assert rest["taken"] == 100 - 20 * covered


def test_a_topic_of_kafka_is_trained_on_and_the_next_driver_takes_what_came_since(
    tmp_path, request
):
    broker = {"BROKER": request.getfixturevalue("kafka"), **kafka.environment()}
    broker["TOPIC"] = "rows"
    first = run(tmp_path, **broker, PRODUCE="1")
    # Five micro-batches of twenty rows, each of which makes steps of eight, eight and four.
    assert (first["taken"], first["iterations"]) == (100, 15)
    assert run(tmp_path, **broker, PRODUCE="1")["taken"] == 100


@pytest.mark.filterwarnings("ignore:DStream is deprecated:FutureWarning")
def test_a_dstream_is_fed_as_its_rdds_come(spark):
    from pyspark.streaming import StreamingContext

    def rows(ctx):
        return sorted(float(v) for x in ctx.stream(2, features="x") for v in x)

    context = StreamingContext(spark.sparkContext, 1)
    parts = [spark.sparkContext.parallelize([(float(n),) for n in three], 1) for three in THREES]
    distributor = TensorflowDistributor(1, "none", launcher=SparkLauncher(spark), **QUIET)
    with distributor.start(rows) as job:
        assert job.feed(context.queueStream(parts), columns=["x"]) == 0
        context.start()
        streams = job._run.streams
        wait_for(lambda: streams.rows_pushed >= 6, "six rows", seen=lambda: streams.rows_pushed)
        context.stop(stopSparkContext=False, stopGraceFully=True)
    assert job.result().value == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
