"""A place in the training: of a checkpoint, a resume, an evaluation."""

from __future__ import annotations

from typing import Annotated, NamedTuple, TypeAlias

import msgspec

#: A non-negative number that other programs can represent; checked in messages.
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class Place(NamedTuple):
    """A place in a training function. Later places are greater.

    Attributes
    ----------
    fit : int
        The number of the call of ``fit`` in the function, from 0.
    epoch : int
        Its number of complete epochs.
    step : int
        The number of complete steps of the next epoch.
    """

    fit: Count
    epoch: Count
    step: Count

    def to_dict(self) -> dict[str, int]:
        """Return the numbers by their names."""
        return {"fit": self.fit, "epoch": self.epoch, "step": self.step}

    def __str__(self) -> str:
        fit = f"fit {self.fit + 1}, " if self.fit else ""
        return f"{fit}epoch {self.epoch}, step {self.step}"
