"""A table of what Keras's own callbacks do, as far as it matters for several ranks."""

from __future__ import annotations

import functools
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gridflow._keras.neutral import NeutralCallback
from gridflow._keras.patches import private_parts
from gridflow._keras.results import FLAVOURS, flavour_of
from gridflow.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


@dataclass(frozen=True)
class _Facts:
    """Properties of a callback.

    `path`: The attribute with the path it writes to; empty if it writes nothing.
    `changes`: What it changes in the training; empty if nothing.
    `stops_in_epoch`: Whether it may end the training after any step.
    """

    path: str = ""
    changes: str = ""
    stops_in_epoch: bool = False


#: The class of Keras's lists of callbacks, which ``fit`` uses unchanged.
LIST: Final = "CallbackList"
_RATES: Final = _Facts(changes="sets the learning rate")
_FACTS: Final[Mapping[str, _Facts]] = {
    "BackupAndRestore": _Facts("backup_dir", "restores weights and epoch"),
    "CSVLogger": _Facts("filename"),
    "EarlyStopping": _Facts(changes="ends the training"),
    "LearningRateScheduler": _RATES,
    "ModelCheckpoint": _Facts("filepath"),
    "ReduceLROnPlateau": _RATES,
    "SwapEMAWeights": _Facts(changes="swaps weights"),
    "TensorBoard": _Facts("log_dir"),
    "TerminateOnNaN": _Facts(changes="ends the training", stops_in_epoch=True),
}
#: Where a callback of the chief alone must leave the model as it is; at the end it may change it.
_BETWEEN_EPOCHS: Final = ("on_train_begin", "on_epoch_begin", "on_epoch_end")
_WATCHED: Final = (
    *_BETWEEN_EPOCHS,
    *(f"on_{kind}batch_{when}" for kind in ("train_", "") for when in ("begin", "end")),
)
_STEP_ENDS: Final = ("on_train_batch_end", "on_batch_end")
#: Whose methods, unless they are in the table, stop no fit within an epoch; "": there is none.
_NEVER_STOP: Final = (*FLAVOURS, "gridflow", "")
#: What tf_keras gives no other path on ranks other than the chief, as it does its other callbacks.
_OF_TF_KERAS: Final = ("CSVLogger",)


def flat(callbacks: Any) -> list[Any]:
    """Return the callbacks that ``fit`` is given: one, nested lists of them, or Keras's list."""
    if type(callbacks).__name__ == LIST:
        callbacks = callbacks.callbacks
    if callbacks is None:
        return []
    if isinstance(callbacks, list | tuple):
        return [each for one in callbacks for each in flat(one)]
    return [callbacks]


def refuse_on_chief_alone(callback: Any) -> None:
    """Reject a callback that must run on all ranks.

    Raises `InvalidArgument`: It changes the training.
    """
    name, changes = _kind_of(callback), ""
    if name:
        changes = _FACTS[name].changes
    if getattr(callback, "load_weights_on_restart", False):
        changes = "restores weights"
    if not changes:
        return
    instead = "pass it to fit on all ranks, without chief_only()."
    if name == "BackupAndRestore":
        instead = (
            "leave it out: ctx.callbacks() resumes all ranks at the exact step after a restart. "
            "Or pass it to fit on all ranks, with a backup_dir that all of them can read: only "
            "the chief writes it."
        )
    raise InvalidArgument(
        f"chief_only() is for callbacks that only write files, but {type(callback).__name__} "
        f"{changes}. On the chief alone, it would leave the ranks with different models whose "
        f"gradients are added up, or in different steps, waiting for each other: {instead}"
    )


def watch_on_chief_alone(callback: Any) -> None:
    """Make a callback fail when it changes what all ranks must have alike.

    Keras's own aren't watched: `refuse_on_chief_alone` knows what they do.
    """
    if _kind_of(callback, exactly=True):
        return
    for name in _WATCHED:
        method = getattr(callback, name, None)
        # Keras tells by its own methods, most of which do nothing, what it needn't call.
        if method is not None and _home(method) not in FLAVOURS:
            setattr(callback, name, _watched(callback, name, method))


def may_stop_in_epoch(callbacks: Sequence[Any]) -> bool:
    """Return whether one of them may stop a fit after any step, as far as is known."""
    return any(
        ((name := _kind_of(each)) and _FACTS[name].stops_in_epoch)
        or any(_home(getattr(each, end, None)) not in _NEVER_STOP for end in _STEP_ENDS)
        for each in callbacks
    )


def _home(method: Any) -> str:
    return (getattr(method, "__module__", None) or "").partition(".")[0]


