"""The time to the first step, and how it grows with the data, for ``start="early"`` and without.

``python benchmarks/training/early.py [REPETITIONS]``: two workers on Spark train on 100,000 and on
10,000,000 rows of two numbers, which lie in one partition for each worker; in turn, each time in
the same state of the fork server. Prints the seconds from ``run()`` to the first step, medians, and
the ratio that more rows cost.
"""

from __future__ import annotations

import statistics
import sys
import time

from gridflow import SparkLauncher, TensorflowDistributor
from gridflow.testing.cluster import StandaloneCluster, wait_for_slots

FEW, MANY = 100_000, 10_000_000
GOAL = 1.2


def first_step(ctx, start):
    """Train until the first step is made; return its moment."""
    import time

    import keras

    class Clock(keras.callbacks.Callback):
        first = 0.0

        def on_train_batch_end(self, batch, logs=None):
            self.first = self.first or time.time()
            self.model.stop_training = True

    rows = ctx.dataset(batch_size=256, features="x", label="y", start=start)
    with ctx.strategy.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.01), "mse")
    clock = Clock()
    model.fit(rows, verbose=0, callbacks=[clock])
    return clock.first


def seconds(spark, rows, start):
    """Return the seconds from the call to the first step."""
    data = spark.range(0, rows, 1, 2).selectExpr("float(id) AS x", "float(id) * 2 AS y")
    launcher = SparkLauncher(spark, repartition="never")
    distributor = TensorflowDistributor(2, launcher=launcher, logs="none", progress=False)
    began = time.time()
    return distributor.run(first_step, start, data=data).value - began


def main():
    """Measure in turn, so that a slow moment of the machine hits all."""
    repetitions = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    measured = {(start, rows): [] for start in ("early", "complete") for rows in (FEW, MANY)}
    with StandaloneCluster(workers=2, cores=1, memory="2g") as cluster:
        spark = cluster.session()
        spark.sparkContext.setLogLevel("ERROR")
        wait_for_slots(spark, 2)
        seconds(spark, FEW, "early")  # from here on all of them are warm
        for round_ in range(repetitions):
            for start, rows in list(measured)[:: -1 if round_ % 2 else 1]:
                measured[start, rows].append(seconds(spark, rows, start))
        spark.stop()
    print(f"\nseconds from run() to the first step, two workers, medians of {repetitions}")
    print(f"{'start=':<12}{f'{FEW:,} rows':>16}{f'{MANY:,} rows':>18}{'ratio':>9}")
    for start in ("early", "complete"):
        few, many = (statistics.median(measured[start, rows]) for rows in (FEW, MANY))
        print(f"{start:<12}{few:>16.2f}{many:>18.2f}{many / few:>9.2f}")
        pairs = zip(measured[start, MANY], measured[start, FEW], strict=True)
        print(f"{'':<12}of each pair: {' '.join(f'{many / few:.2f}' for many, few in pairs)}")
    print(f"goal: the ratio of early <= {GOAL}")


if __name__ == "__main__":
    main()
