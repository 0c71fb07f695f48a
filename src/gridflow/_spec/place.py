"""The place that a training has come to: of a checkpoint, a resume, an evaluation."""

from __future__ import annotations

from typing import Annotated, NamedTuple, TypeAlias

import msgspec

#: A number that isn't below zero, nor larger than other programs can hold; checked in messages.
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


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

    fit: Count
    epoch: Count
    step: Count

    def __str__(self) -> str:
        fit = f"fit {self.fit + 1}, " if self.fit else ""
        return f"{fit}epoch {self.epoch}, step {self.step}"
