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

from gridflow._keras.patches import private_parts
from gridflow._keras.servers.steps import fetch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gridflow._keras.servers.account import Account
    from gridflow._keras.servers.data import WorkerDataset

#: Seconds between steps while only workers take them that have nothing left.
_PAUSE: Final = 0.05
#: Times the steps under way that every worker must have left for one to be made without a look.
_MARGIN: Final = 3


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
        self._step, self._sure_step = (
            tf.function(functools.partial(one, step, nothing), autograph=False)
            for one in (_one, _sure_one)
        )
        self._under_way: deque[Any] = deque()
        self._idle = 0

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
        with private_parts.hearing_of_repeats(
            self._coordinator, lambda worker, _: account.lose(worker)
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
                # Steps that are put back go to somebody else, who has one more to make then.
                is_sure = account.sure > _MARGIN * self._most
                step = self._sure_step if is_sure else self._step
                self._under_way.append(self._coordinator.schedule(step, args=(iterator, begin)))
            if not self._under_way:
                return
            yield from self._take_in(account)
        for _ in self.drain(account):  # batches that came again, to workers that were too late
            pass

    def _take_in(self, account: Account) -> Iterator[Any]:
        """Take the oldest step in that is under way."""
        found = fetch(self._under_way.popleft())
        if found is None:
            account.lose()
            return
        worker, number, life, values = found
        if account.take(int(worker), int(number), int(life)):
            self._idle = 0
            yield values
            return
        self._idle += 1
        if self._idle > self._most:
            time.sleep(_PAUSE)


def _next(iterator: Any, begin: Any) -> Any:
    """Return worker, number, life and batch: the worker's next one that isn't done."""
    import tensorflow as tf

    worker, life, number, batch = next(iterator)

    def is_done(number: Any, batch: Any) -> Any:
        del batch
        return (number >= 0) & (number < begin[worker])

    def following(number: Any, batch: Any) -> Any:
        del number, batch
        return next(iterator)[2:]

    number, batch = tf.while_loop(is_done, following, (number, batch))
    return worker, number, life, batch


def _one(step: Callable[[Any], Any], nothing: Callable[[], Any], iterator: Any, begin: Any) -> Any:
    """Make a step if the worker has a batch left; traced by the chief.

    A condition costs a message for each operation on a parameter server that waits for it, which
    made small steps take twice the time.
    """
    import tensorflow as tf

    worker, number, life, batch = _next(iterator, begin)
    return worker, number, life, tf.cond(number >= 0, lambda: step(batch), nothing)


def _sure_one(
    step: Callable[[Any], Any], nothing: Callable[[], Any], iterator: Any, begin: Any
) -> Any:
    """Make a step on the batch that the worker is known to have."""
    import tensorflow as tf

    del nothing
    worker, number, life, batch = _next(iterator, begin)
    has_one = tf.debugging.assert_greater_equal(number, tf.zeros((), number.dtype))
    with tf.control_dependencies([has_one]):
        batch = tf.nest.map_structure(tf.identity, batch)
    return worker, number, life, step(batch)
