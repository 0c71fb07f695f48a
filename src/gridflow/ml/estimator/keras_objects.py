"""Keras optimizers, losses, metrics and models in a form that can be sent, saved and restored.

The driver needs Keras only if the user has created Keras objects there.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gridflow._keras import results, safe_mode
from gridflow.errors import GridflowError, InvalidArgument

#: Saving a model reads all of its variables; fits of several threads may send the same one.
_saving: Final = threading.Lock()
_KINDS: Final = (("optimizers", "Optimizer"), ("losses", "Loss"), ("metrics", "Metric"))


@dataclass(frozen=True)
class ModelFile:
    """A Keras model as a file.

    `header`: As `gridflow._keras.results.pack` returns it.
    `content`: The ``.keras`` file.
    """

    header: dict[str, Any]
    content: bytes
    is_compiled: bool

    @classmethod
    def of(cls, model: Any) -> ModelFile:
        """Save a model.

        Raises `InvalidArgument`: Keras can't save it.
        """
        with _saving, tempfile.TemporaryDirectory(prefix="gridflow-model-") as folder:
            try:
                header = results.pack(model, Path(folder), is_chief=True)
            except InvalidArgument as error:
                raise InvalidArgument(
                    f"model= can't be sent to the workers, as Keras can't save it: "
                    f"{error.__cause__} Give a function without arguments that makes it instead."
                ) from error
            content = (Path(folder) / header["files"][0]).read_bytes()
        return cls(header, content, is_compiled(model))

    @classmethod
    def at(cls, header: Mapping[str, Any], path: Path) -> ModelFile:
        """Return a ``.keras`` file without loading it.

        Raises `GridflowError`: It isn't a ``.keras`` file.
        """
        try:
            with zipfile.ZipFile(path) as archive:
                config = json.loads(archive.read("config.json"))
                is_compiled = bool(config.get("compile_config"))
        except (AttributeError, KeyError, ValueError, zipfile.BadZipFile) as error:
            raise GridflowError(f"{path.name} is not a file of a Keras model: {error}") from error
        return cls(dict(header), path.read_bytes(), is_compiled)

    def load(self, options: Mapping[str, Any]) -> Any:
        """Return the model."""
        with tempfile.TemporaryDirectory(prefix="gridflow-model-") as folder:
            (Path(folder) / self.header["files"][0]).write_bytes(self.content)
            return results.unpack(self.header, Path(folder), options)


def is_compiled(model: Any) -> bool:
    """Return whether a model of either flavour is compiled."""
    return getattr(model, "optimizer", None) is not None


def is_model(value: object) -> bool:
    """Return whether this is a Keras model of either flavour."""
    return results.flavour_of(value) is not None


def described(value: Any) -> Any:
    """Convert Keras's own objects to their config dicts, at any depth.

    Names, functions and objects of custom classes are unchanged.
    """
    if isinstance(value, Mapping):
        return {name: described(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [described(each) for each in value]
    package = _package_of(value)
    if package is None or type(value).__module__.partition(".")[0] not in results.FLAVOURS:
        return value
    return package.saving.serialize_keras_object(value)


def own_classes(value: Any) -> tuple[Any, dict[str, Any]]:
    """Convert objects of custom classes to dicts, too; return them and these classes by name."""
    if isinstance(value, Mapping):
        pairs = {name: own_classes(each) for name, each in value.items()}
        found = {name: kind for _, kinds in pairs.values() for name, kind in kinds.items()}
        return {name: plain for name, (plain, _) in pairs.items()}, found
    if isinstance(value, list | tuple):
        parts = [own_classes(each) for each in value]
        return [plain for plain, _ in parts], {n: k for _, kinds in parts for n, k in kinds.items()}
    package = _package_of(value)
    if package is None:
        return value, {}
    plain = package.saving.serialize_keras_object(value)
    return plain, {plain.get("registered_name") or plain["class_name"]: type(value)}


def revived(value: Any, package: Any, custom_objects: Mapping[str, Any]) -> Any:
    """Restore the objects from dicts of `described` or `own_classes`."""
    if isinstance(value, Mapping):
        if "class_name" in value and "config" in value:
            return package.saving.deserialize_keras_object(
                dict(value), custom_objects=dict(custom_objects)
            )
        return {name: revived(each, package, custom_objects) for name, each in value.items()}
    if isinstance(value, list):
        return [revived(each, package, custom_objects) for each in value]
    return value


def flavour_package(model: Any) -> Any:
    """Return the package of a model, ``keras`` or ``tf_keras``.

    Raises `GridflowError`: It isn't a model.
    """
    flavour = results.flavour_of(model)
    if flavour is None:
        raise GridflowError(
            f"the function given as model= returned {type(model).__name__}, not a Keras model."
        )
    return sys.modules[flavour]


def compile_with(
    model: Any,
    given: Mapping[str, Any],
    learning_rate: float | None,
    custom_objects: Mapping[str, Any],
    is_safe: bool = True,
) -> None:
    """Compile a model with the given arguments; others stay as compiled before.

    `given`: Any of ``optimizer``, ``loss`` and ``metrics``.
    `learning_rate`: Of the optimizer, whichever it is.
    `is_safe`: Whether safe mode applies.
    Raises `InvalidArgument`: It has no loss, or its optimizer's learning rate follows a schedule.
    """
    package = flavour_package(model)
    if not is_compiled(model) and "loss" not in given:
        raise InvalidArgument(NOT_COMPILED)
    if given:
        arguments: dict[str, Any] = {}
        if is_compiled(model):
            config = model.get_compile_config()
            arguments = dict(revived(config, package, custom_objects))
            arguments["optimizer"] = model.optimizer  # with its state
        if package.__name__ == "tf_keras" and is_safe:
            safe_mode.check_config(given, custom_objects)  # they may be those of a saved estimator
        arguments.update(revived(dict(given), package, custom_objects))
        model.compile(**arguments)
    if learning_rate is not None:
        try:
            model.optimizer.learning_rate = learning_rate
        except TypeError as error:
            raise InvalidArgument(
                f"learningRate={learning_rate:g} can't be set: the learning rate of the "
                f"optimizer ({type(model.optimizer).__name__}) follows a schedule. Leave one out."
            ) from error


NOT_COMPILED: Final = (
    "the model isn't compiled, so it has no loss to train on: compile it, or give the estimator "
    "loss= (and optimizer=)."
)


def returned_by(function: Callable[[], Any]) -> Any:
    """Return the model created by a user's function."""
    model = function()
    flavour_package(model)
    return model


def _package_of(value: Any) -> Any:
    """Return the Keras package of an optimizer, loss or metric, or None."""
    for flavour in results.FLAVOURS:
        package = sys.modules.get(flavour)
        for module, name in _KINDS if package is not None else ():
            kind = getattr(getattr(package, module, None), name, None)
            if kind is not None and isinstance(value, kind):
                return package
    return None
