"""Losses of parameter servers beside those of synchronous training, on a busy machine.

``python benchmarks/servers/races.py [--runs 20] [--optimizers Adam Lamb …] [--busy 3]``: one
parameter server and two workers train a model of two parts that share nothing but the optimizer: a
dense network, and an embedding of which most rows are rare. Prints for each optimizer what the
losses over all rows come to at the end, divided by those of plain Keras in one process after as
many steps on the same rows: the median of the runs, the lowest, the highest, and how many are off
by more than 10 %. Runs of plain Keras differ, too, by the order of the rows: the range of these
stands beside. ``--unlocked`` leaves out that updates of a variable are made one after another.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import subprocess
import sys
import time

import numpy as np

from gridflow import LocalLauncher, Role, TensorflowDistributor

ROWS, BATCH, EPOCHS = 2048, 64, 4
KINDS, WIDTH = 5000, 8
STEPS = EPOCHS * ROWS // BATCH
#: How far a loss may be from that of synchronous training, in proportion.
NEAR = 0.1
#: Orders of the rows that plain Keras trains in.
ORDERS = 3
#: Class, learning rate, which falls to a fiftieth, and arguments.
OPTIMIZERS = {
    "Adam": ("Adam", 0.02, {}),
    "Adam, amsgrad": ("Adam", 0.02, {"amsgrad": True}),
    "AdamW": ("AdamW", 0.02, {}),
    "Nadam": ("Nadam", 0.02, {}),
    "Adamax": ("Adamax", 0.05, {}),
    "Ftrl": ("Ftrl", 0.3, {}),
    "Lamb": ("Lamb", 0.05, {}),
    "Lion": ("Lion", 0.005, {}),
    "RMSprop": ("RMSprop", 0.02, {}),
    "RMSprop, centered": ("RMSprop", 0.005, {"momentum": 0.9, "centered": True}),
    "SGD, momentum": ("SGD", 0.03, {"momentum": 0.9}),
    "Adagrad": ("Adagrad", 0.2, {}),
    "Adadelta": ("Adadelta", 5.0, {}),
    "Adafactor": ("Adafactor", 0.1, {}),
}
PARTS = ("dense", "embedding")
COLUMNS = {
    "batch_size": BATCH,
    "features": {"x": "x", "kind": "kind"},
    "label": {"dense": "y", "embedding": "z"},
}


def rows():
    """Return rows with noise in them; half of them name one of 50 kinds, the others any."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(ROWS, 4))
    often = rng.integers(0, 50, ROWS)
    kind = np.where(rng.random(ROWS) < 0.5, often, rng.integers(0, KINDS, ROWS))
    y = np.sin(x @ [1.0, -1.0, 0.5, 0.5]) + x @ [0.5, 0.5, -0.5, 1.5]
    z = 2 * np.sin(kind)
    columns = {"x": x, "kind": kind, "y": y + rng.normal(size=ROWS), "z": z + rng.normal(size=ROWS)}
    return {
        name: column.astype("int64" if name == "kind" else "float32")
        for name, column in columns.items()
    }


def build(name):
    """Return a compiled model, always with the same weights."""
    import keras

    keras.utils.set_random_seed(3)
    make = keras.layers
    x, kind = keras.Input((4,), name="x"), keras.Input((), dtype="int64", name="kind")
    hidden = make.Dense(16, activation="tanh")(x)
    dense = make.Dense(1)(make.Concatenate()([x, hidden]))
    embedding = keras.ops.sum(make.Embedding(KINDS, WIDTH)(kind), axis=1, keepdims=True)
    model = keras.Model({"x": x, "kind": kind}, {"dense": dense, "embedding": embedding})
    optimizer, rate, arguments = OPTIMIZERS[name]
    if name != "Ftrl":  # whose weights are sums times the rate: they would fall with it
        rate = keras.optimizers.schedules.PolynomialDecay(rate, STEPS, rate / 50)
    made = getattr(keras.optimizers, optimizer)(learning_rate=rate, **arguments)
    model.compile(made, dict.fromkeys(PARTS, "mse"))
    return model


