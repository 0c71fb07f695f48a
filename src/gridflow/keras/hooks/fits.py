"""What gridflow hears of every ``fit``, whatever its callbacks are: for all flavours of Keras.

Not by a callback of its own: one that asks for each batch would keep Keras from calling all others
beside the training.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from typing import TYPE_CHECKING, Any, Final

from gridflow.keras.fixes import Hook
from gridflow.keras.hooks import early
from gridflow.keras.results import is_tensorflow
from gridflow.keras.runtime import present

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gridflow.keras.runtime import Runtime

_METHODS: Final = ("fit", "evaluate", "predict")
_KINDS: Final = ("train", "test", "predict")
#: After these a step is over.
_STEP_ENDS: Final = tuple(f"on_{kind}_batch_end" for kind in _KINDS)
_OCCASIONS: Final = (
    *("on_epoch_begin", "on_epoch_end"),
    *(f"on_{kind}_{when}" for kind in _KINDS for when in ("begin", "end", "batch_begin")),
    *_STEP_ENDS,
)


def hook(trainer: Any, callback_list: Any) -> Hook:
    """Return the hook of a flavour.

    Parameters
    ----------
    trainer : type
        Of the models, with ``fit``, ``evaluate`` and ``predict``.
    callback_list : type
        What calls their callbacks.
    """

    def install() -> None:
        for name in _METHODS:
            setattr(trainer, name, _counted(name, getattr(trainer, name)))
        for name in _OCCASIONS:
            setattr(callback_list, name, _told(name, getattr(callback_list, name)))

    return Hook("each fit is under the job's deadlines", install)


@contextlib.contextmanager
def counting(runtime: Runtime, *, together: bool = False) -> Iterator[None]:
    """Let steps be due in a block, unless it waits for rows."""
    with runtime.due.during(together=together) as is_outer:
        if is_outer:
            early.listen(lambda waits: runtime.due.wait(waits=waits))
        yield


def is_together(runtime: Runtime, model: Any) -> bool:
    """Return whether all ranks that train have to take part in a step of a model."""
    if not is_tensorflow(model):
        return runtime.trains_together
    tensorflow = sys.modules["tensorflow"]
    # Also one that the function has made itself, under a strategy that leaves it to it.
    kind = tensorflow.distribute.MultiWorkerMirroredStrategy
    return runtime.num_workers > 1 and isinstance(model.distribute_strategy, kind)


def _counted(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        runtime = present()
        if runtime is None:
            return method(self, *args, **kwargs)
        # One rank may predict on its own.
        with counting(runtime, together=name == "fit" and is_together(runtime, self)):
            return method(self, *args, **kwargs)

    return counted


def _told(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def told(self: Any, *args: Any, **kwargs: Any) -> None:
        runtime = present()
        if runtime is None:
            method(self, *args, **kwargs)
            return
        with runtime.due.in_callbacks():
            method(self, *args, **kwargs)
        if name in _STEP_ENDS:
            runtime.due.step_ended()

    return told
