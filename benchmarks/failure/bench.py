"""How long a failure takes to be told, and to be mended: ``bench.py [TIMES [NAMED]]``.

Two workers train on Spark under MultiWorkerMirroredStrategy; in the middle of an epoch something
happens to one of them. Printed, as medians: seconds from there to the typed error, and with
``max_restarts=1`` to the first step of the restarted group (forked: it imports nothing anew).

Then a chief trains one worker over a parameter server, and an evaluator follows. One of them is
killed: seconds until the only worker's replacement has made a step, until the replaced evaluator
evaluates, until the group that lost its parameter server trains again, or until the error.

At last three workers come and go on this machine (``num_workers=(1, 3)``): seconds from the SIGKILL
of one of them to the next step of the others, and how much longer than others the step takes in
which it is back.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import tempfile
import time
from pathlib import Path

from gridflow import LocalLauncher, Role, SparkLauncher, TensorflowDistributor
from gridflow.errors import GridflowError
from gridflow.testing.cluster import StandaloneCluster, wait_for_slots
from gridflow.testing.deaths import agent_of_this_task, kill_task

DEEDS = ("raise", "exit 3", "SIGSEGV", "SIGKILL", "SIGSTOP", "SIGKILL of the agent")


def train(ctx, deed, victim, moments):
    """Train; at the fifth step one rank does something to itself, and notes when."""
    import os
    import signal
    import time
    from pathlib import Path

    import numpy as np

    import keras

    def act():
        if deed == "raise":
            raise ValueError("enough")
        if deed == "exit 3":
            os._exit(3)
        if deed == "SIGKILL of the agent":
            os.kill(agent_of_this_task(), signal.SIGKILL)
            time.sleep(60)
        os.kill(os.getpid(), getattr(signal, deed))

    class Deed(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if ctx.generation and not batch and ctx.is_chief:
                Path(moments, "again").write_text(str(time.time()))
            if batch == 4 and ctx.rank == victim and not ctx.generation:
                Path(moments, "deed").write_text(str(time.time()))
                act()

    with ctx.strategy.scope():
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    x = np.ones((640, 8), "float32")
    model.fit(x, x[:, :1], batch_size=16, epochs=2, verbose=0, callbacks=[Deed()])


def train_over_servers(ctx, victim, moments):
    """Train until what was killed in the second epoch is at work again, and note when."""
    import time
    from pathlib import Path

    import numpy as np
    import tensorflow as tf

    import keras

    most_seconds = 60
    deed, again = Path(moments, "deed"), Path(moments, "again")
    x = np.ones((64, 8), "float32")

    with ctx.strategy.scope():
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")

    def evaluated():
        if deed.exists() and not again.exists():
            again.write_text(str(time.time()))
        yield x, x[:, :1]

    if ctx.is_evaluator:
        spec = (tf.TensorSpec((64, 8), tf.float32), tf.TensorSpec((64, 1), tf.float32))
        data = tf.data.Dataset.from_generator(evaluated, output_signature=spec)
        ctx.evaluate_checkpoints(model, data)
        return

    class Deed(keras.callbacks.Callback):
        epoch = 0
        killed = last = 0.0

        def on_epoch_begin(self, epoch, logs=None):
            self.epoch = epoch

        def on_train_batch_end(self, batch, logs=None):
            now = time.time()
            if self.epoch and not ctx.generation and not self.killed:
                self.killed = now
                kill_task(ctx, victim)
                deed.write_text(str(now))
            elif ctx.generation or (self.killed and victim == "worker:0" and now - self.last > 1):
                again.write_text(str(now))
            elif self.killed and now - self.killed > most_seconds:
                raise RuntimeError(f"{victim} was not back within {most_seconds} seconds")
            self.last = now
            self.model.stop_training = again.exists()

    def batches():
        return tf.data.Dataset.from_tensor_slices((x, x[:, :1])).repeat().batch(16)

    callbacks = [*ctx.callbacks(), Deed()]
    ctx.fit(model, batches, epochs=100_000, steps_per_epoch=40, callbacks=callbacks, verbose=0)


def train_elastic(ctx, victim):
    """Train until a rank that kills itself is back; return when steps ended, and with how many."""
    import os
    import signal
    import time

    import keras

    killed = Path(ctx.broadcast(str(ctx.work_dir)), "killed")

    class Deed(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.ends = []

        def on_train_batch_end(self, batch, logs=None):
            step = int(self.model.optimizer.iterations.numpy())
            self.ends.append((step, len(ctx.members), time.time()))
            if step == 20 and ctx.rank == victim and not killed.exists():
                killed.write_text(str(time.time()))
                os.kill(os.getpid(), signal.SIGKILL)

        def on_epoch_end(self, epoch, logs=None):
            sizes = [size for _, size, _ in self.ends]
            self.model.stop_training = 2 in sizes and sizes[-20:] == [3] * 20

    with ctx.strategy.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    deed = Deed()
    data = ctx.dataset("train", batch_size=16, features=["x"], label="x")
    model.fit(data, epochs=100_000, verbose=0, callbacks=[*ctx.callbacks(), deed])
    return deed.ends, float(killed.read_text())


def seconds_elastic(victim):
    """Return the seconds from a death to the next step, and how much longer the return takes."""
    import numpy as np

    distributor = TensorflowDistributor(
        (1, 3), launcher=LocalLauncher(), logs="none", progress=False
    )
    rows = {"x": np.ones((3 * 16 * 40, 1), "float32")}
    values = distributor.run(train_elastic, victim, data={"train": rows}).values
    lost, back = [], []
    for rank, (ends, killed) in enumerate(values):
        if rank != victim:
            steps = [(b[2] - a[2], b[2], a[1] != b[1]) for a, b in itertools.pairwise(ends)]
            changes = [step for step in steps if step[2]]
            lost.append(changes[0][1] - killed)
            back.append(changes[-1][0] - statistics.median(step[0] for step in steps))
    return max(lost), max(back)


def seconds_over_servers(spark, victim, ends, restarts):
    """Return the seconds from a task's death to what follows from it."""
    distributor = TensorflowDistributor(
        roles=[Role("chief"), Role("worker"), Role("ps"), Role("evaluator")],
        strategy="parameter_server",
        launcher=SparkLauncher(spark),
        logs="none",
        progress=False,
        max_restarts=restarts,
    )
    return measured(distributor, ends, train_over_servers, victim)


