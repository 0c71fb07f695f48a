"""Rows pushed into a running job beside rows that a stage spools: ``push.py [times]``.

Both bring the same cached DataFrame to two processes that drain it by tf.data, once. Rows per
CPU-second count whole trees of processes; rates are medians, the ratio is of rates.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from consumer import FORMS
from measure import SHAPES, Consumers, cached_frame, idle_rate, measured, session
from spark_feed import spooled


def drain(ctx, folder: str, batch_size: int, columns: dict) -> int:
    """Count the rows of a stream, where the driver can read it."""
    rows = 0
    file = os.open(f"{folder}/{ctx.rank}", os.O_WRONLY | os.O_CREAT)
    for _, y in ctx.stream(batch_size, **columns):
        rows += y.shape[0]
        os.pwrite(file, f"{rows:20}".encode(), 0)
    return rows


def drained(folder: Path) -> int:
    return sum(int(path.read_text() or 0) for path in folder.iterdir())


def main(repetitions: int) -> None:
    from gridflow import SparkLauncher, TensorflowDistributor

    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = session("gridflow push", cores=2)
    spark.range(1).collect()
    time.sleep(3)
    print(f"\nPushed beside spooled, medians of {repetitions} repetitions\n")
    print(f"{'':<46}{'rows/CPU-s':>12}{'rows/s':>12}")
    for shape, options in SHAPES.items():
        rows, batch = options["rows"], options["batch"]
        frame = cached_frame(spark, shape, rows)
        samples = {
            "spooled by the stage": pulled(frame, shape, rows, batch, repetitions),
            "pushed": pushed(
                TensorflowDistributor(
                    2, "none", launcher=SparkLauncher(spark), logs="none", progress=False
                ),
                frame,
                shape,
                rows,
                batch,
                repetitions,
            ),
        }
        rates = {}
        for name, found in samples.items():
            cpu, wall = (
                rows / statistics.median(getattr(sample, key) for sample in found)
                for key in ("cpu", "wall")
            )
            rates[name] = cpu, wall
            print(f"{shape + ', ' + name:<46}{cpu:>12,.0f}{wall:>12,.0f}")
        (pull_cpu, pull_wall), (push_cpu, push_wall) = rates.values()
        ratio = f"{push_cpu / pull_cpu:.2f} by CPU, {push_wall / pull_wall:.2f} by time"
        print(f"{shape}: pushed / spooled = {ratio}", flush=True)
        frame.unpersist()
    spark.stop()


def pulled(frame, shape, rows, batch, repetitions):
    consumers = Consumers()
    folder = Path(tempfile.mkdtemp(prefix="gridflow-bench-"))

    def once():
        assert spooled(frame, str(folder)) == rows
        assert consumers.drain(folder, shape, batch) >= rows

    found = repeated(once, repetitions)
    consumers.close()
    shutil.rmtree(folder)
    return found


def pushed(distributor, frame, shape, rows, batch, repetitions):
    folder = Path(tempfile.mkdtemp(prefix="gridflow-bench-"))
    with distributor.start(drain, str(folder), batch, FORMS[shape]) as job:
        sent = [0]

        def once():
            sent[0] += job.feed(frame)
            while drained(folder) < sent[0] - 2 * batch:  # the last batches fill with the next rows
                time.sleep(0.005)

        found = repeated(once, repetitions)
    assert sum(job.result().values) == sent[0]
    shutil.rmtree(folder)
    return found


def repeated(once, repetitions):
    for _ in range(4):  # the JVM compiles what it runs often
        once()
    idle = idle_rate()
    return [measured(once, idle) for _ in range(repetitions)]


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
