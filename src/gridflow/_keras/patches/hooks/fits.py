"""Hooks into every ``fit``, whatever its callbacks are, for all flavours of Keras.

This isn't a callback: a callback with batch methods would keep Keras from calling all callbacks
asynchronously.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from typing import TYPE_CHECKING, Any, Final

from gridflow._keras import own_callbacks, statistics
from gridflow._keras.patches import private_parts
from gridflow._keras.patches.hooks import incremental
from gridflow._keras.patches.methods import Layer, wrap
from gridflow._keras.patches.registry import Hook
from gridflow._keras.results import is_tensorflow
from gridflow._keras.resume.callback import CheckpointAndResume
from gridflow._keras.runtime import present
from gridflow.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gridflow._keras.runtime import Runtime

_METHODS: Final = ("fit", "evaluate", "predict")
_KINDS: Final = ("train", "test", "predict")
#: A step is over after these.
_STEP_ENDS: Final = tuple(f"on_{kind}_batch_end" for kind in _KINDS)
#: After these, Keras checks whether a callback wants to stop.
_ENDS: Final = ("on_train_batch_end", "on_epoch_end")
#: Before these, statistics that each rank keeps of its own rows are averaged over the ranks.
_COMPLETE: Final = ("on_test_begin", "on_epoch_end", "on_train_end")
_OF_EPOCHS: Final = ("on_epoch_begin", "on_epoch_end")
#: How many fits, evaluations and predictions run inside one another then.
_IN_FIT, _IN_VALIDATION = 1, 2
_OCCASIONS: Final = (
    *_OF_EPOCHS,
    *(f"on_{kind}_{when}" for kind in _KINDS for when in ("begin", "end", "batch_begin")),
    *_STEP_ENDS,
)


def hook(trainer: Any, callback_list: Any) -> Hook:
    """Return the hook of a flavour.

    `trainer`: Of the models, with ``fit``, ``evaluate`` and ``predict``.
    `callback_list`: The class that calls their callbacks.
    """

    def install() -> None:
        for name in _METHODS:
            counted = _counted(name, inspect.signature(getattr(trainer, name)))
            wrap(trainer, name, counted, Layer.DEADLINES)
        for name in _OCCASIONS:
            wrap(callback_list, name, _told(name), Layer.DEADLINES)

    return Hook("each fit is under the job's deadlines", install)


@contextlib.contextmanager
def counting(runtime: Runtime, *, together: bool = False) -> Iterator[bool]:
    """Make steps due in a block, except while it waits for rows; yield if it is outermost."""
    with runtime.due.during(together=together) as is_outer:
        if is_outer:
            incremental.listen(lambda waits: runtime.due.wait(waits=waits))
        yield is_outer


def _is_together(runtime: Runtime, model: Any) -> bool:
    """Return whether all training ranks must take part in a model's steps."""
    if not is_tensorflow(model):
        return runtime.trains_together
    tensorflow = sys.modules["tensorflow"]
    # Also a strategy that the function has created itself, if that is allowed.
    kind = tensorflow.distribute.MultiWorkerMirroredStrategy
    return runtime.num_workers > 1 and isinstance(model.distribute_strategy, kind)


