"""The start of the next iteration of a dataset."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, TypeAlias

from gridflow.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Absence", "EpochCounter", "missed_batches"]

#: From which epoch and batch to which a rank was away.
Absence: TypeAlias = tuple[tuple[int, int], tuple[int, int]]


def missed_batches(absences: Sequence[Absence], epoch: int, steps: int) -> list[tuple[int, int]]:
    """Return the batches of an epoch, from one to another, for which a rank was away."""
    return [
        (left[1] if left[0] == epoch else 0, back[1] if back[0] == epoch else steps)
        for left, back in absences
        if left[0] <= epoch <= back[0]
    ]


class EpochCounter:
    """The epoch and the first batch of the next iteration of a dataset.

    Thread-safe, because tf.data reads in its own thread.

    Examples
    --------
    >>> counter = EpochCounter()
    >>> counter.set(3, start_batch=40)
    >>> counter.begin(), counter.begin()
    ((3, 40), (4, 0))
    """

    def __init__(self, epoch: int = 0, start_batch: int = 0) -> None:
        self._lock = threading.Lock()
        #: When this rank was away, and trained nothing.
        self.absences: list[Absence] = []
        #: Reports what a rank that is still away has missed of this dataset.
        self.tell_missed: Callable[[int, Sequence[Absence]], None] | None = None
        self.set(epoch, start_batch)

    def set(self, epoch: int, start_batch: int = 0) -> None:
        """Set the next iteration, which yields batches from ``start_batch`` on."""
        if epoch < 0 or start_batch < 0:
            raise InvalidArgument(
                f"epoch and start_batch count from 0, got {epoch} and {start_batch}."
            )
        with self._lock:
            self._epoch, self._start = epoch, start_batch

    @property
    def pending(self) -> tuple[int, int]:
        """Epoch and start batch of the next iteration."""
        with self._lock:
            return self._epoch, self._start

    def begin(self) -> tuple[int, int]:
        """Start the pending iteration; the one after it is the next epoch, from its start."""
        with self._lock:
            taken = self._epoch, self._start
            self._epoch, self._start = self._epoch + 1, 0
            return taken
