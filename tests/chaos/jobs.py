"""The jobs to which something happens: each is started, and says how it has ended."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import cloudpickle
import numpy as np
import pyspark.cloudpickle

from gridflow import (
    GridflowError,
    LocalLauncher,
    Restarts,
    Role,
    SparkLauncher,
    TensorflowDistributor,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    from suite.hosts import Hosts

ROWS, BATCH, EPOCHS = 400, 10, 3
#: Epochs of jobs whose workers come and go: time for a new process to come.
LONG = 9
#: How far weights may be from those of one process.
CLOSE: Final = 1e-5
OPTIONS: Final[dict[str, Any]] = {
    "logs": "none",
    "progress": False,
    "start_timeout": 90,
    "seed": 1,
    "max_restarts": 2,
}


class Job(Protocol):
    """A job that was started."""

    def end(self, timeout: float) -> str:
        """Return how it has ended: right, an error, or "WRONG: …".

        Raises `TimeoutError`: It hasn't.
        """

    def cancel(self) -> None: ...


# What their functions do --------------------------------------------------------------------------


def build(keras: Any) -> Any:
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "relu")])
    model.add(keras.layers.Dense(1))
    model.compile(keras.optimizers.Adam(0.01), "mse")
    return model


def slowly(keras: Any) -> Any:
    """Return a callback that leaves time for something to go wrong."""
    import time

    return keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: time.sleep(0.05))


def train(ctx: Any) -> Any:
    import keras

    with ctx.strategy.scope():
        model = build(keras)
    rows = ctx.dataset("train", batch_size=BATCH, features=["x"], label="y", shuffle=True)
    model.fit(rows, epochs=EPOCHS, verbose=0, callbacks=[*ctx.callbacks(), slowly(keras)])
    return int(model.optimizer.iterations.numpy())


def train_on_servers(ctx: Any) -> Any:
    import keras

    with ctx.strategy.scope():
        model = build(keras)
    rows = ctx.dataset("train", batch_size=BATCH, features=["x"], label="y")
    ctx.fit(model, rows, epochs=EPOCHS * 4, callbacks=ctx.callbacks())
    return int(model.optimizer.iterations.numpy())


def train_on_a_stream(ctx: Any) -> Any:
    import keras

    with ctx.strategy.scope():
        model = build(keras)
    rows = ctx.stream(BATCH, features=["x"], label="y")
    callbacks = [*ctx.callbacks(), slowly(keras)]
    model.fit(rows, epochs=100, steps_per_epoch=20, verbose=0, callbacks=callbacks)
    return int(model.optimizer.iterations.numpy())


def train_among_members(ctx: Any, log: str) -> Any:
    """Train in the order of the rows, and note who takes part in each step."""
    import time
    from pathlib import Path

    import keras

    class Log(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            step = int(self.model.optimizer.iterations.numpy())
            with Path(log).open("a") as file:
                file.write(f"{step} {' '.join(map(str, ctx.members))}\n")
            time.sleep(0.05)

    with ctx.strategy.scope():
        model = build(keras)
    initial = model.get_weights()
    rows = ctx.dataset("train", batch_size=BATCH, features=["x"], label="y", shuffle=False)
    model.fit(rows, epochs=LONG, verbose=0, callbacks=[*ctx.callbacks(), Log()])
    return int(model.optimizer.iterations.numpy()), initial, model.get_weights()


def loop_among_members(ctx: Any, log: str) -> Any:
    """Do the same in a loop of one's own."""
    import time
    from pathlib import Path

    import tensorflow as tf

    import keras

    with ctx.strategy.scope():
        model = build(keras)
    initial = model.get_weights()
    rows = ctx.dataset("train", batch_size=BATCH, features=["x"], label="y", shuffle=False)
    loop = ctx.loop(model, rows, epoch=0, step=0)

    def of_rank(x: Any, y: Any) -> None:
        count = tf.cast(tf.shape(y)[0], tf.float32)
        total = tf.distribute.get_replica_context().all_reduce("SUM", count)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((model(x)[:, 0] - y) ** 2) / total
        weights = model.trainable_variables
        gradients = tape.gradient(loss, weights)
        model.optimizer.apply_gradients(zip(gradients, weights, strict=True))

    step = tf.function(of_rank)

    def steps() -> None:
        while loop.epoch < LONG:
            for x, y in loop.batches(rows):
                ctx.strategy.run(step, args=(x, y))
                loop.step += 1
                with Path(log).open("a") as file:
                    file.write(f"{loop.step} {' '.join(map(str, ctx.members))}\n")
                time.sleep(0.05)
            loop.epoch += 1

    loop.run(steps)
    return loop.step, initial, model.get_weights()