def _counted(name: str, signature: inspect.Signature) -> Callable[..., Any]:
    def counted(method: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        runtime = present()
        if runtime is None:
            return method(self, *args, **kwargs)
        # A single rank may predict.
        together = name == "fit" and _is_together(runtime, self)
        goes_on = runtime.regrouping if together and not runtime.due.depth else None
        if goes_on is not None:
            given = signature.bind(self, *args, **kwargs).arguments.get("callbacks")
            done = goes_on.enter(self, given)
            if done is not None:
                return done
        with counting(runtime, together=together) as is_outer:
            if name != "fit" or not is_outer:
                return method(self, *args, **kwargs)

            def attempt() -> Any:
                bound = signature.bind(self, *args, **kwargs)
                _set_up(runtime, bound, together=together)
                try:
                    return method(*bound.args, **bound.kwargs)
                finally:
                    runtime.agreement.end()

            return attempt() if goes_on is None else goes_on.run(attempt)

    return counted


def _set_up(runtime: Runtime, bound: inspect.BoundArguments, *, together: bool) -> None:
    """Check the callbacks of a fit before it starts."""
    given = bound.arguments.get("callbacks")
    callbacks = own_callbacks.flat(given)
    if own_callbacks.restores(callbacks) and any(
        isinstance(each, CheckpointAndResume) for each in callbacks
    ):
        raise InvalidArgument(
            "ctx.callbacks() and BackupAndRestore would both restore the model, from different "
            "points of the training. Leave BackupAndRestore out, or use "
            "ctx.callbacks(checkpoint=False)."
        )
    if together:
        found = runtime.agreement.begin(callbacks, bound.arguments.get("initial_epoch", 0))
        # Keras uses a list of its own class unchanged.
        if type(given).__name__ != own_callbacks.LIST and given is not None:
            bound.arguments["callbacks"] = found


def _told(name: str) -> Callable[..., Any]:
    def told(method: Any, self: Any, *args: Any, **kwargs: Any) -> None:
        runtime = present()
        if runtime is None:
            method(self, *args, **kwargs)
            return
        with _measured(runtime, name):
            _tell(runtime, method, name, self, args, kwargs)

    return told


def _tell(runtime: Runtime, method: Any, name: str, callbacks: Any, args: Any, kwargs: Any) -> None:
    is_groups = runtime.due.in_step  # not the fit of another model in a callback
    if name in _COMPLETE and (is_groups or runtime.num_workers == 1):
        _complete(callbacks)
    savers = [each for each in callbacks.callbacks if isinstance(each, CheckpointAndResume)]
    with runtime.due.in_callbacks():
        for each in savers if name == "on_train_begin" else ():
            each.begins(callbacks.callbacks)
        for each in savers:
            each.is_telling = True
        method(callbacks, *args, **kwargs)
        for each in savers:
            each.is_telling = False
            _tell_begun(each, name)
    if name in _STEP_ENDS:
        runtime.due.step_ended()
    if is_groups:
        _agree(runtime, callbacks, name, args[0] if args else kwargs.get("epoch"))
    with runtime.due.in_callbacks():
        for each in savers if name in _ENDS else ():
            each.settle()


@contextlib.contextmanager
def _measured(runtime: Runtime, name: str) -> Iterator[None]:
    """Measure what callbacks of the outermost fit take, and its validations."""
    depth = runtime.due.depth
    if depth == _IN_FIT and (name.startswith("on_train_") or name in _OF_EPOCHS):
        with runtime.spent.during(name):
            yield
        runtime.profiler.told(name, runtime.spent.steps)
        return
    if depth == _IN_VALIDATION and name == "on_test_begin":
        runtime.spent.validation(begins=True)
    yield
    if depth == _IN_VALIDATION and name == "on_test_end":
        runtime.spent.validation(begins=False)


def _complete(callbacks: Any) -> None:
    """Average the statistics of a model, if a program's own list of callbacks has one."""
    model = private_parts.model_of(callbacks)
    if model is not None:
        statistics.synchronise(model)


def _tell_begun(saver: CheckpointAndResume, name: str) -> None:
    if name == "on_train_begin":
        saver.begun()
    elif name == "on_epoch_begin":
        saver.epoch_begun()


def _agree(runtime: Runtime, callbacks: Any, name: str, epoch: Any) -> None:
    """Compare the models of all ranks, and make all stop if one wants to."""
    model = private_parts.model_of(callbacks)
    wants = bool(model.stop_training)
    match name:
        case "on_train_begin":
            runtime.agreement.start(model)
            return
        case "on_train_batch_end":
            stops = runtime.agreement.step_ended(wants=wants)
            if runtime.regrouping is not None and runtime.agreement.changes:
                runtime.regrouping.leave()
        case "on_epoch_end":
            stops = runtime.agreement.epoch_ended(model, int(epoch), wants=wants)
        case _:
            return
    if stops != wants:
        model.stop_training = stops
