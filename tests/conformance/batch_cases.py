"""Cases of the conformance table in which users make the batches, on TensorFlow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from conformance.cases import (
    BATCH,
    EPOCHS,
    STEPS,
    CaseResult,
    natural_rows,
    trained,
    weights_of,
)

if TYPE_CHECKING:
    from conformance.cases import Lab

#: The cases; each uses the first model.
CASES: Final = ("fit PyDataset", "on batches")


def plain_results(lab: Lab) -> dict[str, CaseResult]:
    """Compute the expected values in one process, from arrays."""
    data = natural_rows()
    model = lab.model("sgd momentum")
    options = {"batch_size": BATCH, "epochs": EPOCHS, "shuffle": False, "verbose": 0}
    fit = trained(model, model.fit(data["x"], data["y"], **options))
    return dict(zip(CASES, (fit, _on_batches(lab)), strict=True))


def results(lab: Lab) -> dict[str, CaseResult]:
    """Compute the cases on this rank."""
    model = lab.model("sgd momentum")
    fit = trained(model, model.fit(_views(lab), epochs=EPOCHS, shuffle=False, verbose=0))
    return dict(zip(CASES, (fit, _on_batches(lab)), strict=True))


def _views(lab: Lab) -> Any:
    """Return a PyDataset whose batches are views of arrays aligned to 64 bytes."""
    data = natural_rows()
    x, y = _aligned(data["x"]), _aligned(data["y"])
    utils = lab.keras.utils

    class Views(getattr(utils, "PyDataset", utils.Sequence)):  # type: ignore[misc]
        def __len__(self) -> int:
            return STEPS

        def __getitem__(self, step: int) -> Any:
            rows = slice(step * BATCH, (step + 1) * BATCH)
            return x[rows], y[rows]

    return Views()


def _aligned(array: np.ndarray) -> np.ndarray:
    memory = np.empty(array.nbytes + 64, np.uint8)
    begin = -memory.ctypes.data % 64
    copy: np.ndarray = memory[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[:] = array
    return copy


def _on_batches(lab: Lab) -> CaseResult:
    """Train, test and predict on the same batches on all ranks, with a size they can't split."""
    data = natural_rows()
    model = lab.model("sgd momentum")
    losses = []
    for step in range(STEPS):
        rows = slice(step * BATCH, (step + 1) * BATCH)
        losses += model.train_on_batch(data["x"][rows], data["y"][rows])
    losses += model.test_on_batch(data["x"][:BATCH], data["y"][:BATCH])
    predicted = model.predict_on_batch(data["x"][:7])
    return CaseResult([*weights_of(model), predicted], [float(each) for each in losses])
