"""A driver whose executors come while a job waits, and are taken back while it trains.

``dynamic_driver.py FOLDER``: under dynamic allocation.
``dynamic_driver.py FOLDER HOW ALLOCATION``: a job alone, under ``dynamic`` or ``static``
allocation, one of whose executors is taken back with its ``worker``, or ``evicted`` by itself; or
that begins ``anew`` when there is no executor any more, or goes on ``without`` one. ``steady`` is
dynamic allocation that never wants fewer than two executors.
"""

import json
import signal
import sys
from functools import partial
from pathlib import Path

import cloudpickle
import psutil
import test_resume

from gridflow import SparkLauncher, TensorflowDistributor, errors
from gridflow._launch.spark.session import task_slots
from gridflow.testing.cluster import StandaloneCluster, wait_for_slots
from suite import waiting
from suite.waiting import patience, wait_for

WAITS_AT = 8
DYNAMIC = {
    "spark_dynamicAllocation_enabled": "true",
    "spark_dynamicAllocation_shuffleTracking_enabled": "true",
    "spark_dynamicAllocation_initialExecutors": "1",
    "spark_dynamicAllocation_maxExecutors": "4",
    "spark_dynamicAllocation_executorIdleTimeout": "1s",
    "spark_dynamicAllocation_cachedExecutorIdleTimeout": "1s",
}
ALLOCATIONS = {
    "static": {"spark_cores_max": "2"},
    "dynamic": DYNAMIC,
    "steady": {**DYNAMIC, "spark_dynamicAllocation_minExecutors": "2"},
}


def watched(folder):
    """Return what makes a callback that notes each step, and waits before one of the first life."""

    def make(ctx):
        import keras

        class Steps(keras.callbacks.Callback):
            def on_train_batch_begin(self, batch, logs=None):
                step = int(self.model.optimizer.iterations.numpy())
                with (folder / f"steps-{ctx.rank}-{ctx.generation}").open("a") as file:
                    file.write(f"{step}\n")
                if ctx.generation == 0 and step == WAITS_AT:
                    (folder / f"here-{ctx.rank}").touch()
                    wait_for((folder / "go").exists, "the word to go on")

        return Steps()

    return make


def until(holds, job=None):
    """Wait until something holds, as long as a job runs."""

    def holds_yet():
        if job is not None and job.done():
            raise AssertionError(f"the job has ended: {job.result()}")
        return holds()

    wait_for(holds_yet, "the job", seen=lambda: job and job.report)


def take_worker_back(spark, cluster, name):
    """Let the worker of an executor go, as a cloud's notice does by `decommission-worker.sh`."""
    (place,) = cluster.folder.glob(f"work-*/{spark.sparkContext.applicationId}/{name}")
    cluster.decommission(int(place.parts[-3].removeprefix("work-")))


def evict(spark, _, name):
    """Let an executor alone go, as Kubernetes does when it evicts a pod.

    Its hook before the end is Spark's `decom.sh`, which sends this signal to the pod's Java.
    """
    own = f"--executor-id {name} ", f"--app-id {spark.sparkContext.applicationId} "
    lines = {
        each: " ".join(each.info["cmdline"] or ()) for each in psutil.process_iter(["cmdline"])
    }
    (executor,) = [each for each, line in lines.items() if all(word in line for word in own)]
    executor.send_signal(signal.SIGPWR)
    return executor


def train_elsewhere(distributor, folder, data, take_back):
    """Return what became of a job one of whose executors is taken back before a step.

    Parameters
    ----------
    distributor : callable
        Makes one with further options.
    folder : Path
        For files; `go` is made when the job has heard.
    data : dict
    take_back : callable
        Begins to take an executor back; called with the name of the second rank's.
    """
    options = {**test_resume.OPTIONS, "checkpoint_every": None}
    train = test_resume.train, None, watched(folder)
    job = distributor(**options).start(*train, data=data)
    until(lambda: len(list(folder.glob("here-*"))) == 2, job)
    take_back(job._run.executors(1)[1])
    machine = job._run._machine
    until(lambda: machine._saves_to_move is not None, job)
    (folder / "go").touch()
    result = job.result()
    return {
        "weights": [weights.tolist() for weights in result.value],
        "history": result.history,
        "ledger": result.ledger.check(),
        "preemptions": result.preemptions,
        "attempts": [
            [attempt.resumed_from, attempt.failure and attempt.failure.to_dict()]
            for attempt in result.attempts
        ],
    }


