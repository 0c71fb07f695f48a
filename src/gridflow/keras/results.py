"""What a training function returned, as files that go to the driver.

A header (JSON) says what kind of value it is and which files hold it:

=============  ==========================================  =====================================
kind           the value                                   files
=============  ==========================================  =====================================
``none``       None                                        none
``keras``      a Keras 3 model                             ``model.keras``
``tf_keras``   a tf_keras model                            ``model.keras``
``history``    what ``fit`` returns, of either flavour     ``history.json``
``pickle``     anything else                               ``value.pickle``
=============  ==========================================  =====================================

A History, alone or inside of something else, becomes its dict of lists: the object itself would
bring the whole model along.
"""

from __future__ import annotations

import io
import json
import sys
from typing import TYPE_CHECKING, Any, Final

import cloudpickle

from gridflow.errors import GridflowError, InvalidArgument, MissingDependency, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

FLAVOURS: Final = ("keras", "tf_keras")
KINDS: Final = ("none", *FLAVOURS, "history", "pickle")
_MODEL_FILE: Final = "model.keras"
_HISTORY_FILE: Final = "history.json"
_PICKLE_FILE: Final = "value.pickle"


def flavour_of(value: object, kind: str = "Model") -> str | None:
    """Return the flavour of Keras that a model (or other object) belongs to, None for none.

    Imports nothing: who has a model has its flavour imported.
    """
    for flavour in FLAVOURS:
        package = sys.modules.get(flavour)
        owner = package if kind == "Model" else getattr(package, "callbacks", None)
        if owner is not None and isinstance(value, getattr(owner, kind)):
            return flavour
    return None


def is_tensorflow(model: Any) -> bool:
    """Return whether TensorFlow trains a model: not so with Keras 3 on JAX or torch."""
    return hasattr(model, "distribute_strategy")


def pack(value: Any, directory: Path, is_chief: bool) -> dict[str, Any]:
    """Write a value into files.

    All ranks have to call this with what they returned: to read a tf_keras model with
    BatchNormalization is an operation of the whole group. The chief's files are the result; those
    of the others can be thrown away.

    Parameters
    ----------
    value
        What the training function returned on this rank.
    directory : Path
        Where the files go; made if it isn't there.
    is_chief : bool
        Whether this rank's value is the result. The others write no more than they have to.

    Returns
    -------
    dict
        The header: ``kind``, ``files`` (names in `directory`), for a model also ``class`` and the
        shapes of its ``inputs`` and ``outputs`` by name.

    Raises
    ------
    InvalidArgument
        The value can be neither saved nor pickled.
    """
    directory.mkdir(parents=True, exist_ok=True)
    if value is None:
        return {"kind": "none", "files": []}
    flavour = flavour_of(value)
    if flavour is not None:
        return _pack_model(value, flavour, directory, is_chief=is_chief)
    if not is_chief:
        return {"kind": "none", "files": []}
    if flavour_of(value, "History") is not None:
        text = json.dumps(_plain(value.history), allow_nan=True)
        (directory / _HISTORY_FILE).write_text(text)
        return {"kind": "history", "files": [_HISTORY_FILE]}
    (directory / _PICKLE_FILE).write_bytes(_pickled(value))
    return {"kind": "pickle", "files": [_PICKLE_FILE]}


def unpack(
    header: Mapping[str, Any], directory: Path, options: Mapping[str, Any] | None = None
) -> Any:
    """Read a value back from its files.

    A model needs its flavour of Keras here, and classes of one's own registered
    (``keras.saving.register_keras_serializable``) or among the options; nothing else needs
    TensorFlow.

    Parameters
    ----------
    header : mapping
        What `pack` returned.
    directory : Path
        Where the files are.
    options : mapping, optional
        For a model: what Keras's ``load_model`` takes by name.

    Raises
    ------
    MissingDependency
        The value is a model and its flavour of Keras isn't installed.
    GridflowError
        The files can't be read here; the message names the reason.
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
        f"a result's kind is one of {', '.join(KINDS)}, got {kind!r}.{did_you_mean(kind, KINDS)}"
    )


def _pack_model(model: Any, flavour: str, directory: Path, *, is_chief: bool) -> dict[str, Any]:
    # A Keras 3 model is read without its peers; a tf_keras model may need them for each variable
    # that is summed or averaged over the ranks when it is read.
    if is_chief or flavour == "tf_keras":
        try:
            model.save(directory / _MODEL_FILE)
        except Exception as error:
            name = type(model).__name__
            raise InvalidArgument(
                f"the model that the training function returned ({name}) can't be saved: {error} "
                "A model class of your own needs get_config(), or return model.get_weights()."
            ) from error
    files = [_MODEL_FILE] if is_chief else []
    return {
        "kind": flavour if is_chief else "none",
        "files": files,
        "class": type(model).__name__,
        "inputs": _shapes(model, "input"),
        "outputs": _shapes(model, "output"),
    }


def _shapes(model: Any, kind: str) -> dict[str, list[int | None]]:
    """Return the shapes of a model's inputs or outputs; none for one that doesn't declare them.

    Their names are the keys of the dict that the model was made with, else those of the layers.
    """
    declared = getattr(model, f"{kind}s", None) or []
    titles = getattr(model, f"{kind}_names", None) or [tensor.name for tensor in declared]
    named = dict(zip(titles, declared, strict=False))
    structure = getattr(model, f"_{kind}s_struct", getattr(model, f"_nested_{kind}s", None))
    if isinstance(structure, dict) and all(hasattr(each, "shape") for each in structure.values()):
        named = structure
    return {
        title: [None if size is None else int(size) for size in tensor.shape]
        for title, tensor in named.items()
    }


def _load_model(flavour: str, path: Path, name: str, options: Mapping[str, Any]) -> Any:
    try:
        if flavour == "keras":
            import keras

            return keras.saving.load_model(path, **options)
        import tf_keras

        return tf_keras.models.load_model(path, **options)
    except ModuleNotFoundError as error:
        extra = "tensorflow" if flavour == "keras" else "tf-keras"
        raise MissingDependency(
            f"the result is a model ({name}), and reading it needs {error.name}: "
            f"pip install 'gridflow[{extra}]'. Its file can be copied from {path}."
        ) from error
    except Exception as error:
        raise GridflowError(
            f"the result is a model ({name}) that can't be read here: {error} Its file is {path}. "
            "Give classes and functions of your own by name, custom_objects={'Mine': Mine}, or "
            "register them (keras.saving.register_keras_serializable) before the result is used; "
            "a Lambda layer with Python code needs safe_mode=False."
        ) from error


def _plain(value: Any) -> Any:
    """Return the value of a History as what JSON knows."""
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
        """Say how an object is made again."""
        if flavour_of(obj, "History") is not None:
            return dict, (_plain(obj.history),)
        return super().reducer_override(obj)


def _pickled(value: Any) -> bytes:
    try:
        buffer = io.BytesIO()
        _Pickler(buffer).dump(value)
        return buffer.getvalue()
    except Exception as error:
        raise InvalidArgument(
            f"what the training function returned ({type(value).__name__}) can't be pickled: "
            f"{error} Return a model, a History, or plain values (numbers, arrays, dicts of them); "
            "a tensor becomes an array by .numpy()."
        ) from error


def _unpickled(path: Path) -> Any:
    try:
        return cloudpickle.loads(path.read_bytes())
    except Exception as error:
        raise GridflowError(
            f"what the training function returned can't be unpickled here: {error} "
            "Return plain values, or make the modules that it needs importable here."
        ) from error
