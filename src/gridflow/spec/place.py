"""The place that a training has come to: of a checkpoint, a resume, an evaluation."""

from __future__ import annotations

from typing import NamedTuple


class Place(NamedTuple):
    """A place in a training function; those that come later are greater.

    Attributes
    ----------
    fit : int
        Which call of ``fit`` in the function it is, from 0.
    epoch : int
        Its complete epochs.
    step : int
        The complete steps of the epoch after those.
    """

    fit: int
    epoch: int
    step: int

    def __str__(self) -> str:
        fit = f"fit {self.fit + 1}, " if self.fit else ""
        return f"{fit}epoch {self.epoch}, step {self.step}"
