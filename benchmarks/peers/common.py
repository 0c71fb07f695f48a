"""What all programs of this folder share: the rows, the model, and the report of a result."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np

#: Rows of a step and worker, epochs, and units of the hidden layers.
CASES = {"flights": (256, 5, (64, 32)), "digits": (16, 20, (64, 64))}
WORKERS = 2
MASTER = f"local-cluster[{WORKERS},1,2048]"


def arguments():
    """Return the case and the folder of its rows, which the command line names."""
    case, folder = sys.argv[1:]
    return case, Path(folder, case)


def make_model(keras, case):
    """Return the compiled model, of Keras 3 or tf_keras."""
    is_flights = case == "flights"
    layers = [keras.Input((10 if is_flights else 64,))]
    layers += [keras.layers.Dense(units, activation="relu") for units in CASES[case][2]]
    layers.append(keras.layers.Dense(1) if is_flights else keras.layers.Dense(10, "softmax"))
    model = keras.Sequential(layers)
    model.compile("adam", "mse" if is_flights else "sparse_categorical_crossentropy")
    return model


def session(name):
    """Return a Spark session on two executors of this machine."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(MASTER).appName(name)
    spark = builder.config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def report(case, folder, weights, began):
    """Print the seconds since the program began to train, and the loss on rows held back."""
    import pandas as pd

    seconds = time.monotonic() - began
    test = pd.read_parquet(folder / "test.parquet")
    values, wanted = np.stack(test["x"]), test["y"].to_numpy()
    for kernel, bias in zip(weights[::2], weights[1::2], strict=True):
        values = np.maximum(values, 0) if kernel is not weights[0] else values
        values = values @ np.asarray(kernel) + np.asarray(bias)
    if case == "flights":
        loss = np.mean((values[:, 0] - wanted) ** 2)
    else:
        values = values - values.max(axis=1, keepdims=True)
        logs = values - np.log(np.exp(values).sum(axis=1, keepdims=True))
        loss = -np.mean(logs[np.arange(len(wanted)), wanted])
    print("RESULT " + json.dumps({"seconds": seconds, "loss": float(loss)}), flush=True)
