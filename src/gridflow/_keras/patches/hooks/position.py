"""The epochs of a ``fit``: where they start, and how long they are.

Keras 3's ``fit`` creates its epoch iterator itself and always counts from step 0. One hook makes
that iterator accessible (it passes through ``Model._maybe_symbolic_build``), another starts an
epoch at a later step. tf_keras supports both epoch and step
(``Model._maybe_load_initial_counters_from_ckpt``), but reads the data from the start.

On TensorFlow Keras 3 starts the data of each epoch twice, and finds an unknown length one too high;
here it does neither. Passes over data of TensorFlow's data service differ in length: how many
batches a rank gets, and how many rows the last batch of each data worker has. Keras takes the first
epoch's length for that of all others: it would end a longer one before its end, and says of a
shorter one that it ran out of data.
"""

from __future__ import annotations

import functools
import math
import sys
import weakref
from dataclasses import dataclass
from itertools import count
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from gridflow._keras.patches.hooks import incremental
from gridflow._keras.patches.methods import Layer, wrap
from gridflow._keras.patches.private_parts import inputs_of, module, part
from gridflow._keras.patches.registry import Hook, hooks_of
from gridflow._keras.results import FLAVOURS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from gridflow._feed.plan.epochs import EpochCounter

_ITERATOR = "_gridflow_epoch_iterator"
_START = "_gridflow_start"
_STEPS = "_gridflow_pass"
_ENDED = "_gridflow_ended"
#: The attribute in which TensorFlow's iterators keep their dataset.
_DATASET: Final = {"keras": "_distributed_dataset", "tf_keras": "_dataset"}


@dataclass(frozen=True)
class FitStart:
    """Where a fit resumes.

    `epoch`, `step`: The epoch, and its completed steps.
    `skip`: Batches to read and drop, for data that can't start elsewhere.
    `dealt`: Which rows are done, if that isn't the same number on each rank (`Held`).
    `ready`: Called when the data have come to that place.
    """

    epoch: int
    step: int
    skip: int = 0
    dealt: Mapping[str, Any] | None = None
    ready: Callable[[], None] = lambda: None

    def maybe_load_initial_counters_from_ckpt(
        self, steps_per_epoch: int | None, initial_epoch: int, mode: object
    ) -> tuple[int, int]:
        """Answer tf_keras, which asks its ``_training_state`` for this."""
        del steps_per_epoch, initial_epoch, mode
        return self.epoch, self.step


class Held:
    """Stands for the data of a fit that isn't Keras's own.

    `spec`: The spec of its batches.
    `dealt`: Returns which rows of the epoch are done, for a checkpoint.
    """

    dealt: Callable[[], dict[str, Any]] | None = None

    def __init__(self, spec: Any) -> None:
        dataset = SimpleNamespace(element_spec=spec)
        self._distributed_dataset = self._dataset = dataset


def hold(model: Any, data: Held) -> None:
    """Use these data for the fit that is about to start."""
    _keep(model, data)


def dealt(data: Any) -> dict[str, Any] | None:
    """Return which rows of the epoch are done, for a fit that isn't Keras's own."""
    found = getattr(data, "dealt", None)
    return found() if isinstance(data, Held) and found is not None else None


def where_to_begin(model: Any, flavour: str) -> FitStart:
    """Return where a fit that isn't Keras's own resumes, after its callbacks have started."""
    if flavour == "tf_keras":
        return _start_of(model) or FitStart(0, 0)
    data = data_of(model)
    epoch = getattr(model, "_initial_epoch", None) or 0
    start = data.__dict__.pop(_START, None) if data is not None else None
    return start if isinstance(start, FitStart) else FitStart(epoch, 0)


def install_imported() -> None:
    """Install the hooks in the imported flavours of Keras.

    Must run before ``fit``, which creates its iterators before its callbacks are called.
    """
    for flavour in FLAVOURS:
        if flavour in sys.modules:
            _install(flavour)


@functools.cache
def _install(flavour: str) -> None:
    if flavour == "keras":
        _install_keras3()
    else:
        _install_tf_keras()


def data_of(model: Any) -> Any:
    """Return the data iterator of the model's last fit (or evaluate)."""
    found = model.__dict__.get(_ITERATOR)
    return None if found is None else found()


def _start_of(model: Any) -> FitStart | None:
    """Return where a model of tf_keras starts its fit, if a callback has said so."""
    found = getattr(model, "_training_state", None)
    return found if isinstance(found, FitStart) else None


def has_ended(model: Any) -> bool:
    """Return whether only the end of an epoch was left of the fit's first one."""
    data = data_of(model)
    return data is not None and data.__dict__.pop(_ENDED, False)


