"""predict_udf beside what a user would pick instead: ``benchmarks/inference/bench.py [times]``.

A model of 784-128-10 on a cached DataFrame, two executors of one core, batches of 1024. Rows per
CPU-second as for the feed: whole trees of processes, executors' JVMs included; warm; medians.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "feed"))

from bench import rates, tfos_python

MODEL = """
import keras, sys
x = keras.Input((784,), name="x")
y = keras.layers.Dense(10, "softmax")(keras.layers.Dense(128, "relu")(x))
model = keras.Model(x, y)
model.save(sys.argv[1] + "/model.keras")
model.export(sys.argv[1] + "/saved", verbose=False)
"""


def result(python: Path | str, script: str, repetitions: int, model: str) -> dict:
    done = subprocess.run(
        [python, HERE / script, str(repetitions), model],
        capture_output=True,
        text=True,
        check=False,
    )
    for line in done.stdout.splitlines():
        if line.startswith("RESULT "):
            return json.loads(line.removeprefix("RESULT "))
    raise SystemExit(f"{script} failed ({done.returncode}):\n{done.stderr[-4000:]}")


def main() -> None:
    repetitions = max(3, int(sys.argv[1]) if len(sys.argv) > 1 else 5)
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-c", MODEL, folder], check=True, capture_output=True)
        keras_file, saved = f"{folder}/model.keras", f"{folder}/saved"
        found = result(sys.executable, "numpy_predict.py", repetitions, keras_file)
        found |= result(sys.executable, "spark_predict.py", repetitions, keras_file)
        found |= result(tfos_python(), "tfos_predict.py", 3, saved)
    titles = {
        "numpy": "model.predict on numpy, one process",
        "transport": "arrow_udf that predicts nothing",
        "gridflow": "gridflow.predict_udf",
        "predict_batch_udf": "pyspark's predict_batch_udf",
        "tfos": "TensorFlowOnSpark 2.2.5, TFModel",
    }
    print(f"\nInference, medians of {repetitions} repetitions (TensorFlowOnSpark: 3)\n")
    print(f"{'':<40}{'rows/CPU-s':>12}{'µs CPU/row':>12}{'rows/s':>12}")
    by_name = {name: rates(found[name], "all") for name in titles}
    for name, title in titles.items():
        cpu, wall = by_name[name]
        print(f"{title:<40}{cpu:>12,.0f}{1e6 / cpu:>12.2f}{wall:>12,.0f}")
    print(f"\n{'gridflow / ':<40}{'CPU':>12}{'wall':>12}{'goal (CPU)':>14}")
    for name, goal in (("numpy", 0.7), ("predict_batch_udf", 5), ("tfos", 5)):
        cpu, wall = (by_name["gridflow"][i] / by_name[name][i] for i in (0, 1))
        mark = "reached" if cpu >= goal else "MISSED"
        print(f"{titles[name]:<40}{cpu:>11.2f}x{wall:>11.2f}x{goal:>10}x  {mark}")


if __name__ == "__main__":
    main()
