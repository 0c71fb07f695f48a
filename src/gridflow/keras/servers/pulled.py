"""Steps on the rows of ``run(data=…)`` that the workers of parameter servers read: each row once.

Steps go to whichever worker is free, who takes the next batch of its own rows and says which one it
was. So the chief knows what is done, and which workers have nothing left. A worker that is started
again passes over what is done. Where a batch is lost without its worker, the workers read what is
missing in another pass.
"""

from __future__ import annotations

import functools
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from gridflow.keras.cures import parts
from gridflow.keras.servers.steps import fetch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gridflow.keras.servers.account import Account
    from gridflow.keras.servers.data import WorkerDataset

#: Seconds between steps while only workers take them that have nothing left.
_PAUSE: Final = 0.05


class Puller:
    """Makes steps on a dataset.

    Parameters
    ----------
    coordinator : tf.distribute.coordinator.ClusterCoordinator
    data : WorkerDataset
    step : callable
        Traced by the chief: makes a step on a batch, and returns what it has found.
    nothing : callable
        Returns what that is of no row.
    most : int
        Steps that may be under way.
    """

    def __init__(
        self,
        coordinator: Any,
        data: WorkerDataset,
        step: Callable[[Any], Any],
        nothing: Callable[[], Any],
        most: int,
    ) -> None:
        import tensorflow as tf

        self._coordinator, self._data, self._most = coordinator, data, most
        self._step = tf.function(functools.partial(_one, step, nothing), autograph=False)
        self._under_way: deque[Any] = deque()

    def results(
        self, account: Account, epoch: int = 0, room: Callable[[], int] | None = None
    ) -> Iterator[Any]:
        """Yield what each step has found on a batch that was missing, until none is.

        Who takes no more of them calls `drain`.

        Parameters
        ----------
        account : Account
        epoch : int
            Decides on the order of shuffled rows.
        room : callable, optional
            Returns how many steps may be under way at the moment; one at least.
        """
        with parts.hearing_of_repeats(
            self._coordinator, lambda worker, _: account.hand_out_again(worker)
        ):
            missing = None
            while not account.is_done:
                yield from self._pass(account, epoch, missing, room)
                missing = account.missing

    def drain(self, account: Account) -> Iterator[Any]:
        """Yield what the steps have found that are still under way."""
        while self._under_way:
            yield from self._take_in(account)

    def _pass(
        self,
        account: Account,
        epoch: int,
        missing: list[list[int]] | None,
        room: Callable[[], int] | None,
    ) -> Iterator[Any]:
        import tensorflow as tf

        make = functools.partial(self._data.numbered, epoch, missing)
        iterator = iter(self._coordinator.create_per_worker_dataset(make))
        account.begin_pass()
        while not account.is_done:
            begin = tf.constant(account.begin, tf.int64)
            most = min(self._most, room() if room is not None else self._most)
            while len(self._under_way) < most and not account.is_pass_over:
                step = self._coordinator.schedule(self._step, args=(iterator, begin))
                self._under_way.append(step)
            if not self._under_way:
                return
            yield from self._take_in(account)
        for _ in self.drain(account):  # batches that came again, to workers that were too late
            pass

    def _take_in(self, account: Account) -> Iterator[Any]:
        """Take the oldest step in that is under way."""
        found = fetch(self._under_way.popleft())
        if found is None:  # a batch that isn't known to be done comes again
            return
        worker, number, life, values = found
        if account.take(int(worker), int(number), int(life)):
            self._idle = 0
            yield values
            return
        self._idle += 1
        if self._idle > self._most:
            time.sleep(_PAUSE)

    _idle = 0


def _one(step: Callable[[Any], Any], nothing: Callable[[], Any], iterator: Any, begin: Any) -> Any:
    """Make a step on a worker's next batch that isn't done; traced by the chief."""
    import tensorflow as tf

    worker, life, number, batch = next(iterator)

    def is_done(number: Any, batch: Any) -> Any:
        del batch
        return (number >= 0) & (number < begin[worker])

    def following(number: Any, batch: Any) -> Any:
        del number, batch
        return next(iterator)[2:]

    number, batch = tf.while_loop(is_done, following, (number, batch))
    return worker, number, life, tf.cond(number >= 0, lambda: step(batch), nothing)
