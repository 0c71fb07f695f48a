"""gridflow.predict beside what else there is: ``benchmarks/inference/bench.py [times]``.

Models of several kinds on cached DataFrames, two executors of one core, batches of 1024, all
columns kept. Rows per CPU-second as for the feed: whole trees of processes, executors' JVMs
included; warm; medians. Then the first two queries of a session, by the clock.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "feed"))

from bench import rates, tfos_python
from cases import CASES

MODEL = """
import sys
sys.path.insert(0, sys.argv[1])
from cases import CASES
model = CASES[sys.argv[2]].model()
model.save(sys.argv[3] + "/model.keras")
model.export(sys.argv[3] + "/saved", verbose=False)
"""
TITLES = {
    "numpy": "model.predict on numpy, one process",
    "transport": "arrow_udf that predicts nothing",
    "predict": "gridflow.predict",
    "gridflow": "gridflow.predict_udf",
    "predict_batch_udf": "pyspark's predict_batch_udf",
    "tfos": "TensorFlowOnSpark 2.2.5, TFModel",
}
SESSIONS = 3
SECOND = 0.5


def result(python: Path | str, script: str, *words: object) -> dict:
    done = subprocess.run(
        [python, HERE / script, *map(str, words)], capture_output=True, text=True, check=False
    )
    for line in done.stdout.splitlines():
        if line.startswith("RESULT "):
            return json.loads(line.removeprefix("RESULT "))
    raise SystemExit(f"{script} failed ({done.returncode}):\n{done.stderr[-4000:]}")


def show(name: str, repetitions: int, folder: str) -> None:
    """Print how a model's roads compare."""
    case, path = CASES[name], f"{folder}/model.keras"
    found = result(sys.executable, "numpy_predict.py", repetitions, path, name)
    found |= result(sys.executable, "spark_predict.py", repetitions, path, name)
    goals = dict(case.goals)
    if name == "784 floats":
        found |= result(tfos_python(), "tfos_predict.py", 3, f"{folder}/saved")
        goals["tfos"] = (5, None)
    print(f"\n{name}\n{'':<40}{'rows/CPU-s':>12}{'µs CPU/row':>12}{'rows/s':>12}")
    by_name = {road: rates(found[road], "all") for road in TITLES if road in found}
    for road, (cpu, wall) in by_name.items():
        print(f"{TITLES[road]:<40}{cpu:>12,.0f}{1e6 / cpu:>12.2f}{wall:>12,.0f}")
    print(f"{'gridflow.predict / ':<40}{'CPU':>12}{'wall':>12}")
    for road in (road for road in by_name if road not in ("predict", "transport")):
        ratios = [by_name["predict"][i] / by_name[road][i] for i in (0, 1)]
        marks = [
            f"{what} {'reached' if ratio >= goal else 'MISSED'} ({goal})"
            for what, ratio, goal in zip(("CPU", "wall"), ratios, goals.get(road, ()), strict=False)
            if goal is not None
        ]
        print(f"{TITLES[road]:<40}{ratios[0]:>11.2f}x{ratios[1]:>11.2f}x  {', '.join(marks)}")


def show_first_queries(folder: str) -> None:
    """Print how long the first query of a session takes, and the fixed cost of the second."""
    print(f"\nQueries of 2,048 rows, medians of {SESSIONS} sessions, s")
    print(f"{'':<40}{'the first':>12}{'the second, beyond a query without predictions':>50}")
    first = {}
    for road in ("predict", "gridflow"):
        words = (road, f"{folder}/model.keras")
        found = [result(sys.executable, "first_query.py", *words) for _ in range(SESSIONS)]
        first[road], second = (
            statistics.median(each[which] for each in found) for which in ("first", "second")
        )
        mark = ""
        if road == "predict":
            mark = f"  {'reached' if second <= SECOND else 'MISSED'} ({SECOND})"
        print(f"{TITLES[road]:<40}{first[road]:>12.2f}{second:>50.2f}{mark}")
    mark = "reached" if first["predict"] <= first["gridflow"] else "MISSED"
    print(
        f"first query, gridflow.predict / predict_udf: {first['predict'] / first['gridflow']:.2f}"
        f"  {mark} (1)"
    )


def main() -> None:
    repetitions = max(3, int(sys.argv[1]) if len(sys.argv) > 1 else 5)
    wanted = sys.argv[2:] or list(CASES)
    print(f"Inference, medians of {repetitions} repetitions (TensorFlowOnSpark: 3)", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for name in reversed(wanted):  # so that the model of floats is there at the end
            words = [sys.executable, "-c", MODEL, str(HERE), name, folder]
            subprocess.run(words, check=True, capture_output=True)
            show(name, repetitions, folder)
        if "784 floats" in wanted:
            show_first_queries(folder)


if __name__ == "__main__":
    main()
