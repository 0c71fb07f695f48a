"""Milliseconds of a step of training: two workers beside PyTorch DDP, and beside one process.

``python benchmarks/training/steps.py [REPETITIONS] [PART OF A CASE'S NAME]``. All train the same
model on the same rows, one after the other: gridflow with Keras 3 on TensorFlow, torch and JAX,
PyTorch's DistributedDataParallel over gloo, tf_keras with MultiWorkerMirroredStrategy started by
hand, and plain Keras in one process, with the batches of both workers as one. The ratios are of
medians.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
from pathlib import Path

from models import CASES, keras_model, rows
from peers import WORKERS, timed

from gridflow import LocalLauncher, TensorflowDistributor

PEERS = Path(__file__).with_name("peers.py")
NAMES = {
    "tensorflow": "gridflow, two workers",
    "torch": "gridflow, torch backend",
    "jax": "gridflow, JAX backend",
    "ddp": "PyTorch DDP, two processes",
    "by_hand": "tf_keras by hand, two processes",
    "alone": "Keras, one process",
}
BACKENDS = ("tensorflow", "torch", "jax")


def train(ctx, case):
    """Train as one of gridflow's workers."""
    import keras

    with ctx.strategy.scope():
        model = keras_model(case, keras)
    data = ctx.dataset("rows", batch_size=CASES[case][0], features="x", label="y")
    return timed(lambda: model.fit(data, epochs=1, verbose=0), case)


def by_gridflow(case, backend):
    """Return the milliseconds of gridflow's steps with one of Keras's backends."""
    x, y = rows(case, WORKERS)
    distributor = TensorflowDistributor(
        WORKERS,
        backend=backend,
        launcher=LocalLauncher(),
        logs="none",
        progress=False,
        env={"PYTHONPATH": str(PEERS.parent)},
    )
    return distributor.run(train, case, data={"rows": {"x": x, "y": y}}).value


def by_peer(who, case):
    """Return the milliseconds of a peer's steps."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    count = 1 if who == "alone" else WORKERS
    started = [
        subprocess.Popen(
            [sys.executable, PEERS, who, case, *([str(rank), str(port)] if count > 1 else [])],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        )
        for rank in range(count)
    ]
    told = [process.communicate()[0] for process in started]
    return json.loads(told[0].splitlines()[-1])


def main():
    """Measure all, alternately."""
    repetitions = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    for case in CASES:
        if sys.argv[2:] and sys.argv[2] not in case:
            continue
        found = {who: [] for who in NAMES}
        for _ in range(repetitions):
            for who in NAMES:
                found[who] += by_gridflow(case, who) if who in BACKENDS else by_peer(who, case)
        medians = {who: statistics.median(each) for who, each in found.items()}
        print(f"{case}, {CASES[case][0]} rows a worker: ms a step, and its ratio to DDP's")
        for who, each in medians.items():
            print(f"  {NAMES[who]:34}{each:8.2f}{each / medians['ddp']:8.2f}", flush=True)


if __name__ == "__main__":
    main()
