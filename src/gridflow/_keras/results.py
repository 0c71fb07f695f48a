"""The return value of a training function, as files for the driver.

A header (JSON) describes the kind of value and its files:

=============  ==========================================  =====================================
kind           the value                                   files
=============  ==========================================  =====================================
``none``       None                                        none
``keras``      a Keras 3 model                             ``model.keras``
``tf_keras``   a tf_keras model                            ``model.keras``
``history``    what ``fit`` returns, of either flavour     ``history.json``
``pickle``     anything else                               ``value.pickle``
``shared``     a model that the group trained together,    none: the chief's is the same
               on a rank other than the chief
``missing``    what a rank other than the chief can't      none; ``why`` says it
               send
=============  ==========================================  =====================================

A History, alone or inside another value, becomes its dict of lists: the object itself contains the
whole model.
"""

from __future__ import annotations

import itertools
import json
import sys
from typing import IO, TYPE_CHECKING, Any, Final

import cloudpickle

from gridflow._files.local import is_refusal, open_own, refusal
from gridflow._keras import safe_mode
from gridflow._keras.patches import private_parts
from gridflow.errors import (
    GridflowError,
    InvalidArgument,
    MissingDependency,
    UnsafePath,
    did_you_mean,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

FLAVOURS: Final = ("keras", "tf_keras")
KINDS: Final = ("none", *FLAVOURS, "history", "pickle", "shared", "missing")
#: Limit for each rank except the chief. Exceeding it doesn't fail the training.
MOST_BYTES: Final = 256 << 20
_MODEL_FILE: Final = "model.keras"
_HISTORY_FILE: Final = "history.json"
_PICKLE_FILE: Final = "value.pickle"


def flavour_of(value: object, kind: str = "Model") -> str | None:
    """Return the Keras flavour of a model (or other object), or None.

    Imports nothing: whoever has a model has imported its flavour.
    """
    for flavour in FLAVOURS:
        package = sys.modules.get(flavour)
        owner = package if kind == "Model" else getattr(package, "callbacks", None)
        if owner is not None and isinstance(value, getattr(owner, kind)):
            return flavour
    return None


def is_tensorflow(model: Any) -> bool:
    """Return whether TensorFlow trains a model, not another backend."""
    return hasattr(model, "distribute_strategy")


def pack(value: Any, directory: Path, is_chief: bool, group: Any = None) -> dict[str, Any]:
    """Write a value to files.

    All ranks must call this with their return value: reading a tf_keras model with
    BatchNormalization is a collective operation.

    `value`: The return value on this rank.
    `directory`: Target folder; created if it doesn't exist, but its parent must.
    `is_chief`: Whether this rank's value is the result. If another rank's value can't be sent, or
        is larger than `MOST_BYTES`, that isn't a failure: its header says why it is missing.
    `group`: The strategy with which all ranks train one model; None if each has its own models.
    Returns: The header: ``kind``, ``files`` (names in `directory`), and for a model the result of
        `described`.
    Raises `InvalidArgument`: The chief's value can be neither saved nor pickled.
    """
    # Without parents: if the parent is gone, its owner is dead, and nobody would delete it again.
    directory.mkdir(exist_ok=True)
    flavour = flavour_of(value)
    if flavour is not None and not is_chief and _is_of(group, value):
        return _pack_shared(value, flavour, directory)
    if is_chief:
        return _pack(value, flavour, directory)
    try:
        return _pack(value, flavour, directory, MOST_BYTES)
    except InvalidArgument as error:
        return {"kind": "missing", "files": [], "why": str(error)}


def _pack(
    value: Any, flavour: str | None, directory: Path, most: int | None = None
) -> dict[str, Any]:
    if value is None:
        return {"kind": "none", "files": []}
    if flavour is not None:
        path = directory / _MODEL_FILE
        header = _pack_model(value, flavour, path)
        _check_size(type(value), path.stat().st_size, most, path)
        return header
    if flavour_of(value, "History") is not None:
        text = json.dumps(_plain(value.history), allow_nan=True)
        (directory / _HISTORY_FILE).write_text(text)
        return {"kind": "history", "files": [_HISTORY_FILE]}
    path = directory / _PICKLE_FILE
    _check_size(type(value), _pickle(value, path, most), most, path)
    return {"kind": "pickle", "files": [_PICKLE_FILE]}


def _check_size(kind: type, size: int, most: int | None, path: Path) -> None:
    if most is None or size <= most:
        return
    path.unlink()
    raise InvalidArgument(
        f"{kind.__name__} too large: {size / 2**20:,.1f} MiB as a file; ranks other than the chief "
        f"can return at most {most / 2**20:,.0f} MiB. Return less, or write it to storage that "
        "outlives the task and return the path."
    )


def unpack(
    header: Mapping[str, Any], directory: Path, options: Mapping[str, Any] | None = None
) -> Any:
    """Read a value back from its files.

    A model needs its flavour of Keras here, and custom classes must be registered
    (``keras.saving.register_keras_serializable``) or passed in the options; nothing else needs
    TensorFlow.

    `header`: What `pack` returned.
    `directory`: Where the files are.
    `options`: For a model: keyword arguments of Keras's ``load_model``.
    Raises `MissingDependency`: The value is a model and its flavour of Keras isn't installed.
    Raises `GridflowError`: The files can't be read here; the message names the reason.
    """
    kind = header["kind"]
    if kind == "none":
        return None
    path = directory / header["files"][0]
    if kind == "history":
        return json.loads(path.read_text())
    if kind == "pickle":
        return _unpickled(path)
    if kind in FLAVOURS:
        return _load_model(kind, path, header.get("class", "model"), options or {})
    raise InvalidArgument(
        f"a result's kind must be one of {', '.join(KINDS)}, got "
        f"{kind!r}.{did_you_mean(kind, KINDS)}"
    )


def _is_of(group: Any, model: Any) -> bool:
    """Return whether all ranks have trained this model together.

    A model created outside the strategy's scope is the rank's own. On other backends a group
    applies to the whole process.
    """
    return group is not None and getattr(model, "distribute_strategy", group) is group


def _pack_shared(model: Any, flavour: str, directory: Path) -> dict[str, Any]:
    # Reading a Keras 3 model doesn't involve peers; a tf_keras model may need them for each
    # variable that is summed or averaged over the ranks when it is read.
    if flavour == "tf_keras":
        _pack_model(model, flavour, directory / _MODEL_FILE)
    return {"kind": "shared", "files": [], **described(model)}


def _pack_model(model: Any, flavour: str, path: Path) -> dict[str, Any]:
    try:
        model.save(path)
    except Exception as error:
        advice = "A custom model class needs get_config(); or return model.get_weights()."
        raise InvalidArgument(
            f"the model that the training function returned ({type(model).__name__}) can't be "
            f"saved: {_why(error, path, advice)}"
        ) from error
    return {"kind": flavour, "files": [path.name], **described(model)}


def described(model: Any) -> dict[str, Any]:
    """Return a JSON description of a model, for use without loading it.

    Returns: ``class``; the shapes of its ``inputs`` and ``outputs`` by name, empty if a model
        doesn't declare them; their ``dtypes``, in the same order; for Keras 3 the ``backend``.
    """
    inputs, outputs = declared(model, "input"), declared(model, "output")
    about = {
        "class": type(model).__name__,
        "inputs": {title: _shape(tensor) for title, tensor in inputs.items()},
        "outputs": {title: _shape(tensor) for title, tensor in outputs.items()},
        "dtypes": {
            "inputs": [_dtype(tensor) for tensor in inputs.values()],
            "outputs": [_dtype(tensor) for tensor in outputs.values()],
        },
    }
    if flavour_of(model) == "keras":
        about["backend"] = sys.modules["keras"].config.backend()
    return about


def declared(model: Any, kind: str) -> dict[str, Any]:
    """Return a model's symbolic inputs or outputs; empty if it doesn't declare them.

    Their names are the keys of the dict that the model was created with, or those of the layers.
    Outputs are never named like tensors: Keras numbers these anew each time that it loads a file.
    """
    tensors = getattr(model, f"{kind}s", None) or []
    structure = private_parts.structure(model, kind)
    if isinstance(structure, dict) and all(hasattr(each, "shape") for each in structure.values()):
        return structure
    titles = getattr(model, f"{kind}_names", None)
    if not titles and kind == "output":  # a Sequential of Keras 3
        titles = [private_parts.layer_of(tensor).name for tensor in tensors]
    found: dict[str, Any] = {}
    for title, tensor in zip(titles or [tensor.name for tensor in tensors], tensors, strict=False):
        # One layer may give several outputs, such as an LSTM with return_state=True.
        again = (f"{title}_{number}" for number in itertools.count(1))
        found[next(name for name in itertools.chain([title], again) if name not in found)] = tensor
    return found


def _shape(tensor: Any) -> list[int | None]:
    return [None if size is None else int(size) for size in tensor.shape]


def _dtype(tensor: Any) -> str:
    """Return the name of a tensor's type, which is a string in Keras 3."""
    return str(getattr(tensor.dtype, "name", tensor.dtype))


def _load_model(flavour: str, path: Path, name: str, options: Mapping[str, Any]) -> Any:
    try:
        if flavour == "keras":
            import keras

            return keras.saving.load_model(path, **options)
        import tf_keras

        if options.get("safe_mode", True):
            safe_mode.check_file(
                path, options.get("custom_objects") or {}, compiles=options.get("compile", True)
            )
        return tf_keras.models.load_model(path, **options)
    except ModuleNotFoundError as error:
        extra = "tensorflow" if flavour == "keras" else "tf-keras"
        raise MissingDependency(
            f"reading the model ({name}) needs {error.name}: "
            f"pip install 'gridflow[{extra}]'. Its file can be copied from {path}."
        ) from error
    except InvalidArgument:
        raise
    except Exception as error:
        raise GridflowError(
            f"the model ({name}) can't be read here: {error} Its file is {path}. "
            "Pass custom classes and functions by name, custom_objects={'Mine': Mine}, or "
            "register them (keras.saving.register_keras_serializable) before loading. For "
            "prediction only, without loss and metrics, use compile=False. A Lambda layer with "
            "Python code needs safe_mode=False (in Spark ML: setSafeMode(False)), if you trust "
            "its source."
        ) from error


def _plain(value: Any) -> Any:
    """Return the value of a History as JSON types."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    to_list = getattr(value, "tolist", None)
    if to_list is None and hasattr(value, "numpy"):
        to_list = value.numpy().tolist
    return value if to_list is None else to_list()


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles a History as its dict."""

    def reducer_override(self, obj: Any) -> Any:
        """Return how an object is reconstructed."""
        if flavour_of(obj, "History") is not None:
            return dict, (_plain(obj.history),)
        return super().reducer_override(obj)


class _Measured:
    """Writes to a file up to a limit, and counts the total size."""

    def __init__(self, file: IO[bytes], most: int | None) -> None:
        self._file, self._most, self.size = file, most, 0

    def write(self, data: Any) -> int:
        """Write, unless the limit is exceeded."""
        size = memoryview(data).nbytes
        self.size += size
        if self._most is None or self.size <= self._most:
            self._file.write(data)
        return size


def _pickle(value: Any, path: Path, most: int | None) -> int:
    """Write a value up to a limit, and return its size."""
    try:
        with path.open("wb") as file:
            measured = _Measured(file, most)
            _Pickler(measured).dump(value)
    except Exception as error:
        path.unlink(missing_ok=True)
        advice = (
            "Return a model, a History, or plain values (numbers, arrays, dicts of them); convert "
            "a tensor with .numpy()."
        )
        raise InvalidArgument(
            f"the return value of the training function ({type(value).__name__}) can't be pickled: "
            f"{_why(error, path, advice)}"
        ) from error
    return measured.size


def _why(error: Exception, path: Path, advice: str) -> str:
    if isinstance(error, OSError) and is_refusal(error):
        return f"{refusal(str(path.parent), error)}."
    return f"{error} {advice}"


def _unpickled(path: Path) -> Any:
    try:
        with open_own(path) as file:
            return cloudpickle.load(file)
    except UnsafePath:
        raise
    except Exception as error:
        raise GridflowError(
            f"the return value of the training function can't be unpickled here: {error} Return "
            "plain values, or make the modules it needs importable here."
        ) from error
