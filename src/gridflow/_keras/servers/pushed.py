"""Rows that are pushed to the chief of parameter servers, and dealt out by it step by step.

No Python lives in the workers' servers, so a worker can't take rows in by itself. The chief's agent
does; the chief makes batches of them and hands each out with its step. It keeps a batch until its
step is acknowledged: where the worker dies that has it, another one gets it. So each row is trained
on at least once, whichever workers die. A worker may die when it has updated the model, and before
that is known: such rows are trained on twice, and the ledger counts them as repeated.
"""

from __future__ import annotations

import contextlib
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, cast

from gridflow._feed.dataset import ragged
from gridflow._keras.patches import private_parts
from gridflow._keras.patches.hooks import incremental
from gridflow._keras.servers.steps import fetch, updates

if TYPE_CHECKING:
    from collections.abc import Generator

    from gridflow._feed.dataset.stream import StreamSource
    from gridflow._keras.servers.steps import Steps

_REPEATED: Final = ("rows_fed", "rows_repeated")


@dataclass(frozen=True)
class PushedRows:
    """What ``ctx.stream`` returns to the chief of parameter servers: for one ``ctx.fit``.

    Attributes
    ----------
    source : StreamSource
    """

    source: StreamSource

    @property
    def spec(self) -> Any:
        """What its batches look like."""
        import tensorflow as tf

        windows = ragged.signature(self.source.selection.tensors, None)
        batches = [tf.TensorSpec(window.shape[1:], window.dtype) for window in windows]
        packed = self.source.selection.pack(batches)
        if self.source.function is None:
            return packed
        function = tf.function(self.source.function, autograph=False)
        made = function.get_concrete_function(*(packed if isinstance(packed, tuple) else (packed,)))
        return tf.nest.map_structure(
            lambda one: tf.TensorSpec(one.shape, one.dtype), made.structured_outputs
        )


class Dealer:
    """Hands the batches of a stream out as steps, and takes the steps in.

    Parameters
    ----------
    coordinator : tf.distribute.coordinator.ClusterCoordinator
    model
        Built, with its optimizer.
    rows : PushedRows
    steps : Steps
    every : CallbackList
    """

    def __init__(
        self, coordinator: Any, model: Any, rows: PushedRows, steps: Steps, every: Any
    ) -> None:
        self._coordinator, self._model = coordinator, model
        self._steps, self._every = steps, every
        self._under_way: deque[Any] = deque()
        #: Rows of each step that was handed out again.
        self._again: list[int] = []
        self._records: list[dict[str, Any]] = []
        self._tell = rows.source.on_epoch
        self._source = replace(rows.source, on_epoch=self._records.append)
        self._done = 0

    def train(self, first: int, most: int, checkpoint_every: int | None) -> None:
        """Make the steps of the stream from its present place to its end.

        Parameters
        ----------
        first : int
            Steps that were made before.
        most : int
            Steps that may be under way.
        checkpoint_every : int or None
            Steps after which none is under way for a moment.
        """
        handed_out = self._done = first
        before, more = updates(self._model), 0
        batches = self._batches()
        try:
            with private_parts.hearing_of_repeats(self._coordinator, self._heard):
                for batch in batches:
                    while len(self._under_way) >= most:
                        self._take_in()
                    if checkpoint_every and not handed_out % checkpoint_every:
                        self._take_all_in()
                    if self._model.stop_training:
                        break
                    self._every.on_train_batch_begin(handed_out)
                    step = self._coordinator.schedule(self._steps.train_on, args=(batch,))
                    self._under_way.append(step)
                    handed_out += 1
                self._take_all_in()
            more = updates(self._model) - before - (self._done - first)
        finally:
            batches.close()
            self._account(more)

    def _batches(self) -> Generator[Any, None, None]:
        """Yield the batches, and take steps in while there is none."""
        import tensorflow as tf

        source = self._source
        with contextlib.closing(cast("Generator[Any, None, None]", source.epoch())) as windows:
            for arrays in windows:
                for batch in zip(*arrays, strict=True):
                    packed = source.selection.pack([tf.convert_to_tensor(each) for each in batch])
                    if source.function is not None:
                        packed = source.function(
                            *(packed if isinstance(packed, tuple) else (packed,))
                        )
                    yield packed
                if not len(arrays[0]):
                    self._pass_time()

    def _pass_time(self) -> None:
        """Take all steps in; then wait for rows, or for the stream's end."""
        self._take_all_in()
        incremental.has_step(self._source, self._done)

    def _take_all_in(self) -> None:
        while self._under_way:
            self._take_in()

    def _take_in(self) -> None:
        found = fetch(self._under_way.popleft())
        if found is not None:
            self._steps.add(found)
        self._source.progress.steps += 1
        self._every.on_train_batch_end(self._done, self._steps.logs())
        self._done += 1

    def _heard(self, worker: int, given: tuple[Any, ...]) -> None:
        """Take note that a step is handed out again, from whichever thread."""
        import tensorflow as tf

        del worker
        self._again.append(int(tf.nest.flatten(given[0])[0].shape[0]))

    def _account(self, more: int) -> None:
        """Pass on what was fed; there were so many updates more than steps.

        A step whose worker died may have updated the model before: that is known of how many of
        those that were made again, and if they aren't alike not of which.
        """
        twice = sum(sorted(self._again, reverse=True)[: max(0, more)])
        for record in self._records:
            for name in _REPEATED:
                record[name] += twice
            if self._tell is not None:
                self._tell(record)