def read_batches(ctx: Any) -> Any:
    rows = ctx.dataset("train", batch_size=BATCH, features=["x"], label="y", shuffle=False)
    return [(np.asarray(x), np.asarray(y)) for x, y in rows]


def feed_an_old_program(args: Any, ctx: Any) -> None:
    import time

    feed = ctx.get_data_feed(train_mode=True)
    while not feed.should_stop():
        feed.next_batch(BATCH)
        time.sleep(0.05)


# Those on this machine and on Spark ---------------------------------------------------------------


class Trained:
    """A job with a handle.

    `steps`: What its function returns if all is right; None: that isn't known.
    """

    def __init__(
        self, distributor: Any, function: Any, steps: int | None, *args: Any, **options: Any
    ) -> None:
        self.steps = steps
        self.handle = distributor.start(function, *args, **options)

    def end(self, timeout: float) -> str:
        try:
            result = self.handle.result(timeout=timeout)
        except GridflowError as error:
            return end_of(error)
        wrong = result.ledger.check() or self.problems(result)
        if wrong:
            return f"WRONG: {wrong[0]}"
        again = len(result.attempts) - 1
        lost = sum(len(each.replaced) for each in result.attempts)
        notes = [f"after {again} restarts"] if again else []
        notes += [f"{lost} replaced"] if lost else []
        return ", ".join(["right", *notes])

    def problems(self, result: Any) -> list[str]:
        """Return what is wrong with a result, apart from its ledger."""
        if self.steps is not None and result.value != self.steps:
            return [f"{result.value} steps instead of {self.steps}"]
        return []

    def cancel(self) -> None:
        self.handle.cancel()


def end_of(error: GridflowError) -> str:
    is_named = getattr(error, "failures", ())
    return f"{type(error).__name__} of a task" if is_named else f"WRONG: {error!r}"


