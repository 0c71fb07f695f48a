"""Draw ``results.json`` into ``docs/tfrecord-benchmark.svg``."""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib as mpl

mpl.use("svg")
import matplotlib.pyplot as plt

HERE = Path(__file__).parent
NAMES = {"floats": "784 floats", "mixed": "15 mixed columns", "images": "100 KB images"}


def main():
    results = json.loads((HERE / "results.json").read_text())
    bars = {
        "gridflow, read": [results[n]["read"]["cpu"] for n in NAMES],
        "Parquet (snappy), read": [results[n]["parquet read"]["cpu"] for n in NAMES],
        "tensorflow-hadoop + protobuf, read": [results["before"][n]["read"]["cpu"] for n in NAMES],
        "gridflow, write": [results[n]["write"]["cpu"] for n in NAMES],
        "tensorflow-hadoop + protobuf, write": [
            results["before"][n]["write"]["cpu"] for n in NAMES
        ],
    }
    figure, axes = plt.subplots(figsize=(8, 4))
    for i, (label, values) in enumerate(bars.items()):
        places = [x + 0.16 * (i - 2) for x in range(len(NAMES))]
        drawn = axes.bar(places, values, 0.15, label=label)
        axes.bar_label(drawn, fmt="%.0f", fontsize=7)
    axes.set_xticks(range(len(NAMES)), list(NAMES.values()))
    axes.set_ylabel("MB of TFRecord per CPU-second")
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(HERE.parents[1] / "docs" / "tfrecord-benchmark.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
