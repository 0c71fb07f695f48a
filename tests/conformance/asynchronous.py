"""The conformance table's column for parameter servers: no step lost, and a comparable loss.

Asynchronous training doesn't reproduce the numbers of one process. It must still run exactly the
requested number of steps, and end with about the loss of synchronous training.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, Final

import cloudpickle
import numpy as np

from conformance.cases import CaseResult

ROWS: Final = 2048
BATCH: Final = 32
EPOCHS: Final = 8
STEPS: Final = EPOCHS * ROWS // BATCH
#: The table's rows with their limits: absolute for steps, relative for losses.
CELLS: Final = {("step counter", "adam"): 0.0, ("loss after ctx.fit", "adam"): 0.05}


def rows() -> dict[str, dict[str, np.ndarray]]:
    """Return rows with irreducible noise in their labels."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(ROWS, 4)).astype("float32")
    noise = rng.normal(size=ROWS)
    y = np.sin(x @ np.array([1.0, -1.0, 0.5, 0.5])) + x @ np.array([0.5, 0.5, -0.5, 0.5]) + noise
    return {"rows": {"x": x, "y": y.astype("float32")}}


def build(keras: Any) -> Any:
    """Return a compiled model with a decaying learning rate."""
    keras.utils.set_random_seed(3)
    layers = keras.layers
    model = keras.Sequential([layers.Dense(16, activation="tanh"), layers.Dense(1)])
    rate = keras.optimizers.schedules.PolynomialDecay(0.02, STEPS, 0.002)
    model.compile(keras.optimizers.Adam(rate), "mse")
    return model


def found_in(model: Any, loss: float, an_epoch: int) -> dict[tuple[str, str], CaseResult]:
    """Return the values that the cells compare, for a trained model and its loss over all rows.

    Workers with uneven numbers of rows need a few more steps for `an_epoch`.
    """
    steps = float(model.optimizer.iterations.numpy()) * STEPS / (EPOCHS * an_epoch)
    return dict(zip(CELLS, (CaseResult(losses=[steps]), CaseResult(losses=[loss])), strict=True))


def column(ctx: Any, flavour: str, shared: str) -> None:
    """Train with parameter servers; a training function for the chief.

    Parameters
    ----------
    ctx : TrainingContext
        Its data are `rows`.
    flavour : {"keras", "tf_keras"}
    shared : str
        The folder for the results.
    """
    keras = importlib.import_module(flavour)
    with ctx.strategy.scope():
        model = build(keras)
    columns = {"batch_size": BATCH, "features": "x", "label": "y"}
    ctx.fit(model, "rows", epochs=EPOCHS, shuffle=True, **columns)
    loss = ctx.evaluate(model, "rows", **columns)["loss"]
    found = found_in(model, loss, ctx.steps_per_epoch("rows", batch_size=BATCH))
    Path(shared, "rank-0").write_bytes(cloudpickle.dumps(found))


def plain_results(keras: Any) -> dict[tuple[str, str], CaseResult]:
    """Compute the expected values in one process."""
    model = build(keras)
    data = rows()["rows"]
    model.fit(data["x"], data["y"], batch_size=BATCH, epochs=EPOCHS, verbose=0)
    loss = float(model.evaluate(data["x"], data["y"], verbose=0))
    return found_in(model, loss, STEPS // EPOCHS)
