"""Training under gridflow on Spark beside the same program started by hand.

``python benchmarks/training/bench.py [REPETITIONS]``: on two workers, in turn, prints steps per
second and the time from the start to the first step: medians, their ratios, and the ratios of the
pairs that ran one after the other, as a shared machine's speed changes within minutes.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

from program import timed_fit

from gridflow import SparkLauncher, TensorflowDistributor
from gridflow.testing.cluster import StandaloneCluster, wait_for_slots

STEPS = 400
PROGRAM = Path(__file__).with_name("program.py")


def by_hand():
    """Start two processes with TF_CONFIG; return (steps per second, seconds to the first step)."""
    ports = [free_port() for _ in range(2)]
    cluster = {"worker": [f"127.0.0.1:{port}" for port in ports]}
    began = time.time()
    processes = [
        subprocess.Popen(
            [sys.executable, str(PROGRAM), str(STEPS)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={
                **os.environ,
                "TF_CPP_MIN_LOG_LEVEL": "3",
                "TF_CONFIG": json.dumps(
                    {"cluster": cluster, "task": {"type": "worker", "index": index}}
                ),
            },
        )
        for index in range(2)
    ]
    results = [json.loads(process.communicate()[0].splitlines()[-1]) for process in processes]
    return results[0]["steps_per_second"], results[0]["first"] - began


def by_gridflow(spark):
    """Run the same function on Spark's executors."""
    distributor = TensorflowDistributor(
        2, launcher=SparkLauncher(spark), logs="none", progress=False
    )
    began = time.time()
    value = distributor.run(run_program, STEPS).value
    return value["steps_per_second"], value["first"] - began


def run_program(ctx, steps):
    """Call the program in a task."""
    return timed_fit(steps, ctx.strategy)


def free_port():
    """Return a port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def main():
    """Measure in turn, so that a slow moment of the machine hits both."""
    repetitions = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    measured = {"by hand": [], "gridflow on Spark": []}
    with StandaloneCluster(workers=2, cores=1, memory="2g") as cluster:
        spark = cluster.session()
        spark.sparkContext.setLogLevel("ERROR")
        wait_for_slots(spark, 2)
        by_gridflow(spark)  # starts Python on the executors, as any Spark job before it would
        ways = [("by hand", by_hand), ("gridflow on Spark", lambda: by_gridflow(spark))]
        for _ in range(repetitions):
            for name, run in ways:
                measured[name].append(run())
            ways.reverse()
        spark.stop()
    print(f"\n{STEPS} steps of 2 x 256 rows, two workers, medians of {repetitions}")
    print(f"{'':<20}{'steps/s':>10}{'s to first step':>18}")
    medians = {}
    for name, runs in measured.items():
        medians[name] = [statistics.median(values) for values in zip(*runs, strict=True)]
        print(f"{name:<20}{medians[name][0]:>10.1f}{medians[name][1]:>18.2f}")
    hand, ours = medians["by hand"], medians["gridflow on Spark"]
    print(f"{'gridflow / by hand':<20}{ours[0] / hand[0]:>10.2f}{ours[1] / hand[1]:>18.2f}")
    pairs = [
        ours[0] / hand[0]
        for hand, ours in zip(measured["by hand"], measured["gridflow on Spark"], strict=True)
    ]
    print(f"steps/s of each pair: {' '.join(f'{ratio:.2f}' for ratio in pairs)}")
    print(f"their median: {statistics.median(pairs):.2f}")
    print("goals: steps/s >= 0.95, first step <= 1.3")


if __name__ == "__main__":
    main()
