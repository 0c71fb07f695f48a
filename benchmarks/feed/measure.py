"""CPU and wall time of a whole tree of processes, and the data that all variants are fed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

#: Name -> rows for the fast variants, rows for TensorFlowOnSpark, batch size.
SHAPES = {
    "784 floats": {"rows": 120_000, "rows_slow": 10_000, "batch": 256},
    "11 numbers": {"rows": 2_000_000, "rows_slow": 50_000, "batch": 1024},
}
NUMBERS = [f"c{i}" for i in range(11)]


def tree_cpu() -> float:
    """Seconds of CPU of this process, all that live below it, and those they have waited for."""
    total = 0.0
    root = psutil.Process(os.getpid())
    for process in [root, *root.children(recursive=True)]:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


@dataclass
class Sample:
    """What one repetition took, without what the processes use when nothing is asked of them."""

    cpu: float
    wall: float


def idle_rate(seconds: float = 3.0) -> float:
    """CPU-seconds a second that the tree uses doing nothing."""
    cpu, wall = tree_cpu(), time.monotonic()
    time.sleep(seconds)
    return (tree_cpu() - cpu) / (time.monotonic() - wall)


def measured(work, idle: float) -> Sample:
    cpu, wall = tree_cpu(), time.monotonic()
    work()
    wall = time.monotonic() - wall
    return Sample(tree_cpu() - cpu - idle * wall, wall)


class Consumers:
    """Two processes with TensorFlow that drain spools, as training processes will."""

    def __init__(self) -> None:
        self._processes = [
            subprocess.Popen(
                [sys.executable, Path(__file__).with_name("consumer.py")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            for _ in range(2)
        ]
        for process in self._processes:
            assert process.stdout.readline() == "ready\n"

    def drain(self, spools: Path, shape: str, batch: int) -> int:
        """Drain an epoch of each rank's spool; return the rows. The spools go, as a job's do."""
        for rank, process in enumerate(self._processes):
            request = {"directory": f"{spools}/rank-{rank}", "shape": shape, "batch": batch}
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
        rows = sum(int(process.stdout.readline()) for process in self._processes)
        for rank, _ in enumerate(self._processes):
            shutil.rmtree(spools / f"rank-{rank}")
        return rows

    def close(self) -> None:
        for process in self._processes:
            process.stdin.close()
            process.wait()


def session(name: str, cores: int = 1):
    from pyspark.sql import SparkSession

    return (
        SparkSession.builder.master(f"local-cluster[2,{cores},2048]")
        .appName(name)
        .config("spark.executor.memory", "2g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "5000")
        .getOrCreate()
    )


def cached_frame(spark, shape: str, rows: int):
    """Return a cached DataFrame of two partitions, filled."""
    ids = spark.range(0, rows, 1, 2)
    if shape == "784 floats":
        pixels = "transform(sequence(1, 784), i -> cast((id * 31 + i * 17) % 255 / 255 as float))"
        frame = ids.selectExpr(f"{pixels} as x", "cast(id % 10 as long) as y")
    else:
        frame = ids.selectExpr(
            *[f"cast((id * {i + 3}) % 1000 / 7 as float) as {n}" for i, n in enumerate(NUMBERS)]
        )
    frame = frame.cache()
    assert frame.count() == rows
    return frame
