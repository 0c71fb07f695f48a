"""``fit`` over rows that still arrive: each step of the epoch is asked for.

Keras takes an epoch's length from its data once, before it trains, or finds it out by running out
of data. Here the length comes to be known on the way, the same on all ranks. So the data are asked
before each step whether there is one, outside of any operation: a rank that waits for rows waits
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

#: A wait that is longer is told: no step is to be expected until it is over.
_PATIENCE_SECONDS: Final = 1.0
_MODEL: Final = "_gridflow_model"
_OVER: Final = "_gridflow_over"
_listeners: list[Callable[[bool], None]] = []
_savers: list[Callable[[], None]] = []


def keep_model(data: Any, model: Any) -> None:
    """Let the data of a fit that begins know their model."""
    model.__dict__.pop(_OVER, None)
    data.__dict__[_MODEL] = weakref.ref(model)


def model_of(data: Any) -> Any:
    """Return the model that is trained on the data of a fit, None if it isn't known."""
    found = data.__dict__.get(_MODEL)
    return None if found is None else found()


def listen(listener: Callable[[bool], None]) -> None:
    """Tell a listener whenever a fit begins to wait for rows (True), and has got them (False)."""
    _listeners[:] = [listener]


def coming_steps(data: Any, first: int = 0) -> Iterator[int] | None:
    """Return the steps of an epoch of a fit one by one, None where their number is known.

    Parameters
    ----------
    data : keras.src.trainers.epoch_iterator.EpochIterator
    first : int
        The step that the epoch goes on with.

    Raises
    ------
    InvalidArgument
        The fit wants steps of another kind.
    """
    source = _source_of(data)
    if source is None or data._num_batches:
        return None
    if isinstance(source, StreamSource):
        _refuse_many_at_once(data, "ctx.stream()", "")
        return _asked(data, source, first)
    if data.steps_per_epoch:
        raise InvalidArgument(
            f"steps_per_epoch={data.steps_per_epoch} is for data whose length is known; with "
            "ctx.dataset(start='early') an epoch takes all rows, however many will come. Leave it "
            "out, or use ctx.dataset(…).take(steps)."
        )
    _refuse_many_at_once(data, "ctx.dataset(start='early')", ", or use start='complete'")
    if source.counter.pending[0]:  # not the first epoch: it takes all rows
        has_step(source, sys.maxsize)
        data._num_batches = source.steps_if_known()
        return None
    return _asked(data, source, first)


def iterator_of(data: Any) -> Any:
    """Return the iterator that an epoch of a fit draws from: a new one, but for a stream's."""
    source = _source_of(data)
    if not isinstance(source, StreamSource):
        return iter(data._get_iterator())
    if source.progress.iterator is None:
        source.progress.iterator = iter(data._get_iterator())
    return source.progress.iterator


def goes_on(data: Any) -> bool:
    """Return whether the data of a fit begin by themselves where a checkpoint was made."""
    return isinstance(_source_of(data), StreamSource)


def _source_of(data: Any) -> EpochSource | StreamSource | None:
    """Return the source of the data of a fit whose steps aren't known before, None of any other."""
    return _unfixed(getattr(data, "_distributed_dataset", None))


def _unfixed(dataset: object) -> EpochSource | StreamSource | None:
    source: Any = source_of(dataset)
    return None if source is None or source.grant.is_fixed else source


def _refuse_many_at_once(data: Any, what: str, otherwise: str) -> None:
    if data.steps_per_execution != 1:
        raise InvalidArgument(
            f"steps_per_execution={data.steps_per_execution} makes several steps at once, and with "
            f"{what} each one may have to wait for its rows. Compile the model without it"
            f"{otherwise}."
        )


def refuse(data: object) -> None:
    """Refuse a dataset whose rows still arrive, in the name of tf_keras."""
    if _unfixed(data) is not None:
        raise InvalidArgument(
            "ctx.dataset(start='early') is for Keras 3: tf_keras has to know the steps of an epoch "
            "before it trains. Use start='complete'."
        )


def known_steps(data: Any) -> int | None:
    """Return the steps of the epochs of a fit over such data, None if they aren't known or others.

    Keras tells its callbacks the length that it knew at the beginning.
    """
    if _source_of(data) is None:
        return None
    steps: int | None = data._num_batches
    return steps


def _asked(data: Any, source: Source, first: int) -> Iterator[int]:
    """Yield the steps of an epoch until they end, or it has as many as the fit wants."""
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
    """Let a fit end: no epoch that comes has a step.

    That an epoch has none is known when it has begun: all ranks begin it, as none may know more
    than the others. It leaves nothing in the History.
    """
    if model is None:
        return
    model.stop_training = True
    if is_empty:
        object.__setattr__(model, _OVER, True)
        model.history.on_epoch_end = lambda *_, **__: None


def is_empty(model: Any) -> bool:
    """Return whether the fit of a model is in an epoch that turned out to have no step."""
    return bool(model.__dict__.get(_OVER))


def at_sections(save: Callable[[], None] | None) -> None:
    """Let a fit's checkpoint be made whenever all rows of a stream's section were trained on."""
    _savers[:] = [] if save is None else [save]


def save_section() -> bool:
    """Make that checkpoint; return whether somebody does."""
    for save in _savers:
        save()
    return bool(_savers)


def has_step(source: Source, step: int) -> bool:
    """Return whether a step comes; waits for it, and tells a long wait."""
    known = source.has_step(step, _PATIENCE_SECONDS)
    if known is not None:
        return known
    for listener in _listeners:
        listener(True)
    known = source.has_step(step)
    for listener in _listeners:
        listener(False)
    return bool(known)
