"""A table of what Keras's own callbacks do, as far as it matters for several ranks."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gridflow._keras.neutral import NeutralCallback
from gridflow._keras.results import FLAVOURS
from gridflow.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True)
class _Facts:
    """Properties of a callback.

    Attributes
    ----------
    path : str
        The attribute with the path it writes to; empty if it writes nothing.
    changes : str
        What it changes in the training; empty if nothing.
    """

    path: str = ""
    changes: str = ""


#: The class of Keras's lists of callbacks, which ``fit`` uses unchanged.
LIST: Final = "CallbackList"
_STOPS: Final = _Facts(changes="ends the training")
_RATES: Final = _Facts(changes="sets the learning rate")
_FACTS: Final[Mapping[str, _Facts]] = {
    "BackupAndRestore": _Facts("backup_dir", "restores weights and epoch"),
    "CSVLogger": _Facts("filename"),
    "EarlyStopping": _STOPS,
    "LearningRateScheduler": _RATES,
    "ModelCheckpoint": _Facts("filepath"),
    "ReduceLROnPlateau": _RATES,
    "SwapEMAWeights": _Facts(changes="swaps weights"),
    "TensorBoard": _Facts("log_dir"),
    "TerminateOnNaN": _STOPS,
}
#: tf_keras itself gives the others a different path on ranks other than the chief.
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

    Raises
    ------
    InvalidArgument
        It changes the training.
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


class RestoreOnly(NeutralCallback):
    """Restores from the chief's BackupAndRestore, and writes nothing.

    Parameters
    ----------
    callback : keras.callbacks.BackupAndRestore
    """

    def __init__(self, callback: Any) -> None:
        super().__init__()
        self._callback = callback

    def set_model(self, model: Any) -> None:
        """Pass on."""
        super().set_model(model)
        self._callback.set_model(model)

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Restore."""
        self._callback.on_train_begin(logs)