def initial_epoch(model: Any) -> int:
    """Return the epoch at which a callback starts a fit, by default 0."""
    start = _start_of(model)
    if start is not None:
        return start.epoch
    return int(getattr(model, "_initial_epoch", None) or 0)


def begin_at(model: Any, flavour: str, start: FitStart) -> None:
    """Set the start of a fit that is about to begin its first epoch."""
    if flavour == "tf_keras":
        model._training_state = start
        return
    model._initial_epoch = start.epoch
    data = data_of(model)
    if data is not None and (start.step or start.skip):
        setattr(data, _START, start)
    else:
        start.ready()


def forget(model: Any, flavour: str) -> None:
    """Start the model's next fit at the beginning."""
    if flavour == "tf_keras":
        model._training_state = None
    else:
        # Keras never resets this: a second fit would skip its first epochs.
        model._initial_epoch = None


def element_spec(model: Any, flavour: str) -> Any:
    """Return the spec of one replica's batch in the last fit, or None if unknown."""
    data = data_of(model)
    if data is None or not hasattr(data, _DATASET[flavour]):
        return None
    return spec_of(getattr(data, _DATASET[flavour]))


def spec_of(dataset: Any) -> Any:
    """Return the spec of one replica's batch of a TensorFlow dataset."""
    import tensorflow as tf

    # A finite distributed dataset claims that its batches have any number of rows.
    known = getattr(dataset, "_element_spec", None) or dataset.element_spec
    return tf.nest.map_structure(lambda spec: getattr(spec, "_value_specs", [spec])[0], known)


def steps_of_a_pass(model: Any) -> int | None:
    """Return the steps of a pass over the data of the last fit, or None if it is an epoch.

    With ``steps_per_epoch`` it isn't: the data start over in the middle of an epoch.
    """
    found: int | None = model.__dict__.get(_STEPS)
    return found


def keep_pass(model: Any, steps: int | None) -> None:
    """Remember the steps of a pass over the data of a fit that is about to start."""
    object.__setattr__(model, _STEPS, steps)  # past Keras's __setattr__, which would track it


def batches_to_drop(model: Any, flavour: str, step: int, batches: int) -> int:
    """Return the number of batches that an epoch's iterator has returned before a step.

    These must be read again from data that can't start elsewhere. With ``steps_per_epoch`` an
    iterator spans epochs: Keras uses it until it ends.

    `step`, `batches`: Completed steps of the epoch and of the whole fit.
    """
    a_pass = steps_of_a_pass(model)
    if a_pass is not None:
        return batches % a_pass
    data = data_of(model)
    if flavour == "tf_keras":
        adapter = getattr(data, "_adapter", None)
        return step if adapter is None or adapter.should_recreate_iterator() else batches
    steps, known = getattr(data, "steps_per_epoch", None), getattr(data, "_num_batches", None)
    if not steps:
        return step
    return batches if known is None else batches % (math.ceil(known / steps) * int(steps))


def first_dimension(spec: Any) -> int | None:
    """Return the number of rows in a batch of this spec, or None if it isn't fixed."""
    import tensorflow as tf

    shapes = [getattr(leaf, "shape", None) for leaf in tf.nest.flatten(spec)]
    known = [s[0] for s in shapes if s is not None and s.rank is not None and s.rank > 0]
    return int(known[0]) if known and known[0] is not None else None


def batch_size(model: Any) -> int | None:
    """Return the batch size passed to Keras 3 for the last fit, or None."""
    adapter = getattr(data_of(model), "data_adapter", None)
    data = getattr(adapter, "py_dataset", None)  # gridflow's own datasets know theirs
    size = getattr(adapter, "batch_size", None) or getattr(data, "batch_size", None)
    return None if size is None else int(size)


def tell(counters: Sequence[EpochCounter], positions: Sequence[tuple[int, int]]) -> None:
    """Set the counters of the datasets."""
    for counter, (epoch, batch) in zip(counters, positions, strict=False):
        counter.set(epoch, batch)


def _keep(model: Any, data: Any) -> None:
    # Bypasses Keras's __setattr__, which would track it as a part of the model.
    object.__setattr__(model, _ITERATOR, weakref.ref(data))


def hook(flavour: str, epochs: Any) -> Hook:
    """Return the hook of a flavour on TensorFlow.

    `epochs`: The class of its epochs.
    """
    count = count_steps if flavour == "keras" else count_epochs
    return Hook("each epoch has the steps that its data have", lambda: count(epochs))


