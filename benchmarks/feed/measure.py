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

#: Name -> rows for the fast variants (a query of Spark costs half a second of CPU whatever it
#: brings), for arrays in memory, and for TensorFlowOnSpark; batch size.
SHAPES = {
    "784 floats": {"rows": 240_000, "rows_kept": 120_000, "rows_slow": 10_000, "batch": 256},
    "11 numbers": {
        "rows": 2_000_000,
        "rows_kept": 2_000_000,
        "rows_slow": 50_000,
        "batch": 1024,
    },
}
IMAGES = {"images of 100 KB": {"rows": 6_000, "batch": 32}}
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

    def drain(self, spools: Path, shape: str, batch: int, ranks: int = 2) -> int:
        """Drain an epoch of each rank's spool; return the rows. The spools go, as a job's do."""
        processes = self._processes[:ranks]
        for rank, process in enumerate(processes):
            request = {"directory": f"{spools}/rank-{rank}", "shape": shape, "batch": batch}
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
        rows = sum(int(process.stdout.readline()) for process in processes)
        for rank, _ in enumerate(processes):
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


def rows_of(spark, shape: str, rows: int, workers: int = 2):
    """Return a DataFrame of so many partitions."""
    ids = spark.range(0, rows, 1, workers)
    if shape == "784 floats":
        pixels = "transform(sequence(1, 784), i -> cast((id * 31 + i * 17) % 255 / 255 as float))"
        return ids.selectExpr(f"{pixels} as x", "cast(id % 10 as long) as y")
    if shape == "11 numbers":
        return ids.selectExpr(
            *[f"cast((id * {i + 3}) % 1000 / 7 as float) as {n}" for i, n in enumerate(NUMBERS)]
        )
    noise = "concat_ws('', transform(sequence(1, 1563), i -> sha2(string(id * 1563 + i), 256)))"
    return ids.selectExpr(f"cast({noise} as binary) as x", "id % 10 as y")


def cached_frame(spark, shape: str, rows: int, workers: int = 2):
    """Return a cached DataFrame of so many partitions, filled."""
    frame = rows_of(spark, shape, rows, workers).cache()
    assert frame.count() == rows
    return frame


def parquet_frame(spark, shape: str, rows: int, folder: Path, workers: int = 2):
    """Return a DataFrame of so many Parquet files, each a partition."""
    path = str(folder / shape.replace(" ", "-"))
    rows_of(spark, shape, rows, workers).write.mode("overwrite").parquet(path)
    spark.conf.set("spark.sql.files.maxPartitionBytes", str(1 << 40))
    spark.conf.set("spark.sql.files.openCostInBytes", str(1 << 39))
    return spark.read.parquet(path)