def steps_of(workers: int) -> int:
    return EPOCHS * -(-ROWS // (workers * BATCH))


def numbers(rows: int = ROWS) -> dict[str, np.ndarray]:
    x = np.random.default_rng(0).normal(size=(rows, 4)).astype(np.float32)
    return {"x": x, "y": x[:, 0] ** 2}


def workers_here(
    folder: str, workers: int | tuple[int, int], **options: Any
) -> TensorflowDistributor:
    return TensorflowDistributor(
        workers,
        "multi_worker_mirrored",
        launcher=LocalLauncher(),
        checkpoint_every=5,
        job_dir=folder,
        **OPTIONS,
        **options,
    )


def pulled(folder: str, workers: int, **options: Any) -> Job:
    distributor = workers_here(folder, workers, **options)
    return Trained(distributor, train, steps_of(workers), data={"train": numbers()})


@functools.cache
def parts(workers: int) -> list[Any]:
    """Return the batches of an epoch, by rank."""
    with tempfile.TemporaryDirectory() as folder:
        distributor = workers_here(folder, workers)
        return list(distributor.run(read_batches, data={"train": numbers()}).values)


class Elastic(Trained):
    """A job whose workers come and go.

    If the group never started again, its model must be that of one process, trained on the rows of
    those that took part in each step.
    """

    def __init__(
        self,
        folder: str,
        workers: int,
        backend: str = "tensorflow",
        function: Callable[..., Any] = train_among_members,
    ) -> None:
        self._batches, self._log = parts(workers), Path(folder, "members")
        super().__init__(
            workers_here(folder, (1, workers), backend=backend),
            function,
            steps_of(workers) // EPOCHS * LONG,
            str(self._log),
            data={"train": numbers()},
        )

    def problems(self, result: Any) -> list[str]:
        steps, initial, weights = result.value
        if steps != self.steps:
            return [f"{steps} steps instead of {self.steps}"]
        if len(result.attempts) > 1:
            return []
        # A step that only a rank has finished that was lost then is made again by the others.
        said = [tuple(map(int, line.split())) for line in self._log.read_text().splitlines()]
        expected = self._by_one_process(initial, {step: ranks for step, *ranks in said})
        pairs = zip(weights, expected, strict=True)
        worst = max(np.abs(mine - theirs).max() for mine, theirs in pairs)
        return [f"weights differ by {worst:.2g}"] if worst > CLOSE else []

    def _by_one_process(
        self, initial: list[np.ndarray], members: dict[int, list[int]]
    ) -> list[np.ndarray]:
        import keras

        model = build(keras)
        model.set_weights(initial)
        for step in sorted(members):
            place = (step - 1) % len(self._batches[0])
            x, y = zip(*(self._batches[rank][place] for rank in members[step]), strict=True)
            model.train_on_batch(np.concatenate(x), np.concatenate(y))
        return model.get_weights()


def on_servers(folder: str, workers: int) -> Job:
    distributor = TensorflowDistributor(
        roles=[Role("ps", 1), Role("worker", workers)],
        launcher=LocalLauncher(),
        checkpoint_every=10,
        job_dir=folder,
        **OPTIONS,
    )
    return Trained(distributor, train_on_servers, None, data={"train": numbers()})


class Pushed(Trained):
    """A job whose rows come while it runs."""

    def __init__(self, folder: str, workers: int) -> None:
        super().__init__(workers_here(folder, workers), train_on_a_stream, None)
        self._error: BaseException | None = None
        self._feeder = threading.Thread(target=self._feed)
        self._feeder.start()

    def _feed(self) -> None:
        try:
            with self.handle as job:
                for _ in range(8):
                    job.feed(numbers(100))
                    time.sleep(0.3)
        except BaseException as error:
            self._error = error

    def end(self, timeout: float) -> str:
        self._feeder.join(timeout)
        if self._feeder.is_alive():
            raise TimeoutError
        found = super().end(timeout)
        if self._error is None:
            return found
        if found.startswith("right") or not isinstance(self._error, GridflowError):
            return f"WRONG: {self._error!r}"
        # It has cancelled the job, or raises what the job has failed with.
        return f"{type(self._error).__name__} where rows are fed" if "Cancelled" in found else found


@functools.cache
def session() -> SparkSession:
    """Return a session on a cluster of this run."""
    from gridflow.testing.cluster import StandaloneCluster, wait_for_slots

    cluster = StandaloneCluster(settings={"spark.deploy.maxExecutorRetries": "-1"})
    _kept.enter_context(cluster)
    spark = cluster.session(
        spark_cores_max="2", spark_executor_cores="1", spark_executor_memory="800m"
    )
    _kept.callback(spark.stop)
    spark.sparkContext.setLogLevel("OFF")
    spark.sparkContext.environment |= {name: os.environ[name] for name in ("GRIDFLOW_CHAOS",)}
    wait_for_slots(spark, 2)
    return spark


_kept = contextlib.ExitStack()
#: Ends the cluster, if there is one.
close: Final = _kept.close


def on_spark(folder: str, workers: int) -> Job:
    del workers  # as many as the cluster has cores
    known = numbers()
    rows = [(x.tolist(), float(y)) for x, y in zip(known["x"], known["y"], strict=True)]
    frame = session().createDataFrame(rows, "x array<float>, y float")
    distributor = TensorflowDistributor(
        2,
        "multi_worker_mirrored",
        launcher=SparkLauncher(session()),
        checkpoint_every=5,
        restarts=Restarts(max_replacements=3),
        job_dir=folder,
        **OPTIONS,
    )
    return Trained(distributor, train, steps_of(2), data={"train": frame})


class OldProgram:
    """A program for TensorFlowOnSpark, fed with an RDD."""

    def __init__(self, folder: str, workers: int) -> None:
        from gridflow.compat.tfos import TFCluster

        del folder, workers
        spark = session().sparkContext
        mode = TFCluster.InputMode.SPARK
        self._cluster = TFCluster.run(spark, feed_an_old_program, {}, 2, input_mode=mode)
        self._rows = spark.parallelize(range(ROWS), 4)
        self._end = ""
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        try:
            try:
                self._cluster.train(self._rows, EPOCHS, feed_timeout=60)
            finally:
                self._cluster.shutdown()
            self._end = "right"
        except GridflowError as error:
            self._end = end_of(error)
        except (PySparkException, Py4JError) as error:
            self._end = "an error of Spark's" if "gridflow" in str(error) else f"WRONG: {error!r}"
        except BaseException as error:
            self._end = f"WRONG: {error!r}"

    def end(self, timeout: float) -> str:
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise TimeoutError
        return self._end

    def cancel(self) -> None:
        self._cluster.cancel()


# Two hosts ----------------------------------------------------------------------------------------


@contextlib.contextmanager
def hosts() -> Iterator[Hosts]:
    """Make network namespaces for a driver and two others."""
    from suite.hosts import Hosts

    with contextlib.ExitStack() as stack:
        yield Hosts(stack)


class Apart:
    """A job whose two ranks are on hosts of their own; its driver, too."""

    def __init__(self, folder: str, workers: int) -> None:
        del workers
        self._stack = contextlib.ExitStack()
        self.hosts = self._stack.enter_context(hosts())
        words = ["ip", "netns", "exec", self.hosts.driver, sys.executable, "-m", "chaos.jobs"]
        self._process = subprocess.Popen(
            [*words, str(self.hosts.python(Path(folder))), folder],
            env={**os.environ, "PYTHONPATH": ":".join(filter(None, sys.path))},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def end(self, timeout: float) -> str:
        try:
            said, _ = self._process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            raise TimeoutError from None
        self._stack.close()
        found = [line for line in said.splitlines() if line.startswith("ENDED ")]
        return json.loads(found[0].removeprefix("ENDED ")) if found else f"WRONG: {said[-3000:]}"

    def cancel(self) -> None:
        self._process.kill()
        self._process.wait()
        self._stack.close()


def main(python: str, folder: str) -> None:
    """Be the driver of a job on two hosts."""
    from gridflow import LaunchOptions, Network

    sys.executable = python
    job = pulled(
        str(Path(folder, "job")),
        2,
        network=Network(interface="cluster"),
        launch_options=LaunchOptions(warm_seconds=0),
    )
    print("ENDED", json.dumps(job.end(400)), flush=True)


#: By name: what starts a job in a folder, with so many workers.
KINDS: Final[dict[str, Callable[[str, int], Job]]] = {
    "pulled": pulled,
    "replaced": functools.partial(pulled, restarts=Restarts(max_replacements=3)),
    "elastic": Elastic,
    "elastic on torch": functools.partial(Elastic, backend="torch"),
    "elastic loop": functools.partial(Elastic, function=loop_among_members),
    "parameter servers": on_servers,
    "pushed": Pushed,
    "on Spark": on_spark,
    "old program": OldProgram,
    "two hosts": Apart,
}

# Executors can't import this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
pyspark.cloudpickle.register_pickle_by_value(sys.modules[__name__])

if __name__ == "__main__":
    main(*sys.argv[1:])
