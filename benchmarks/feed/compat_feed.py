"""(e) The same program as (c), its import changed: the feed of ``gridflow.compat.tfos``.

A benchmark of its own, ``python benchmarks/feed/compat_feed.py [times]``. It runs (c) beside it,
and what every feed of an RDD contains: tasks that iterate over the same RDD and do nothing else.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import uuid
from pathlib import Path

import measure
import psutil
import tfos_feed

HERE = Path(__file__).resolve().parent
#: Inherited by all that is started here: nodes live apart from the tree of the driver's processes.
MARK = "GRIDFLOW_BENCH_MARK"
#: Rows of each shape: enough for what a Spark job costs by itself to be little of it. That is about
#: half a second of CPU, 12 µs a row at 40,000.
ROWS = {
    "784 floats, df.rdd": 120_000,
    "784 floats": 120_000,
    "11 numbers, df.rdd": 100_000,
    "11 numbers": 100_000,
}


def marked_cpu() -> float:
    """Seconds of CPU of all processes that have the mark, and those they have waited for."""
    total = 0.0
    wanted = f"{MARK}={os.environ[MARK]}".encode()
    for process in psutil.process_iter():
        try:
            if wanted not in Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0"):
                continue
            times = process.cpu_times()
        except (OSError, psutil.Error):
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


def work(program: str, times: str) -> None:
    """Be one of the programs."""
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(tfos_feed)
    measure.tree_cpu = marked_cpu
    if program == "compat":
        from gridflow.compat.tfos import _alias

        _alias.install()
    if program == "floor":
        iterate(int(times))
    else:
        tfos_feed.main(int(times), ROWS)


def iterate(times: int) -> None:
    """Read the RDD of each shape, which (c) feeds, in Spark's Python workers: nothing else."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    results = {}
    for shape, rows in ROWS.items():
        spark = measure.session("an RDD")
        frame = measure.cached_frame(spark, shape.removesuffix(tfos_feed.AS_IT_IS), rows)
        rdd = tfos_feed.rows_of(frame, shape)

        def read(rdd=rdd):
            rdd.foreachPartition(lambda found: sum(1 for _ in found))

        read()
        idle = measure.idle_rate()
        samples = [vars(measure.measured(read, idle)) for _ in range(times)]
        results[shape] = {"rows": rows, "idle": idle, "samples": {"tfos": samples}}
        spark.stop()
    print("RESULT " + json.dumps(results))


def rate(python: Path | str, program: str, times: int) -> dict[str, float]:
    """Return rows per CPU-second by shape, medians."""
    done = subprocess.run(
        [python, __file__, program, str(times)],
        env={**os.environ, MARK: uuid.uuid4().hex},
        capture_output=True,
        text=True,
        check=False,
    )
    for line in done.stdout.splitlines():
        if line.startswith("RESULT "):
            found = json.loads(line.removeprefix("RESULT "))
            return {
                shape: each["rows"] / statistics.median(s["cpu"] for s in each["samples"]["tfos"])
                for shape, each in found.items()
            }
    raise SystemExit(f"{program} failed ({done.returncode}):\n{done.stderr[-4000:]}")


def main() -> None:
    """Compare the two."""
    from bench import tfos_python

    times = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    ours = rate(sys.executable, "compat", times)
    theirs = rate(tfos_python(), "original", times)
    floor = rate(sys.executable, "floor", times)
    print(f"{'rows per CPU-second':<22}{'compat.tfos':>12}{'original':>10}{'ratio':>8}", end="")
    print(f"{'the RDD alone':>16}{'ratio':>8}   µs of CPU a row: ours, its, the RDD alone")
    for shape, value in ours.items():
        its, most = theirs[shape], floor[shape]
        print(f"{shape:<22}{value:>12,.0f}{its:>10,.0f}{value / its:>7.1f}x", end="")
        print(f"{most:>16,.0f}{most / its:>7.1f}x", end="   ")
        print(", ".join(f"{1e6 / each:.0f}" for each in (value, its, most)))


if __name__ == "__main__":
    if sys.argv[1:2] in (["compat"], ["original"], ["floor"]):
        work(sys.argv[1], sys.argv[2])
    else:
        main()
