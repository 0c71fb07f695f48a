"""Memory of four workers on one host, forked by gridflow and started by hand.

``python benchmarks/training/memory.py``: at the first step of a small model, prints the private
memory (USS: what would be free again if the process ended) of each training process; of the fork
server, the guardians and the agents beside them; and the ratio.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil

from gridflow import LocalLauncher, TensorflowDistributor

WORKERS = 4
SECONDS = 300


def wait_at_first_step(folder, strategy=None):
    """Train one step of a small model, say so by a file, stay until there is another."""
    import numpy as np
    import tensorflow as tf

    from gridflow._keras.patches import registry

    registry.apply()
    import keras

    strategy = strategy or tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
        model.compile("adam", "mse")
    model.fit(np.ones((16, 8)), np.ones((16, 1)), batch_size=16, verbose=0)
    Path(folder, f"{os.getpid()}.here").touch()
    while not Path(folder, "go").exists():
        time.sleep(0.05)


def in_a_task(ctx, folder):
    """Do the same with gridflow's strategy."""
    wait_at_first_step(folder, ctx.strategy)


def measure(folder):
    """Wait for all workers; return their process ids."""
    give_up = time.monotonic() + SECONDS
    while len(found := list(Path(folder).glob("*.here"))) < WORKERS:
        if time.monotonic() > give_up:
            raise TimeoutError(f"{len(found)} of {WORKERS} workers after {SECONDS} seconds")
        time.sleep(0.1)
    return [int(path.stem) for path in found]


def private(pids):
    """Return the private memory of processes, in MiB."""
    return [psutil.Process(pid).memory_full_info().uss / (1 << 20) for pid in pids]


def by_hand():
    """Start four processes with TF_CONFIG."""
    sockets = [socket.socket() for _ in range(WORKERS)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
    for each in sockets:
        each.close()
    with tempfile.TemporaryDirectory() as folder:
        processes = [
            subprocess.Popen(
                [sys.executable, __file__, folder],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={
                    **os.environ,
                    "TF_CONFIG": json.dumps(
                        {
                            "cluster": {"worker": addresses},
                            "task": {"type": "worker", "index": index},
                        }
                    ),
                },
            )
            for index in range(WORKERS)
        ]
        sizes = private(measure(folder))
        Path(folder, "go").touch()
        for process in processes:
            process.wait()
    return sizes


def by_gridflow():
    """Run them under gridflow; return the sizes of the workers, of their server and guardians."""
    with tempfile.TemporaryDirectory() as folder:
        distributor = TensorflowDistributor(
            WORKERS, launcher=LocalLauncher(), logs="none", progress=False
        )
        thread = threading.Thread(target=distributor.run, args=(in_a_task, folder))
        thread.start()
        pids = measure(folder)
        guardians = {psutil.Process(pid).ppid() for pid in pids}
        servers = {psutil.Process(pid).ppid() for pid in guardians}
        sizes = private(pids), private(guardians), private(servers)
        Path(folder, "go").touch()
        thread.join()
    return sizes


def main():
    """Print both, and the ratio."""
    hand = by_hand()
    workers, guardians, servers = by_gridflow()
    for name, sizes in (
        ("by hand", hand),
        ("forked", workers),
        ("their guardians", guardians),
        ("fork server", servers),
    ):
        each = " ".join(f"{size:.0f}" for size in sizes)
        print(f"{name:<18}{sum(sizes):>8.0f} MiB   ({each})")
    total = sum(workers) + sum(guardians) + sum(servers)
    print(f"gridflow / by hand: {total / sum(hand):.2f} (goal: <= 0.50)")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        wait_at_first_step(sys.argv[1])
    else:
        main()
