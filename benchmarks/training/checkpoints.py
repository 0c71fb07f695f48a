"""How long a step waits for its checkpoint: ``benchmarks/training/checkpoints.py [TIMES [WIDTH]]``.

A model of 16.8 million weights with Adam (201 MB of variables; with 6460 as the width 1 GB) on one
worker, a checkpoint each tenth step: by ``ctx.callbacks()``, and by Keras's ``BackupAndRestore``
and ``ModelCheckpoint``, which write while the training waits. Prints how much longer steps with a
checkpoint take than others, and the whole of the training: medians.
"""

from __future__ import annotations

import statistics
import sys

from gridflow import LocalLauncher, TensorflowDistributor

EVERY, STEPS = 10, 60


def train(ctx, way, width):
    import time

    import numpy as np

    import keras

    model = keras.Sequential(
        [
            keras.Input((width,)),
            keras.layers.Dense(width, "relu"),
            keras.layers.Dense(width, "relu"),
            keras.layers.Dense(1),
        ]
    )
    model.compile("adam", "mse")
    folder = ctx.work_dir
    savers = {
        "none": list,
        "gridflow": ctx.callbacks,
        "BackupAndRestore": lambda: [
            keras.callbacks.BackupAndRestore(folder / "backup", save_freq=EVERY)
        ],
        "ModelCheckpoint": lambda: [
            keras.callbacks.ModelCheckpoint(folder / "model.keras", save_freq=EVERY)
        ],
    }[way]()
    ends = []

    class Clock(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            ends.append(time.monotonic())

    x = np.zeros((EVERY * STEPS, width), np.float32)
    y = np.zeros((EVERY * STEPS, 1), np.float32)
    # The clock is the last callback: a step ends when its checkpoint lets it go on.
    model.fit(x, y, batch_size=EVERY, verbose=0, callbacks=[*savers, Clock()])
    return [float(each) for each in np.diff(ends)]


def main(repetitions: int, width: int) -> None:
    ways = ("none", "gridflow", "BackupAndRestore", "ModelCheckpoint")
    longer = {way: [] for way in ways}
    whole = {way: [] for way in ways}
    for _ in range(repetitions):
        for way in ways:
            distributor = TensorflowDistributor(
                1,
                "none",
                launcher=LocalLauncher(),
                checkpoint_every=EVERY if way == "gridflow" else None,
                progress=False,
            )
            steps = distributor.run(train, way, width).value
            # steps[i] ends step i + 2, as the first one's compiles; the last one ends an epoch.
            due = [t for i, t in enumerate(steps[:-1]) if (i + 2) % EVERY == 0]
            others = [t for i, t in enumerate(steps[:-1]) if (i + 2) % EVERY]
            longer[way].append(statistics.median(due) - statistics.median(others))
            whole[way].append(sum(steps[:-1]))
    print(f"\nCheckpoints of {24 * width**2 / 1e6:.0f} MB, medians of {repetitions} repetitions\n")
    print(f"{'':<20}{'a step waits, ms':>18}{STEPS - 2:>5} steps, s")
    for way in ways:
        wait, total = statistics.median(longer[way]), statistics.median(whole[way])
        print(f"{way:<20}{1000 * wait:>18.0f}{total:>14.2f}")
    ours = max(statistics.median(longer["gridflow"]), 0.001)  # less than that is noise
    for way in ways[2:]:
        print(f"{way} / gridflow: {statistics.median(longer[way]) / ours:.1f} x as long")


if __name__ == "__main__":
    main(
        int(sys.argv[1]) if len(sys.argv) > 1 else 3,
        int(sys.argv[2]) if len(sys.argv) > 2 else 2896,
    )
