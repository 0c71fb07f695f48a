"""Rows of ``run(data=…)`` that the workers of parameter servers read, each once in an epoch.

A worker deals its own rows out in numbered batches. A parameter server keeps the account: for each
worker the batch that was begun last, and how many are done. A step writes into it before its update
and after. So a worker that dies and is started again, whose batches come from their beginning, goes
on behind the last one that is done. What it had in its hands comes again, and may have updated the
model before.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from gridflow.feed.ledger import EpochRecord
from gridflow.keras.servers.steps import fetch

if TYPE_CHECKING:
    from collections.abc import Callable

    from gridflow.keras.servers.data import WorkerDataset
    from gridflow.keras.servers.steps import Steps

#: Rows of the account.
_BEGUN, _DONE = 0, 1
#: Seconds between steps while only workers take them that have nothing left.
_PAUSE: Final = 0.05


class Puller:
    """Makes the steps of epochs of a dataset.

    Parameters
    ----------
    coordinator : tf.distribute.coordinator.ClusterCoordinator
    model
        Built, with its optimizer.
    data : WorkerDataset
    steps : Steps
    most : int
        Steps that may be under way.
    """

    def __init__(
        self, coordinator: Any, model: Any, data: WorkerDataset, steps: Steps, most: int
    ) -> None:
        import tensorflow as tf

        self._coordinator, self._model, self._data = coordinator, model, data
        self._steps, self._most = steps, most
        counter = model.optimizer.iterations
        native = counter if isinstance(counter, tf.Variable) else counter.value
        extended = coordinator.strategy.extended
        with coordinator.strategy.scope(), extended.colocate_vars_with(native):
            shape = (2, len(data.own_rows))
            self._account = tf.Variable(tf.zeros(shape, tf.int64), trainable=False)
        self._step = tf.function(self._one, autograph=False)
        self._under_way: deque[Any] = deque()
        self._made = self._idle = 0
        self._fed: list[int] = []
        #: Rows and worker of each step that was begun twice.
        self._again: list[tuple[int, int]] = []

    def train(self, epoch: int, first: int, every: Any, next_stop: Callable[[int], int]) -> None:
        """Make the steps of an epoch, from one on.

        Parameters
        ----------
        epoch, first : int
        every : CallbackList
        next_stop : callable
            Returns, of a step, before which of the next ones none may be under way.
        """
        data, model = self._data, self._model
        self._account.assign(self._account * 0)
        iterator = iter(self._coordinator.create_per_worker_dataset(lambda: data.epoch(epoch)))
        self._made = begun = first
        self._fed, self._again = [0] * len(data.own_rows), []
        updates = self._updates()
        while self._made < data.steps and not model.stop_training:
            until = min(data.steps, next_stop(self._made))
            while self._made + len(self._under_way) < until and len(self._under_way) < self._most:
                if self._made + len(self._under_way) == begun:
                    every.on_train_batch_begin(begun)
                    begun += 1
                step = self._coordinator.schedule(self._step, args=(iterator,))
                self._under_way.append(step)
            self._take_in(first, every)
        while self._under_way:
            self._take_in(first, every)
        more = self._updates() - updates - (self._made - first)
        self._tell(epoch, more, complete=not first and self._made >= data.steps)

    def _updates(self) -> int:
        """Return how many updates the model has had, of which each step makes one."""
        return int(self._model.optimizer.iterations.numpy())

    def _take_in(self, first: int, every: Any) -> None:
        """Take the oldest step in that is under way."""
        found = fetch(self._under_way.popleft())
        if found is None:  # of which nothing is known but what the account says
            while self._under_way:
                self._take_in(first, every)
            done = int(self._account.numpy()[_DONE].sum())
            while self._made - first < done:
                self._end_step(every)
            return
        worker, rows, is_again, values = found
        self._idle = 0 if int(rows) else self._idle + 1
        if not int(rows):  # the worker has nothing left, or this one is done
            if self._idle > self._most:
                time.sleep(_PAUSE)
            return
        self._steps.add(values)
        self._fed[int(worker)] += int(rows)
        if is_again:
            self._again.append((int(rows), int(worker)))
        self._end_step(every)

    def _end_step(self, every: Any) -> None:
        every.on_train_batch_end(self._made, self._steps.logs())
        self._made += 1

    def _tell(self, epoch: int, more: int, *, complete: bool) -> None:
        """Pass on what the workers were fed; there were so many updates more than steps.

        Of a step that was begun twice it isn't known whether it had updated the model at first,
        only of how many.
        """
        data = self._data
        repeated = [0] * len(self._fed)
        for rows, worker in sorted(self._again, reverse=True)[: max(0, more)]:
            repeated[worker] += rows
        for worker, twice in enumerate(repeated):
            own = data.own_rows[worker]
            fed, lent = (own, data.rows[worker] - own) if complete else (self._fed[worker], 0)
            record = EpochRecord(
                data.name, worker, epoch, fed + twice, twice, lent, complete=complete
            )
            if data.on_epoch is not None:
                data.on_epoch(record.to_dict())

    def _one(self, iterator: Any) -> Any:
        """Make a step; traced by the chief and run by a worker."""
        import tensorflow as tf

        worker, number, batch = next(iterator)
        with tf.device(self._account.device):  # all at once, on the way to there and back
            before = tf.gather(self._account.read_value(), worker, axis=1)
            now = tf.maximum(before[_BEGUN], number + 1)
            mark = self._account.scatter_nd_update([[_BEGUN, worker]], [now])
            with tf.control_dependencies([mark]):
                begun, done = tf.unstack(tf.identity(before), 2)

        def train() -> Any:
            rows = tf.shape(tf.nest.flatten(batch)[0])[0]
            graph = tf.compat.v1.get_default_graph()
            first = len(graph.get_operations())
            values = self._steps.step(batch)
            with tf.control_dependencies(graph.get_operations()[first:]):
                self._account.scatter_nd_update([[_DONE, worker]], [number + 1])
            return worker, rows, begun > number, values

        def leave() -> Any:
            return worker, 0, False, self._steps.nothing()

        return tf.cond((number >= 0) & (number >= done), train, leave)