def _install_keras3() -> None:
    trainer, build_name, epochs = hooks_of("keras").FIT

    def build_with(build: Any, self: Any, iterator: Any = None, data_batch: Any = None) -> None:
        if iterator is not None:
            _keep(self, iterator)
            incremental.keep_model(iterator, self)
        build(self, iterator=iterator, data_batch=data_batch)

    wrap(trainer, build_name, build_with, Layer.POSITION)
    count_steps(epochs)


@functools.cache
def count_steps(epochs: Any) -> None:
    """Make a class of Keras 3's epochs start at a position, and ask for steps where it must."""

    def steps_from(enumerate_steps: Any, self: Any) -> Iterator[tuple[int, int, Any]]:
        if not self.steps_per_epoch and _is_served(getattr(self, _DATASET["keras"], None)):
            self._num_batches = None
            self._interrupted_warning = lambda: None
        start = self.__dict__.pop(_START, None)
        coming = incremental.coming_steps(self, 0 if start is None else start.step)
        is_right = self.steps_per_epoch or not _is_on_tensorflow(self)
        if start is None and coming is None and is_right:
            yield from enumerate_steps(self)
        else:
            yield from _from(self, start or FitStart(0, 0), coming)

    wrap(epochs, "_enumerate_iterator", steps_from, Layer.POSITION)


def _is_on_tensorflow(data: Any) -> bool:
    return hasattr(data, _DATASET["keras"])


def _from(
    data: Any, start: FitStart, coming: Iterator[int] | None
) -> Iterator[tuple[int, int, Any]]:
    """Yield the steps of an epoch from a position, or ask for them one by one."""
    data.data_adapter.on_epoch_begin()
    last = data.steps_per_epoch or data._num_batches
    if last and start.step >= last:
        setattr(data, _ENDED, True)
        start.ready()
        _end(data, is_of_pass=data.steps_per_epoch is None)
        return
    data._current_iterator = iterator = incremental.iterator_of(data)
    if not incremental.goes_on(data):
        for _ in range(start.skip):
            next(iterator)
    start.ready()
    stride = data.steps_per_execution
    steps = range(start.step, last, stride) if last else count(start.step, stride)
    seen = start.skip or start.step
    for step in coming or steps:
        seen += stride
        # Set before the step: if it finds no more data, this is the epoch's length. With
        # steps_per_epoch Keras keeps the iterator, and keeps counting across epochs.
        data._steps_seen = seen if data.steps_per_epoch else step
        yield step, step + stride - 1, iterator
    is_all = data._num_batches and seen >= data._num_batches
    _end(data, is_of_pass=bool(data.steps_per_epoch is None or is_all))


def _end(data: Any, *, is_of_pass: bool) -> None:
    """End an epoch, and a pass over the data if that ends with it."""
    if is_of_pass:
        # Elsewhere Keras makes an iterator at an epoch's end, too: some draw a random number.
        whole = data.steps_per_epoch is None and data._num_batches
        makes_another = whole and not _is_on_tensorflow(data)
        data._current_iterator = iter(data._get_iterator()) if makes_another else None
        data._steps_seen = 0
    data.data_adapter.on_epoch_end()


def _install_tf_keras() -> None:
    handler = part(module("tf_keras.src.engine.data_adapter"), "DataHandler")

    def keep(init: Any, self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        if kwargs.get("model") is not None:
            _keep(kwargs["model"], self)

    wrap(handler, "__init__", keep, Layer.POSITION)
    count_epochs(handler)


@functools.cache
def count_epochs(handler: Any) -> None:
    """Make the epochs of tf_keras start at a position, and have the lengths of their data."""

    def epochs_from(enumerate_epochs: Any, self: Any) -> Iterator[tuple[int, Any]]:
        dataset = getattr(self, _DATASET["tf_keras"])
        incremental.refuse(dataset)
        start = _start_of(self._model)
        skip = 0 if start is None else start.skip
        is_open = self._steps_per_epoch is None and _is_served(dataset)
        for epoch, iterator in enumerate_epochs(self):
            if is_open:
                self._inferred_steps = None
            for _ in range(skip):
                next(iterator)
            skip = 0
            yield epoch, iterator

    wrap(handler, "enumerate_epochs", epochs_from, Layer.POSITION)


def _is_served(dataset: Any) -> bool:
    """Return whether a dataset is made of data of a data service."""
    tensorflow: Any = sys.modules.get("tensorflow")
    if tensorflow is None:
        return False
    kind = module("tensorflow.python.data.experimental.ops.data_service_ops")._DataServiceDatasetV2
    own = getattr(dataset, "_datasets", None) or [dataset]  # of a distributed dataset
    return any(
        isinstance(source, kind)
        for each in own
        if isinstance(each, tensorflow.data.Dataset)
        for source in inputs_of(each)
    )
