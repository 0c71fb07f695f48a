"""``fit`` over rows that are still arriving: the data are asked for each step.

Keras gets an epoch's length from its data once, before training, or finds it by running out of
data. Here the length becomes known during the epoch, the same on all ranks. So the data are asked
before each step whether there is one, outside any operation: a rank that waits for rows waits
there, and so do its peers, at the same step.
"""

from __future__ import annotations

import sys
import weakref
from typing import TYPE_CHECKING, Any, Final

from gridflow._feed.dataset.source import source_of
from gridflow._feed.dataset.stream import StreamSource
from gridflow.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gridflow._feed.dataset.epochs import EpochSource
    from gridflow._feed.dataset.source import Source

#: Longer waits are reported: no step is expected until they are over.
_PATIENCE_SECONDS: Final = 1.0
_MODEL: Final = "_gridflow_model"
_OVER: Final = "_gridflow_over"
_listeners: list[Callable[[bool], None]] = []
_savers: list[Callable[[], None]] = []


def keep_model(data: Any, model: Any) -> None:
    """Remember the model of a starting fit in its data."""
    model.__dict__.pop(_OVER, None)
    data.__dict__[_MODEL] = weakref.ref(model)


def model_of(data: Any) -> Any:
    """Return the model that is trained on a fit's data, or None if unknown."""
    found = data.__dict__.get(_MODEL)
    return None if found is None else found()


def listen(listener: Callable[[bool], None]) -> None:
    """Call a listener when a fit starts to wait for rows (True) and has got them (False)."""
    _listeners[:] = [listener]


def coming_steps(data: Any, first: int = 0) -> Iterator[int] | None:
    """Return the steps of an epoch one by one, or None if their number is known.

    `first`: The step with which the epoch continues.
    Raises `InvalidArgument`: The fit needs another kind of steps.
    """
    source = _source_of(data)
    if source is None or data._num_batches:
        return None
    if isinstance(source, StreamSource):
        _refuse_many_at_once(data, "ctx.stream()", "")
        return _asked(data, source, first)
    if data.steps_per_epoch:
        raise InvalidArgument(
            f"steps_per_epoch={data.steps_per_epoch} is for data of known length; with "
            "ctx.dataset(start='early') an epoch takes all rows, however many arrive. Leave it "
            "out, or use ctx.dataset(…).take(steps)."
        )
    _refuse_many_at_once(data, "ctx.dataset(start='early')", ", or use start='complete'")
    if source.counter.pending[0]:  # not the first epoch, so it uses all rows
        has_step(source, sys.maxsize)
        data._num_batches = source.steps_if_known()
        return None
    return _asked(data, source, first)


def iterator_of(data: Any) -> Any:
    """Return the iterator of an epoch: a new one, except for a stream."""
    source = _source_of(data)
    if not isinstance(source, StreamSource):
        return iter(data._get_iterator())
    if source.progress.iterator is None:
        source.progress.iterator = iter(data._get_iterator())
    return source.progress.iterator


def goes_on(data: Any) -> bool:
    """Return whether the data of a fit resume at a checkpoint by themselves."""
    return isinstance(_source_of(data), StreamSource)


def _source_of(data: Any) -> EpochSource | StreamSource | None:
    """Return the source of a fit's data if its steps aren't known in advance, else None."""
    return _unfixed(getattr(data, "_distributed_dataset", None))


def _unfixed(dataset: object) -> EpochSource | StreamSource | None:
    source: Any = source_of(dataset)
    return None if source is None or source.grant.is_fixed else source


def _refuse_many_at_once(data: Any, what: str, otherwise: str) -> None:
    if data.steps_per_execution != 1:
        raise InvalidArgument(
            f"steps_per_execution={data.steps_per_execution} runs several steps at once, but with "
            f"{what} each step may have to wait for its rows. Compile the model without it"
            f"{otherwise}."
        )


def refuse(data: object) -> None:
    """Reject a dataset whose rows are still arriving, for tf_keras."""
    if _unfixed(data) is not None:
        raise InvalidArgument(
            "ctx.dataset(start='early') is for Keras 3: tf_keras must know the number of steps "
            "before an epoch starts. Use start='complete'."
        )


def known_steps(data: Any) -> int | None:
    """Return the steps per epoch of a fit over such data, or None if unknown or different.

    Keras tells its callbacks the length that it knew at the beginning.
    """
    if _source_of(data) is None:
        return None
    steps: int | None = data._num_batches
    return steps


def _asked(data: Any, source: Source, first: int) -> Iterator[int]:
    """Yield the steps of an epoch until they end, or the fit has enough."""
    step = first
    while not data.steps_per_epoch or step < data.steps_per_epoch:
        is_there = has_step(source, step)
        data._num_batches = source.steps_if_known()
        if not is_there:
            if isinstance(source, StreamSource):
                _end(model_of(data), is_empty=step == first)
            return
        with source.step_of_fit():
            yield step
        step += 1


def _end(model: Any, *, is_empty: bool) -> None:
    """End a fit: no later epoch has a step.

    That an epoch is empty is known only after its start: all ranks start it, because none knows
    more than the others. It isn't recorded in the History.
    """
    if model is None:
        return
    model.stop_training = True
    if is_empty:
        object.__setattr__(model, _OVER, True)
        model.history.on_epoch_end = lambda *_, **__: None


def is_empty(model: Any) -> bool:
    """Return whether the fit is in an epoch that turned out to have no step."""
    return bool(model.__dict__.get(_OVER))


def at_sections(save: Callable[[], None] | None) -> None:
    """Save a checkpoint whenever a fit has trained on all rows of a stream's section."""
    _savers[:] = [] if save is None else [save]


def save_section() -> bool:
    """Save that checkpoint; return whether there is somebody who does."""
    for save in _savers:
        save()
    return bool(_savers)


def has_step(source: Source, step: int) -> bool:
    """Return whether there is another step; wait for it, and report long waits."""
    known = source.has_step(step, _PATIENCE_SECONDS)
    if known is not None:
        return known
    for listener in _listeners:
        listener(True)
    known = source.has_step(step)
    for listener in _listeners:
        listener(False)
    return bool(known)
