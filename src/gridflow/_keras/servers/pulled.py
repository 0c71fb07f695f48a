"""Steps on the rows of ``run(data=…)`` with parameter servers: each row once.

A step goes to any free worker, which takes the next batch of its own rows and says which one it
was. So the chief knows what is done, and which workers have nothing left. A restarted worker skips
what is done. If a batch is lost without its worker, the workers read the missing batches in another
pass.
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

#: Seconds between steps while only workers that have nothing left take them.
_PAUSE: Final = 0.05
#: Multiple of the steps in progress that every worker must have left to skip the check.
_MARGIN: Final = 3


class Puller:
    """Runs steps on a dataset.

    `step`: Traced by the chief: runs a step on a batch, and returns its result.
    `nothing`: Returns the result for no rows.
    `most`: Maximum steps in progress.
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
        """Yield the result of each step on a missing batch, until none is missing.

        Callers that stop earlier must call `drain`.

        `epoch`: Determines the order of shuffled rows.
        `room`: Returns how many steps may currently be in progress; at least one.
        """
        with private_parts.hearing_of_repeats(
            self._coordinator, lambda worker, _: account.lose(worker)
        ):
            missing = None
            while not account.is_done:
                yield from self._pass(account, epoch, missing, room)
                missing = account.missing

    def drain(self, account: Account) -> Iterator[Any]:
        """Yield the results of the steps still in progress."""
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
                # Steps that are put back go to another worker, which then runs one more.
                is_sure = account.sure > _MARGIN * self._most
                step = self._sure_step if is_sure else self._step
                self._under_way.append(self._coordinator.schedule(step, args=(iterator, begin)))
            if not self._under_way:
                return
            yield from self._take_in(account)
        for _ in self.drain(account):  # duplicate batches of workers that were too late
            pass

    def _take_in(self, account: Account) -> Iterator[Any]:
        """Collect the oldest step in progress."""
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
    """Return worker, number, life and batch of the worker's next unfinished batch."""
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
    """Run a step if the worker has a batch left; traced by the chief.

    The condition costs a message for each operation on a parameter server that waits for it, which
    doubles the time of small steps.
    """
    import tensorflow as tf

    worker, number, life, batch = _next(iterator, begin)
    return worker, number, life, tf.cond(number >= 0, lambda: step(batch), nothing)


def _sure_one(
    step: Callable[[Any], Any], nothing: Callable[[], Any], iterator: Any, begin: Any
) -> Any:
    """Run a step on the batch that the worker is known to have."""
    import tensorflow as tf

    del nothing
    worker, number, life, batch = _next(iterator, begin)
    has_one = tf.debugging.assert_greater_equal(number, tf.zeros((), number.dtype))
    with tf.control_dependencies([has_one]):
        batch = tf.nest.map_structure(tf.identity, batch)
    return worker, number, life, step(batch)
