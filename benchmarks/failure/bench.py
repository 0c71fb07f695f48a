"""How long a failure takes to be told, and to be mended: ``benchmarks/failure/bench.py [TIMES]``.

Two workers train on Spark under MultiWorkerMirroredStrategy; in the middle of an epoch something
happens to one of them. Printed, as medians: seconds from there to the typed error, and with
``max_restarts=1`` to the first step of the restarted group (which imports TensorFlow once more).
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

from gridflow import SparkLauncher, TensorflowDistributor
from gridflow.errors import GridflowError
from gridflow.testing.cluster import StandaloneCluster, wait_for_slots

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
            os.kill(os.getppid(), signal.SIGKILL)
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


def seconds(spark, deed, victim, restarts):
    """Return the seconds from the deed to the error, or to the first step of the next group."""
    with tempfile.TemporaryDirectory() as moments:
        distributor = TensorflowDistributor(
            2, launcher=SparkLauncher(spark), logs="none", progress=False, max_restarts=restarts
        )
        try:
            distributor.run(train, deed, victim, moments)
        except GridflowError:
            ended = time.time()
        else:
            ended = float(Path(moments, "again").read_text())
        return ended - float(Path(moments, "deed").read_text())


def main():
    """Measure each deed of a worker and of the chief."""
    repetitions = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    rows = []
    with StandaloneCluster(workers=2, cores=1, memory="2g") as cluster:
        spark = cluster.session()
        spark.sparkContext.setLogLevel("OFF")
        wait_for_slots(spark, 2)
        for deed in DEEDS:
            for victim, name in ((1, "worker"), (0, "chief")):
                runs = [seconds(spark, deed, victim, 0) for _ in range(repetitions)]
                rows.append((f"{deed}, {name}: to the error", statistics.median(runs)))
                print(f"{rows[-1][0]:<48}{rows[-1][1]:>6.1f}", flush=True)
        for victim, name in ((1, "worker"), (0, "chief")):
            runs = [seconds(spark, "SIGKILL", victim, 1) for _ in range(repetitions)]
            rows.append((f"SIGKILL, {name}: to training again", statistics.median(runs)))
        spark.stop()
    print(f"\nseconds, medians of {repetitions}; goal: 20 to the error")
    for name, took in rows:
        print(f"{name:<48}{took:>6.1f}")


if __name__ == "__main__":
    main()
