"""Keras 3 on other backends than TensorFlow, through the interfaces Keras has on all backends."""

from __future__ import annotations

import importlib
import zlib
from typing import TYPE_CHECKING, Any

from gridflow._keras.patches import private_parts
from gridflow._training.groups import base
from gridflow._training.modes.base import Mode
from gridflow.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gridflow._feed.dataset.stream import StreamSource
    from gridflow._training.modes.base import DatasetRequest
    from gridflow._training.process import TaskProcess


class Neutral(Mode):
    """One model on all ranks, in a group of the backend, or one model on each rank."""

    def __init__(self, process: TaskProcess) -> None:
        super().__init__(process)
        backend = process.training.backend
        self._group: Any = importlib.import_module(f"gridflow._training.groups.{backend}")

    def begin(self) -> None:
        """Wait for all ranks."""
        self.strategy  # noqa: B018 (made now)

    def make_strategy(self) -> base.SynchronousStrategy:
        """Return the stand-in for a strategy. Imports Keras.

        With ``strategy="none"`` and with a single worker there is no group to join.
        """
        process = self._process
        together = process.facts.exchanges_gradients
        if together and process.num_workers > 1:
            base.choose_interface(base.address(process.cluster_spec, process.rank)[0])
            self._group.join(process, process.spec.start_timeout)
        # The same on all ranks: initial weights aren't sent.
        seed = process.training.seed
        if seed is None:
            seed = zlib.crc32(process.setup.job.encode())
        private_parts.set_random_seed(seed)
        return base.SynchronousStrategy(self._group.spread(process.num_workers) if together else 1)

    def dataset(self, request: DatasetRequest) -> Any:
        """Return a ``keras.utils.PyDataset`` of numpy arrays."""
        from gridflow._keras import array_data

        process = self._process
        if request.prefetch is not None:
            raise InvalidArgument(
                f"prefetch={request.prefetch} is for tf.data; with "
                f"backend={process.training.backend!r} batches are made on demand. Leave it out."
            )
        reader, options = request.reader(process), request.options(process)
        if request.gathered is not None:
            options["own_rows"] = [reader.rows]
        is_alone = request.gathered is not None or not process.facts.exchanges_gradients
        return array_data.make(
            reader,
            backend=process.training.backend,
            is_alone=is_alone,
            parts=None if is_alone else self._group.equal_parts(),
            **options,
        )

    def streams(self, *, together: bool) -> Callable[[StreamSource, int], tuple[Any, StreamSource]]:
        """Return a function that makes an iterator over arrays, for ranks that train alone."""
        if together:
            raise InvalidArgument(
                f"ctx.stream() with backend={self._process.training.backend!r} needs "
                "strategy='none': to train one model on several ranks, Keras must know the number "
                "of rows. Use backend='tensorflow', or ctx.dataset()."
            )
        return lambda source, _: (source.numpy_batches(), source)

    def trainer(self, model: Any) -> PlainTrainer:
        """Return a trainer that calls the model's own methods."""
        return PlainTrainer(model)

    def end(self) -> None:
        """Leave the group."""
        self._group.leave()


class PlainTrainer:
    """Calls ``model.fit`` and ``model.evaluate``.

    `model`: Of Keras 3, compiled.
    """

    def __init__(self, model: Any) -> None:
        self._model = model

    def fit(self, data: Any, *, validation: Any, callbacks: Sequence[Any], **options: Any) -> Any:
        """Train; see `TrainingContext.fit`."""
        return self._model.fit(
            data, validation_data=validation, callbacks=list(callbacks), **options
        )

    def evaluate(self, data: Any, *, steps: int | None) -> dict[str, float]:
        """Return losses and metrics by name."""
        found: dict[str, float] = self._model.evaluate(
            data, steps=steps, verbose=0, return_dict=True
        )
        return found


MODE = Neutral