def seconds(spark, deed, victim, restarts):
    """Return the seconds from the deed to the error, or to the first step of the next group."""
    distributor = TensorflowDistributor(
        2, launcher=SparkLauncher(spark), logs="none", progress=False, max_restarts=restarts
    )
    return measured(distributor, not restarts, train, deed, victim)


def measured(distributor, ends, train_fn, *args):
    """Return the seconds from the deed to the error if it ends training, else to what was noted."""
    with tempfile.TemporaryDirectory() as moments:
        try:
            distributor.run(train_fn, *args, moments)
        except GridflowError:
            if not ends:
                raise
            ended = time.time()
        else:
            ended = float(Path(moments, "again").read_text())
        return ended - float(Path(moments, "deed").read_text())


def cases():
    """Yield what is measured: slots for each Spark worker, a name, and what measures it."""
    tasks = ((1, "worker"), (0, "chief"))
    for deed in DEEDS:
        for victim, name in tasks:
            what = f"{deed}, {name}: to the error"
            yield 1, what, lambda s, d=deed, v=victim: seconds(s, d, v, 0)
    for victim, name in tasks:
        again = f"SIGKILL, {name}: to training again"
        yield 1, again, lambda s, v=victim: seconds(s, "SIGKILL", v, 1)
    for victim, ends, restarts, what in (
        ("worker:0", False, 0, "the only worker: to its next step"),
        ("evaluator:0", False, 0, "evaluator: to evaluating again"),
        ("ps:0", True, 0, "parameter server: to the error"),
        ("ps:0", False, 1, "parameter server: to training again"),
    ):
        name = f"SIGKILL, {what}"
        yield 2, name, lambda s, a=(victim, ends, restarts): seconds_over_servers(s, *a)


def main():
    """Measure each case."""
    repetitions = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    wanted = sys.argv[2] if len(sys.argv) > 2 else ""
    chosen = [case for case in cases() if wanted in case[1]]
    print(f"seconds, medians of {repetitions} (each run behind it)")
    print("goals: 20 at most; SIGKILL of a worker or a chief to training again: 3", flush=True)
    for slots in sorted({case[0] for case in chosen}):
        with StandaloneCluster(workers=2, cores=slots, memory="2g") as cluster:
            spark = cluster.session()
            spark.sparkContext.setLogLevel("OFF")
            wait_for_slots(spark, 2 * slots)
            for _, name, run in (case for case in chosen if case[0] == slots):
                runs = [run(spark) for _ in range(repetitions)]
                each = " ".join(f"{value:.1f}" for value in runs)
                print(f"{name:<48}{statistics.median(runs):>6.1f}   ({each})", flush=True)
            spark.stop()
    for victim, name in ((1, "a worker"), (0, "the chief")):
        if wanted not in (what := f"elastic, SIGKILL of {name}"):
            continue
        runs = [seconds_elastic(victim) for _ in range(repetitions)]
        for words, values in zip(
            ("to the next step", "its return"), zip(*runs, strict=True), strict=True
        ):
            each = " ".join(f"{value:.2f}" for value in values)
            print(
                f"{f'{what}: {words}':<48}{statistics.median(values):>6.2f}   ({each})", flush=True
            )


if __name__ == "__main__":
    main()
