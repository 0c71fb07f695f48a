"""What a replica's part of a batch weighs, in steps of Keras's on several replicas.

A loss is a mean over the batch. The mean of the replicas' means is that of the whole batch only
where each divides by as much as the others: not with parts of 8 and 7 rows, nor where a loss
divides by its own sum of weights, or by the entries that a mask leaves. So

* gradients are weighted by rows when they are averaged. The number of rows travels with them;
* a loss that divides by weights or valid entries divides by their mean over all replicas, times
  its own number of entries. That takes a number of the other replicas before the gradients are
  known; a loss without masks and weights doesn't ask for it.

Imports no backend: who makes a `ReplicaPart` says how numbers are added up.
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

    Parameters
    ----------
    rows : float or tensor
        Rows in it.
    add_up : callable
        Returns the sums of some numbers over all replicas, each of which has to call it. Those of
        a part without rows count for nothing: it may hold one to make a batch of.
    scaled : float, default 1
        What a loss that is a mean is divided by, beside its entries, for gradients that are added
        up afterwards: 1, or the number of replicas.
    is_reachable : callable, optional
        Whether the other replicas can be asked at this place of the step.
    """

    def __init__(
        self,
        rows: Any,
        add_up: Callable[[Sequence[Any]], Sequence[Any]],
        scaled: float = 1.0,
        is_reachable: Callable[[], bool] = lambda: True,
    ) -> None:
        self.rows, self.scaled, self._add_up = rows, scaled, add_up
        self.is_reachable = is_reachable
        self._all_rows: Any = None

    def times_a_sum(self) -> Any:
        """Return how often a sum over these rows counts, as the others' means are weighted."""
        # No cached_property: before Python 3.12 it has a lock, and replicas in threads meet here.
        if self._all_rows is None:
            (self._all_rows,) = self._add_up([self.rows])
        return self._all_rows / (self.rows * self.scaled)

    def density(self, counted: Any, entries: Any) -> Any:
        """Return how much counts in the whole batch, for each of its entries.

        Parameters
        ----------
        counted, entries : tensor
            The same of this part: a sum of weights or of a mask, and over how many entries.
        """
        counted, entries = self._add_up([counted, entries])
        return counted / entries


@contextmanager
def of(part: ReplicaPart | None) -> Iterator[None]:
    """Let the step inside be made on a part of a batch; None: nothing is known of it."""
    before = getattr(_state, "part", None)
    _state.part = part
    try:
        yield
    finally:
        _state.part = before


def current() -> ReplicaPart | None:
    """Return the part of a batch that this thread's step is made on, None if it isn't known."""
    return getattr(_state, "part", None)


def reachable(what: str) -> ReplicaPart | None:
    """Return the `current` part if the other replicas can be asked here; else say that once."""
    part = current()
    if part is None or part.is_reachable():
        return part
    _say(what)
    return None


@functools.cache
def _say(what: str) -> None:
    _log.warning(
        "%s is computed inside of a function, loop or branch of the step, where a replica can't "
        "ask the others: each divides by its own sum. Compute it in the step itself.",
        what,
    )
