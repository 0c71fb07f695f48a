"""The weight of a replica's part of a batch, in Keras's steps on several replicas.

A loss is a mean over the batch. The mean of the replicas' means is the mean of the whole batch only
if all replicas divide by the same number: not with parts of 8 and 7 rows, and not if a loss divides
by its own sum of weights, or by the entries that a mask keeps. So

* gradients are weighted by rows when they are averaged. The number of rows is sent with them;
* a loss that divides by weights or valid entries divides by their mean over all replicas, times its
  own number of entries. This needs a number from the other replicas before the gradients are known;
  a loss without masks and weights doesn't ask for it.

Imports no backend: the creator of a `ReplicaPart` defines how numbers are summed.
"""

from __future__ import annotations

import functools
import logging
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_log = logging.getLogger(__name__)
_state = threading.local()


class ReplicaPart:
    """One replica's part of the batch of a step.

    `add_up`: Returns the sums of some numbers over all replicas, each of which must call it.
        Numbers of a part without rows are ignored: it may hold a placeholder row.
    `is_reachable`: Whether the other replicas can be asked at this point of the step.
    """

    def __init__(
        self,
        rows: Any,
        add_up: Callable[[Sequence[Any]], Sequence[Any]],
        is_reachable: Callable[[], bool] = lambda: True,
    ) -> None:
        self.rows, self._add_up = rows, add_up
        self.is_reachable = is_reachable
        self._all_rows: Any = None

    def times_a_sum(self) -> Any:
        """Return the factor for a sum over these rows, given that means are weighted."""
        # No cached_property: before Python 3.12 it has a lock, and replicas in threads meet here.
        if self._all_rows is None:
            (self._all_rows,) = self._add_up([self.rows])
        return self._all_rows / self.rows

    def density(self, counted: Any, entries: Any) -> Any:
        """Return the average count per entry of the whole batch.

        `counted`, `entries`: The values of this part: a sum of weights or of a mask, and its number
            of entries.
        """
        counted, entries = self._add_up([counted, entries])
        return counted / entries

    def means(self, numbers: Sequence[Any]) -> list[Any]:
        """Return the means of some numbers over the parts that have rows."""
        *sums, parts = self._add_up([*numbers, 1.0])
        return [each / parts for each in sums]


@contextmanager
def of(part: ReplicaPart | None) -> Iterator[None]:
    """Declare the part of a batch on which a step runs, in a block; None if unknown."""
    before = getattr(_state, "part", None)
    _state.part = part
    try:
        yield
    finally:
        _state.part = before


def current() -> ReplicaPart | None:
    """Return the part of a batch on which this thread's step runs, or None if unknown."""
    return getattr(_state, "part", None)


def reachable(what: str) -> ReplicaPart | None:
    """Return the `current` part if the other replicas can be asked here; else log once."""
    part = current()
    if part is None or part.is_reachable():
        return part
    _say(what)
    return None


@functools.cache
def _say(what: str) -> None:
    _log.warning(
        "%s is computed inside a function, loop or branch of the step, where replicas can't "
        "exchange values, so each divides by its own sum. Compute it in the step itself.",
        what,
    )
