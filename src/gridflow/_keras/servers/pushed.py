"""Rows pushed to the chief of parameter servers, which distributes them step by step.

The workers' servers run no Python, so a worker can't receive rows by itself. The chief's agent
does; the chief makes batches and sends each one with its step. It keeps a batch until its step is
acknowledged: if its worker dies, another one gets it. So each row is trained on at least once,
whichever workers die. A worker may die after it has updated the model and before this is known:
such rows are trained on twice, and the ledger counts them as repeated.
"""

from __future__ import annotations

import contextlib
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, cast

from gridflow._feed.dataset import source
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
    """The result of ``ctx.stream`` on the chief of parameter servers, for one ``ctx.fit``."""

    source: StreamSource

    @property
    def spec(self) -> Any:
        import tensorflow as tf

        windows = source.signature(self.source.selection.tensors, None)
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
    """Schedules the batches of a stream as steps, and collects their results.

    `model`: Built, with its optimizer.
    """

    def __init__(
        self, coordinator: Any, model: Any, rows: PushedRows, steps: Steps, every: Any
    ) -> None:
        self._coordinator, self._model = coordinator, model
        self._steps, self._every = steps, every
        self._under_way: deque[Any] = deque()
        #: Rows of each step that was scheduled again.
        self._again: list[int] = []
        self._records: list[dict[str, Any]] = []
        self._tell = rows.source.on_epoch
        self._source = replace(rows.source, on_epoch=self._records.append)
        self._done = 0

    def train(self, first: int, most: int, checkpoint_every: int | None) -> None:
        """Run the steps of the stream from its current position to its end.

        `first`: Steps completed before.
        `most`: Maximum steps in progress.
        `checkpoint_every`: Steps after which to wait until none is in progress.
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
        """Yield the batches, and collect steps while there is no batch."""
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
        """Collect all steps; then wait for rows or for the stream's end."""
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
        """Note that a step is scheduled again; called from any thread."""
        import tensorflow as tf

        del worker
        self._again.append(int(tf.nest.flatten(given[0])[0].shape[0]))

    def _account(self, more: int) -> None:
        """Report what was fed, given the number of updates in excess of steps.

        A step whose worker died may already have updated the model. Only the number of such steps
        is known; if repeated steps differ, it isn't known which they were.
        """
        twice = sum(sorted(self._again, reverse=True)[: max(0, more)])
        for record in self._records:
            for name in _REPEATED:
                record[name] += twice
            if self._tell is not None:
                self._tell(record)