def losses(model, columns):
    """Return the loss of each part over all rows."""
    found = model({"x": columns["x"], "kind": columns["kind"]})
    return {
        part: float(np.mean((np.asarray(found[part])[:, 0] - columns[label]) ** 2))
        for part, label in COLUMNS["label"].items()
    }


def alone(ctx, names, columns):
    """Return the losses of plain Keras in one process, for several orders of the rows."""
    import keras

    found = {}
    for name in names:
        found[name] = []
        for order in range(ORDERS):
            model = build(name)
            keras.utils.set_random_seed(order)
            targets = {part: columns[label] for part, label in COLUMNS["label"].items()}
            inputs = {"x": columns["x"], "kind": columns["kind"]}
            model.fit(inputs, targets, batch_size=BATCH, epochs=EPOCHS, verbose=0)
            found[name].append(losses(model, columns))
            keras.backend.clear_session()
    return found


def together(ctx, name, runs, columns, locked):
    """Return the losses of runs over parameter servers, one run after the other."""
    import gc

    if not locked:
        del ctx.strategy.extended._update  # noqa: SLF001 (what the patch has put there)
    found = []
    for seed in range(runs):
        with ctx.strategy.scope():
            model = build(name)
        ctx.fit(model, "train", epochs=EPOCHS, callbacks=[], shuffle=True, seed=seed, **COLUMNS)
        assert int(model.optimizer.iterations.numpy()) == STEPS
        found.append(losses(model, columns))
        del model
        gc.collect()
    return found


@contextlib.contextmanager
def busy(count):
    """Keep cores busy meanwhile."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def distributor(strategy, **roles):
    return TensorflowDistributor(
        roles=[Role(name, count) for name, count in roles.items()],
        strategy=strategy,
        launcher=LocalLauncher(),
        logs="none",
        progress=False,
    )


def line(name, part, plain, found):
    """Return what is printed of the runs of an optimizer, and how many are off."""
    middle = statistics.median(plain)
    ratios = sorted(loss / middle for loss in found)
    off = sum(not abs(ratio - 1) <= NEAR for ratio in ratios)  # NaN is off, too
    numbers = [statistics.median(ratios), min(ratios), max(ratios)]
    ours = "".join(f"{ratio:>9.{'3f' if ratio < 1000 else '1e'}}" for ratio in numbers)
    theirs = f"{min(plain) / middle:.3f} to {max(plain) / middle:.3f}"
    return f"{name:<19}{part:<11}{middle:>7.3f}{ours}{off:>6} of {len(found):<3}{theirs:>17}", off


def main():
    """Print a table; fail if a run is off."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--optimizers", nargs="+", choices=OPTIMIZERS, default=list(OPTIMIZERS))
    parser.add_argument("--busy", type=int, default=3, help="processes that keep cores busy")
    parser.add_argument("--unlocked", action="store_true", help="let updates of a variable mix")
    asked = parser.parse_args()
    columns, missed = rows(), 0
    print(f"{STEPS} steps of {BATCH} rows, {asked.runs} runs, {asked.busy} busy processes beside")
    print(f"{'':<30}{'plain':>7}{'median':>9}{'lowest':>9}{'highest':>9}", end="")
    print(f"{'> 10 % off':>12}{'plain, by order':>17}{'in all':>8}", flush=True)
    plain = distributor("none", worker=1).run(alone, asked.optimizers, columns).value
    with busy(asked.busy):
        for name in asked.optimizers:
            began = time.monotonic()
            servers = distributor("parameter_server", ps=1, worker=2)
            found = servers.run(
                together, name, asked.runs, columns, not asked.unlocked, data={"train": columns}
            ).value
            for part in PARTS:
                pair = ([each[part] for each in every] for every in (plain[name], found))
                text, off = line(name, part, *pair)
                missed += off
                print(text + f"{time.monotonic() - began:>6.0f} s", flush=True)
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
