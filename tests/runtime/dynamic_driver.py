"""A driver whose application grows while a job waits, and whose executors are taken back."""

import json
import sys
import threading
import time
from pathlib import Path

import cloudpickle
import test_resume

from gridflow import SparkLauncher, TensorflowDistributor, errors
from gridflow.launch.spark.watch import leaves
from gridflow.testing.cluster import StandaloneCluster

WAITS_AT = 8


def watched(folder):
    """Return what makes a callback that notes each step, and waits in the middle of the first life.

    It waits until one of the executors is to go, and lets the job have the time to hear of it.
    """

    def make(ctx):
        import time

        import keras

        class Steps(keras.callbacks.Callback):
            def on_train_batch_begin(self, batch, logs=None):
                step = int(self.model.optimizer.iterations.numpy())
                with (folder / f"steps-{ctx.rank}-{ctx.generation}").open("a") as file:
                    file.write(f"{step}\n")
                if ctx.generation == 0 and step >= WAITS_AT:
                    (folder / f"here-{ctx.rank}").touch()
                    while not (folder / "go").exists():
                        time.sleep(0.01)
                    time.sleep(0.5)

        return Steps()

    return make


def executors(spark):
    """Return the names of the executors that are there."""
    found = spark.sparkContext._jsc.sc().getExecutorIds()
    return {found.apply(i) for i in range(found.size())}


def take_back(spark, cluster, folder):
    """Let the worker of an executor go in the middle of the training, and let that go on."""
    while len(list(folder.glob("here-*"))) < 2:
        time.sleep(0.02)
    name = min(executors(spark))
    (place,) = cluster.folder.glob(f"work-*/{spark.sparkContext.applicationId}/{name}")
    cluster.decommission(int(place.parts[-3].removeprefix("work-")))
    while leaves(spark, name) is None:
        time.sleep(0.02)
    (folder / "go").touch()


def run(spark, cluster, folder):
    """Return what became of all that is tried."""
    told = {}

    def distributor(workers=2, **options):
        # As it lies, cached or not: so each rank gets the rows that it gets elsewhere.
        launcher = SparkLauncher(spark, repartition="never")
        quiet = {"logs": "none", "progress": False, "launcher": launcher}
        return TensorflowDistributor(workers, **quiet, **options)

    rows = test_resume.data()["train"]
    pairs = [(x.tolist(), float(y)) for x, y in zip(rows["x"], rows["y"], strict=True)]
    frame = spark.sparkContext.parallelize(pairs, 2).toDF("x array<float>, y float").cache()
    data = {"train": frame}

    told["plan"] = str(distributor().plan(print, data=data))
    try:
        distributor(5).plan(print, data=data)
    except errors.NotEnoughSlots as error:
        told["too many"] = str(error)
    told["executors"] = len(executors(spark))
    threading.Thread(target=take_back, args=(spark, cluster, folder), daemon=True).start()
    options = {**test_resume.OPTIONS, "checkpoint_every": None}
    result = distributor(**options).run(test_resume.train, None, watched(folder), data=data)
    told["job"] = {
        "weights": [weights.tolist() for weights in result.value],
        "history": result.history,
        "ledger": result.ledger.check(),
        "preemptions": result.preemptions,
        "attempts": [
            [attempt.resumed_from, attempt.failure and attempt.failure.to_dict()]
            for attempt in result.attempts
        ],
    }
    try:
        distributor(4, strategy="none", start_timeout=6).run(print)
    except errors.StartTimeout as error:
        told["waited"] = str(error)
    return told


def main():
    """Print what became of all that is tried, as JSON on the last line."""
    cloudpickle.register_pickle_by_value(test_resume)
    settings = {"spark.decommission.enabled": "true"}
    with StandaloneCluster(workers=3, cores=1, settings=settings) as cluster:
        spark = cluster.session(
            spark_decommission_enabled="true",
            spark_dynamicAllocation_enabled="true",
            spark_dynamicAllocation_shuffleTracking_enabled="true",
            spark_dynamicAllocation_initialExecutors="1",
            spark_dynamicAllocation_maxExecutors="4",
            spark_dynamicAllocation_executorIdleTimeout="1s",
            spark_dynamicAllocation_cachedExecutorIdleTimeout="1s",
            spark_executor_cores="1",
            spark_executor_memory="600m",
        )
        spark.sparkContext.setLogLevel("OFF")
        told = run(spark, cluster, Path(sys.argv[1]))
        spark.stop()
    print(json.dumps(told))


if __name__ == "__main__":
    main()