def go_on_without(spark, folder):
    """Return what became of a job whose workers come and go when an executor is taken back."""
    train = test_resume.train, None, watched(folder)
    distributor = distributor_on(spark)((1, 2), **test_resume.OPTIONS)
    job = distributor.start(*train, data={"train": frame(spark)})
    until(lambda: len(list(folder.glob("here-*"))) == 2, job)
    executor = evict(spark, None, job._run.executors(1)[1])
    until(lambda: job._run._machine._members[1].leaving, job)
    executor.kill()  # as Kubernetes does after a while
    (folder / "go").touch()
    result = job.result()
    return {
        "steps": sum(1 for _ in (folder / "steps-0-0").open()),
        "sizes": [size for attempt in result.attempts for _, size in attempt.sizes],
        "replaced": [each.kind for attempt in result.attempts for each in attempt.replaced],
        "preemptions": result.preemptions,
        "ledger": result.ledger.check(),
    }


def frame(spark):
    """Return the rows in two partitions, as they lie elsewhere."""
    rows = test_resume.data()["train"]
    pairs = [(x.tolist(), float(y)) for x, y in zip(rows["x"], rows["y"], strict=True)]
    return spark.sparkContext.parallelize(pairs, 2).toDF("x array<float>, y float").cache()


def executors(spark):
    """Return the names of the executors that are there."""
    found = spark.sparkContext._jsc.sc().getExecutorIds()
    return [found.apply(i) for i in range(found.size())]


def distributor_on(spark):
    def distributor(workers=2, **options):
        # As it lies, cached or not: so each rank gets the rows that it gets elsewhere.
        launcher = SparkLauncher(spark, repartition="never")
        quiet = {"logs": "none", "progress": False, "launcher": launcher}
        return TensorflowDistributor(workers, **quiet, **options)

    return distributor


def with_dynamic_allocation(spark, cluster, folder):
    told, distributor, data = {}, distributor_on(spark), {"train": frame(spark)}
    told["plan"] = str(distributor().plan(print, data=data))
    try:
        distributor(5).plan(print, data=data)
    except errors.NotEnoughSlots as error:
        told["too many"] = str(error)
    told["executors"] = len(executors(spark))
    let_go = partial(take_worker_back, spark, cluster)
    told["job"] = train_elsewhere(distributor, folder, data, let_go)
    try:
        distributor(4, strategy="none", start_timeout=8).run(print)
    except errors.StartTimeout as error:
        told["waited"] = str(error)
    return told


def begin_anew(spark, cluster):
    """Return what a job returns that begins when the only executor has been taken back."""
    wait_for_slots(spark, 1, patience())
    take_worker_back(spark, cluster, *executors(spark))
    until(lambda: task_slots(spark) == 0)
    return distributor_on(spark)(1, strategy="none").run(lambda: "trained").value


def session(cluster, **settings):
    sizes = {"spark_executor_cores": "1", "spark_executor_memory": "600m"}
    spark = cluster.session(spark_decommission_enabled="true", **sizes, **settings)
    spark.sparkContext.setLogLevel("OFF")
    return spark


def main(folder, how=None, allocation=None):
    """Print what became of all that is tried, as JSON on the last line."""
    for module in (test_resume, waiting):
        cloudpickle.register_pickle_by_value(module)
    settings = {"spark.decommission.enabled": "true"}
    with StandaloneCluster(workers=3, cores=1, settings=settings) as cluster:
        if how == "anew":
            spark = session(cluster, spark_cores_max="1")
            told = {"anew": begin_anew(spark, cluster)}
        elif how == "without":
            spark = session(cluster, **ALLOCATIONS[allocation])
            told = go_on_without(spark, folder)
        elif how:
            spark = session(cluster, **ALLOCATIONS[allocation])
            data = {"train": frame(spark)}
            let_go = partial({"worker": take_worker_back, "evicted": evict}[how], spark, cluster)
            told = {"job": train_elsewhere(distributor_on(spark), folder, data, let_go)}
        else:
            spark = session(cluster, **DYNAMIC)
            told = with_dynamic_allocation(spark, cluster, folder)
        spark.stop()
    print(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
