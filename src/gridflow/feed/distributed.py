"""The dataset of a mirrored strategy, with what a plain ``tf.data.Dataset`` has besides."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tensorflow.python.distribute import input_lib  # tf_keras knows datasets by this class alone

from gridflow.feed.once import chain
from gridflow.spec.options import whole_number

if TYPE_CHECKING:
    from collections.abc import Callable

    from gridflow.feed.dataset import Source


class FedDataset(input_lib.DistributedDatasetsFromFunction):  # type: ignore[misc]
    """Batches of this rank, one for each of its replicas in a step; an epoch for each iteration."""

    _source: Source
    _again: Callable[[Source], Any]

    def __len__(self) -> int:
        """Return the steps of an epoch, the same on all ranks."""
        return int(self._cardinality)

    def map(self, function: Callable[..., Any]) -> Any:
        """Return a dataset whose batches went through a function.

        Parameters
        ----------
        function : callable
            As for ``tf.data.Dataset.map``: it is given ``x``, ``x, y`` or ``x, y, sample_weight``
            of a batch, that of one replica where there are several.
        """
        before = self._source.function
        return self._again(replace(self._source, function=chain(before, function)))

    def take(self, steps: int) -> Any:
        """Return a dataset of the first steps of each epoch."""
        steps = min(whole_number("steps", steps, 1), len(self))
        return self._again(replace(self._source, first_steps=steps))


def distributed(
    strategy: Any, source: Source, prefetch: int, again: Callable[[Source], Any]
) -> FedDataset:
    """Return the dataset of a source; ``again`` makes one like it of another source."""
    found: Any = strategy.distribute_datasets_from_function(lambda _: source.dataset(prefetch))
    if source.replicas > 1 and not source.endless:
        # TensorFlow reports the elements of the inner dataset, of which a step takes one for each
        # replica; Keras would go on past the end.
        found._cardinality //= source.replicas  # noqa: SLF001
    found.__class__ = FedDataset
    found._source, found._again = source, again  # noqa: SLF001
    return found  # type: ignore[no-any-return]
