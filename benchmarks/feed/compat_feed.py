"""(e) The same program as (c), its import changed: the feed of ``gridflow.compat.tfos``.

A benchmark of its own, ``python benchmarks/feed/compat_feed.py [times]``; it runs (c) beside it.
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

HERE = Path(__file__).resolve().parent
#: Inherited by all that is started here: nodes live apart from the tree of the driver's processes.
MARK = "GRIDFLOW_BENCH_MARK"


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
    """Be the one or the other."""
    measure.tree_cpu = marked_cpu
    if program == "compat":
        from gridflow.compat.tfos import _alias

        _alias.install()
    import tfos_feed
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(tfos_feed)
    tfos_feed.main(int(times))


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
    print(f"{'rows per CPU-second':<24}{'compat.tfos':>14}{'original':>12}{'ratio':>10}")
    for shape, value in ours.items():
        print(f"{shape:<24}{value:>14,.0f}{theirs[shape]:>12,.0f}{value / theirs[shape]:>9.1f}x")


if __name__ == "__main__":
    if sys.argv[1:2] in (["compat"], ["original"]):
        work(sys.argv[1], sys.argv[2])
    else:
        main()