def _watched(callback: Any, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def watched(*args: Any, **kwargs: Any) -> Any:
        model = private_parts.model_of(callback)
        before = _common(model, name)
        result = method(*args, **kwargs)
        after = _common(model, name)
        for what, there in before.items():
            if after.get(what) != there:
                raise InvalidArgument(
                    f"chief_only() is for callbacks that only write files, but "
                    f"{type(callback).__name__}.{name} changed {what} on the chief alone, from "
                    f"{there} to {after.get(what)}: the ranks would train different models. Pass "
                    "the callback to fit on all ranks, without chief_only(); if only some of what "
                    "it does is for the chief, ask for ctx.is_chief there."
                )
        return result

    return watched


def _common(model: Any, occasion: str) -> dict[str, Any]:
    """Return what all ranks must have alike: learning rates and, between steps, sums of weights."""
    from gridflow._keras.resume import state

    in_epoch = occasion not in _BETWEEN_EPOCHS
    if in_epoch and hasattr(model, "jax_state_sync"):  # JAX has the variables, not the model
        return {}
    rates = state.rates(model, flavour_of(model) or "keras")
    sums = () if in_epoch else state.sums(model)
    return {
        **{
            f"learning rate {i}" if i else "the learning rate": f"{r:g}"
            for i, r in enumerate(rates)
        },
        **{f"the weight {name!r}": f"norm {norm!r}, sum {s!r}" for name, s, norm in sums},
    }


def restores(callbacks: Sequence[Any]) -> bool:
    """Return whether one of Keras's callbacks resumes from its own files."""
    return any(_kind_of(callback) == "BackupAndRestore" for callback in callbacks)


def paths_of(callbacks: Sequence[Any]) -> list[str]:
    """Return the paths of Keras's callbacks that a rank can do without."""
    return [path for callback in callbacks if (path := _path_of(callback))]


def without_writing(callbacks: Sequence[Any], taken: Sequence[str]) -> list[Any]:
    """Return the callbacks without those that write to one of the chief's paths.

    Only instances of Keras's own classes are replaced: other classes may do something that all
    ranks must do together.
    """
    return [
        _stand_in(callback) if _path_of(callback) in taken else callback for callback in callbacks
    ]


def _path_of(callback: Any) -> str:
    name = _kind_of(callback, exactly=True)
    path = getattr(callback, _FACTS[name].path, None) if name and _FACTS[name].path else None
    if path is None or (name not in _OF_TF_KERAS and _flavour_of(callback) == "tf_keras"):
        return ""
    text = str(path)
    return text if "://" in text else str(Path(text).absolute())


def _stand_in(callback: Any) -> Any:
    if _kind_of(callback) == "BackupAndRestore":
        return RestoreOnly(callback)
    return NeutralCallback()


def _kind_of(callback: Any, *, exactly: bool = False) -> str:
    """Return the name of the callback's class in the table, if it is there."""
    for name in _FACTS:
        for flavour in FLAVOURS:
            owner = getattr(sys.modules.get(flavour), "callbacks", None)
            known = getattr(owner, name, None)
            if known is None:
                continue
            if type(callback) is known or (not exactly and isinstance(callback, known)):
                return name
    return ""


def _flavour_of(callback: Any) -> str:
    return type(callback).__module__.partition(".")[0]


class WhileChief(NeutralCallback):
    """Does what a callback does while this rank is the chief, and nothing otherwise.

    Where another rank becomes the chief, all ranks start the fit again: so the callback hears of a
    fit from its beginning.
    """

    def __init__(self, callback: Any, is_chief: Callable[[], bool]) -> None:
        super().__init__()
        self._callback, self._is_chief = callback, is_chief
        hooks = (name for name in vars(NeutralCallback) if name.startswith("on_"))
        for name in (*hooks, "on_group_changed"):
            method = getattr(callback, name, None)
            if method is not None:
                setattr(self, name, self._on_chief(method))

    def __getattr__(self, name: str) -> Any:
        """Return what the callback has beside its hooks, such as what it has collected."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._callback, name)

    def set_model(self, model: Any) -> None:
        super().set_model(model)
        if self._is_chief():
            self._callback.set_model(model)

    def set_params(self, params: Mapping[str, Any] | None) -> None:
        super().set_params(params)
        if self._is_chief():
            self._callback.set_params(params)

    def has_own(self, *names: str) -> bool:
        """Return whether the callback overrides one of these methods."""
        if isinstance(self._callback, NeutralCallback):
            return self._callback.has_own(*names)
        methods = (getattr(self._callback, name, None) for name in names)
        return any(_home(method) not in (*FLAVOURS, "") for method in methods)

    def _on_chief(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def on_chief(*args: Any, **kwargs: Any) -> Any:
            return method(*args, **kwargs) if self._is_chief() else None

        return on_chief


class RestoreOnly(NeutralCallback):
    """Restores from the chief's BackupAndRestore, and writes nothing."""

    def __init__(self, callback: Any) -> None:
        super().__init__()
        self._callback = callback

    def set_model(self, model: Any) -> None:
        super().set_model(model)
        self._callback.set_model(model)

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        self._callback.on_train_begin(logs)
