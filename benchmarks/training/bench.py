"""Training under gridflow on Spark beside the same program started by hand.

``python benchmarks/training/bench.py [REPETITIONS]``: on two workers, in turn, prints steps per
second and the time from the start to the first step, for the first run of a job in a Spark session
(nothing is warm) and for the second: medians, their ratios, and the ratios of those that ran one
after the other, as a shared machine's speed changes within minutes.
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
COLD, WARM = OURS = ("gridflow, first run", "gridflow, second run")
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


def by_gridflow(spark, round_):
    """Run the same function on Spark's executors; the first time in a round nothing is warm.

    A fork server is for one environment, so another one has to import TensorFlow anew.
    """
    distributor = TensorflowDistributor(
        2,
        launcher=SparkLauncher(spark),
        logs="none",
        progress=False,
        env={"BENCHMARK_ROUND": str(round_)},
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
    measured = {name: [] for name in ("by hand", COLD, WARM)}
    with StandaloneCluster(workers=2, cores=1, memory="2g") as cluster:
        spark = cluster.session()
        spark.sparkContext.setLogLevel("ERROR")
        wait_for_slots(spark, 2)
        SparkLauncher(spark)  # the executors run this Python from now on
        # Python on the executors, as any Spark job before it would start it.
        spark.range(2).repartition(2).mapInArrow(lambda batches: batches, "id long").collect()
        for round_ in range(repetitions):
            ways = [
                lambda: measured["by hand"].append(by_hand()),
                lambda r=round_: [measured[name].append(by_gridflow(spark, r)) for name in OURS],
            ]
            for way in reversed(ways) if round_ % 2 else ways:
                way()
        spark.stop()
    print(f"\n{STEPS} steps of 2 x 256 rows, two workers, medians of {repetitions}")
    print(f"{'':<26}{'steps/s':>10}{'s to first step':>18}")
    medians = {}
    for name, runs in measured.items():
        medians[name] = [statistics.median(values) for values in zip(*runs, strict=True)]
        print(f"{name:<26}{medians[name][0]:>10.1f}{medians[name][1]:>18.2f}")
    hand = medians["by hand"]
    for name in OURS:
        ours = medians[name]
        print(f"{name + ' / by hand':<26}{ours[0] / hand[0]:>10.2f}{ours[1] / hand[1]:>18.2f}")
    for name in OURS:
        for index, what in enumerate(("steps/s", "s to first step")):
            ratios = [
                ours[index] / hand[index]
                for hand, ours in zip(measured["by hand"], measured[name], strict=True)
            ]
            each = " ".join(f"{ratio:.2f}" for ratio in ratios)
            print(f"{name}, {what} of each pair: {each}; median {statistics.median(ratios):.2f}")
    print("goals: steps/s >= 0.95; s to first step: cold <= 1.05, warm <= 0.35")


if __name__ == "__main__":
    main()
