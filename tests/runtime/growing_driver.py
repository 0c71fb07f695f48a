"""A driver whose job gets more workers while it trains.

``growing_driver.py FOLDER ALLOCATION``: under ``dynamic`` or ``static`` allocation, a job of one to
three workers begins on a cluster with room for one; then there is a second machine.
"""

import json
import sys
from functools import partial
from pathlib import Path

import cloudpickle
import numpy as np
from dynamic_driver import DYNAMIC, frame, until

from gridflow import Deadlines, Restarts, SparkLauncher, TensorflowDistributor
from gridflow.testing.cluster import StandaloneCluster, wait_for_slots
from suite.waiting import wait_for

BATCH, EPOCHS = 8, 6


def train(ctx, folder):
    """Train; leave the batches of this rank, and say where it is."""
    import keras

    rows = partial(ctx.dataset, "train", batch_size=BATCH, features=["x"], label="y", shuffle=False)
    mine = [(np.asarray(x), np.asarray(y)) for x, y in rows()]
    x, y = (np.stack(each) for each in zip(*mine, strict=True))
    np.savez(Path(folder, f"rows-{ctx.generation}-{ctx.rank}"), x=x, y=y)

    class Says(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            Path(folder, f"trains-{ctx.generation}").touch()
            if ctx.num_workers == 1 and ctx.epoch_counters[-1].pending[0] > 1:
                wait_for(lambda: ctx._runtime.agreement._asked, "the word that there is room")

    with ctx.strategy.scope():
        model = keras.Sequential(
            [keras.Input((4,)), keras.layers.Dense(1, "tanh", kernel_initializer="ones")]
        )
        model.compile(keras.optimizers.Adam(0.01), "mse")
    model.fit(rows(), epochs=EPOCHS, verbose=0, callbacks=[*ctx.callbacks(), Says()])
    return model.get_weights(), ctx.num_workers


def by_one_process(folder, epochs):
    """Return the weights of one process; ``epochs`` has how many each generation has trained."""
    import keras

    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(1, "tanh", kernel_initializer="ones")]
    )
    model.compile(keras.optimizers.Adam(0.01), "mse")
    for generation, count in epochs.items():
        parts = [np.load(each) for each in sorted(folder.glob(f"rows-{generation}-*.npz"))]
        for _ in range(count):
            for step in range(len(parts[0]["y"])):
                x, y = (np.concatenate([each[name][step] for each in parts]) for name in "xy")
                model.train_on_batch(x, y)
    return model.get_weights()


def main(folder, allocation):
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    folder = Path(folder)
    settings = {"dynamic": DYNAMIC, "static": {}}[allocation]
    with StandaloneCluster(workers=1, cores=1, memory="1g") as cluster:
        spark = cluster.session(spark_executor_cores="1", spark_executor_memory="800m", **settings)
        spark.sparkContext.setLogLevel("OFF")
        if allocation == "static":  # a second later Spark may have taken it back
            wait_for_slots(spark, 1)
        distributor = TensorflowDistributor(
            (1, 3),
            "multi_worker_mirrored",
            launcher=SparkLauncher(spark),
            seed=1,
            logs="none",
            progress=False,
            # Under dynamic allocation all of it is waited: for more workers than there are.
            start_timeout={"dynamic": 60, "static": 120}[allocation],
            restarts=Restarts(max_replacements=1),
            deadlines=Deadlines(run=300),
        )
        job = distributor.start(train, str(folder), data={"train": frame(spark)})
        until(lambda: any(folder.glob("trains-*")), job)
        cluster.add_worker()
        result = job.result()
        spark.stop()
    weights, _ = result.value
    *_, last = result.attempts
    begins = last.resumed_from[0]
    before = [each.generation for each in result.attempts[:-1]]
    trained = [each for each in before if (folder / f"trains-{each}").exists()]
    told = {
        "sizes": [[size for _, size in attempt.sizes] for attempt in result.attempts],
        "failures": [attempt.failure and attempt.failure.to_dict() for attempt in result.attempts],
        "workers": [value[1] for value in result.values],
        "epochs": len(result.history["loss"]),
        "ledger": result.ledger.check(),
        "resumed_from": begins,
    }
    expected = by_one_process(folder, {trained[0]: begins, last.generation: EPOCHS - begins})
    worst = max(float(abs(a - b).max()) for a, b in zip(weights, expected, strict=True))
    print(json.dumps({**told, "apart": worst}))


if __name__ == "__main__":
    main(*sys.argv[1:])
