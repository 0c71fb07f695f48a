"""The feed beside what a user would pick instead: ``python benchmarks/feed/bench.py [times]``.

Rows per CPU-second count whole trees of processes, executors' JVMs included, less what they use
when idle, once everything is started and warm. Rates are medians; ratios are of rates.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).resolve().parent
TFOS = HERE.parents[1] / ".cache" / "tfos-bench"
#: pkg_resources left setuptools in 81; six is imported but not declared.
TFOS_PACKAGES = (
    *("tensorflowonspark==2.2.5", "setuptools<81", "six", "tensorflow-cpu>=2.21,<2.22"),
    *("pyspark==4.1.4", "pyarrow", "numpy", "psutil"),
)


def tfos_python() -> Path:
    python = TFOS / "bin" / "python"
    if not (TFOS / ".ready").exists():
        print("making an environment for TensorFlowOnSpark …", file=sys.stderr)
        uv = shutil.which("uv")
        if uv:
            version = f"{sys.version_info.major}.{sys.version_info.minor}"
            subprocess.run([uv, "venv", "-q", "--clear", "-p", version, TFOS], check=True)
            install = [uv, "pip", "install", "-q", "--compile-bytecode", "-p", python]
        else:
            venv.create(TFOS, clear=True, with_pip=True)
            install = [python, "-m", "pip", "install", "-q"]
        subprocess.run([*install, *TFOS_PACKAGES], check=True)
        (TFOS / ".ready").touch()
    return python


def result(python: Path | str, script: str, repetitions: int) -> dict:
    done = subprocess.run(
        [python, HERE / script, str(repetitions)], capture_output=True, text=True, check=False
    )
    for line in done.stdout.splitlines():
        if line.startswith("RESULT "):
            return json.loads(line.removeprefix("RESULT "))
    raise SystemExit(f"{script} failed ({done.returncode}):\n{done.stderr[-4000:]}")


def rates(measured: dict, variant: str) -> tuple[float, float]:
    """Rows per CPU-second and per second, medians."""
    samples = measured["samples"][variant]
    return tuple(
        measured["rows"] / statistics.median(sample[key] for sample in samples)
        for key in ("cpu", "wall")
    )


def main() -> None:
    repetitions = max(3, int(sys.argv[1]) if len(sys.argv) > 1 else 5)
    spark = result(sys.executable, "spark_feed.py", repetitions)
    epochs = result(sys.executable, "second_epoch.py", repetitions)
    tfos = result(tfos_python(), "tfos_feed.py", 3)
    more = {case: found for case, found in spark.items() if case not in tfos}
    spark = {case: found for case, found in spark.items() if case in tfos}
    print(f"\nFeed, medians of {repetitions} repetitions (TensorFlowOnSpark: 3)\n")
    print(f"{'':<46}{'rows/CPU-s':>12}{'µs CPU/row':>12}{'rows/s':>12}")
    ratios = []
    for shape in spark:
        lines = {
            "(a) mapInArrow, iterating only": rates(spark[shape], "bare"),
            "(w) mapInArrow, written to a file": rates(spark[shape], "written"),
            "(b) gridflow: spool and tf.data": rates(spark[shape], "gridflow"),
            "(c) TensorFlowOnSpark 2.2.5, DataFeed": rates(tfos[shape], "tfos"),
            "(d) from_tensor_slices, in memory": rates(epochs[shape], "memory"),
            "(d) second epoch from the spool": rates(epochs[shape], "spool"),
            "(d) from_tensor_slices, shuffled": rates(epochs[shape], "memory, shuffled"),
            "(d) second epoch from the spool, shuffled": rates(epochs[shape], "spool, shuffled"),
        }
        for name, (cpu, wall) in lines.items():
            print(f"{shape:<12}{name:<34}{cpu:>12,.0f}{1e6 / cpu:>12.2f}{wall:>12,.0f}")
        (a, w, b, c, memory, spool, memory_shuffled, spool_shuffled) = lines.values()
        for name, over, under, goal in (
            ("(b) / (c)", b, c, 10 if shape == "784 floats" else 20),
            ("(b) / (a)", b, a, 1.5 if shape == "784 floats" else 1.0),
            ("(b) / (w)", b, w, 0.7),
            ("second epoch / memory", spool, memory, 0.8),
            ("second epoch / memory, shuffled", spool_shuffled, memory_shuffled, 0.8),
        ):
            ratios.append((shape, name, over[0] / under[0], over[1] / under[1], goal))
    print(f"\n{'ratio':<46}{'CPU':>12}{'wall':>12}{'goal (CPU)':>14}")
    for shape, name, cpu, wall, goal in ratios:
        mark = "reached" if cpu >= goal else "MISSED"
        print(f"{shape:<12}{name:<34}{cpu:>11.2f}x{wall:>11.2f}x{goal:>10}x  {mark}")
    for case, found in more.items():
        a, b = rates(found, "bare"), rates(found, "gridflow")
        print(f"{case + ', (b) / (a)':<46}{b[0] / a[0]:>11.2f}x{b[1] / a[1]:>11.2f}x")


if __name__ == "__main__":
    main()
