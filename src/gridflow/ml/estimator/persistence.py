"""Saves estimators and models as folders, on any file system that Spark supports.

::

    metadata/        what all stages of Spark ML have: class, uid, Params that JSON can hold
    model.keras      the Keras model: the trained one, or that which an estimator begins with
    summary.json     history and ledger of the fit, of a model
    objects.pickle   Params that JSON can't hold: functions, callbacks, custom objects

``objects.pickle`` exists only if needed, and is code: load it only from sources you trust.

Nothing in a folder turns off safe mode: the Param is ignored on loading, and the header can only
name a Keras model. Only the caller's ``setSafeMode(False)`` does.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import secrets
import tempfile
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

import cloudpickle
from pyspark.ml.util import DefaultParamsReader, DefaultParamsWriter, MLReader, MLWriter

from gridflow._launch.spark import files
from gridflow._spec.backends import BACKENDS
from gridflow._spec.program import dump_by_value
from gridflow.errors import GridflowError, InvalidArgument
from gridflow.ml.estimator import keras_objects
from gridflow.ml.estimator.summary import KerasTrainingSummary
from gridflow.ml.keras_file import MODEL_KINDS
from gridflow.ml.model import TrainedModel

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.ml.param import Params
    from pyspark.ml.util import MLReadable


T = TypeVar("T", bound="MLReadable[Any]")

_log: Final = logging.getLogger(__name__)

_MODEL: Final = "model.keras"
_OBJECTS: Final = "objects.pickle"
_SUMMARY: Final = "summary.json"
_FILES: Final = frozenset({_MODEL, _OBJECTS, _SUMMARY})
_SAFE_MODE: Final = "safeMode"
#: The key of gridflow's part of Spark's metadata.
_OURS: Final = "gridflow"


def fingerprint(value: Any) -> Any:
    """Return a JSON value that is the same for the same value of a Param."""
    if _is_json(value):
        return value
    if keras_objects.is_model(value):
        weights = hashlib.sha256()
        for array in value.get_weights():
            weights.update(array.tobytes())
        return [value.to_json(), weights.hexdigest()]
    return hashlib.sha256(dump_by_value(value)).hexdigest()


class ParamsWriter(MLWriter):
    """Saves an object whose Params may not be JSON-compatible."""

    #: The saved class name, by which Spark finds the reader.
    name: ClassVar[str]

    def __init__(self, instance: Params) -> None:
        super().__init__()
        self.instance: Any = instance

    def save(self, path: str) -> None:
        """Save it; an error if the path exists, unless ``overwrite()`` was called.

        An existing folder is replaced when everything has been written. (This isn't possible over
        Spark Connect.)
        """
        if not isinstance(path, str):
            raise TypeError(f"path should be a string, got type {type(path)}")
        files.check_writable(self.sparkSession, path)
        if files.exists(self.sparkSession, path):
            if not self.shouldOverwrite:
                raise InvalidArgument(
                    f"{path} already exists. To replace it: .write().overwrite().save(path)."
                )
            if not files.can_rename(self.sparkSession):
                files.delete(self.sparkSession, path)  # says why it can't
        if not files.can_rename(self.sparkSession):
            self.saveImpl(path)
            return
        folder, slash, _ = path.rstrip("/").rpartition("/")
        beside = f"{folder}{slash}.gridflow-{secrets.token_hex(6)}.partial"
        try:
            self.saveImpl(beside)
            files.replace(self.sparkSession, beside, path)
        except BaseException:
            with contextlib.suppress(Exception):  # the block's exception is reported
                files.delete(self.sparkSession, beside)
            raise

    def saveImpl(self, path: str) -> None:  # noqa: N802 (Spark's name)
        """Write metadata and files."""
        held: dict[str, Any] = {}
        objects: dict[str, Any] = {}
        for param, value in self.instance._paramMap.items():  # noqa: SLF001 (as Spark's writer)
            (held if _is_json(value, param.typeConverter) else objects)[param.name] = value
        about: dict[str, Any] = {}
        with tempfile.TemporaryDirectory(prefix="gridflow-save-") as name:
            folder = Path(name)
            self._add(folder, about, objects)
            if objects:
                (folder / _OBJECTS).write_bytes(_pickled(objects))
            about["files"] = sorted(file.name for file in folder.iterdir())
            self._save_metadata(path, held, about)
            for file in about["files"]:
                files.upload(self.sparkSession, folder / file, f"{path.rstrip('/')}/{file}")

    def _add(self, folder: Path, about: dict[str, Any], objects: dict[str, Any]) -> None:
        """Write further files, and record metadata about them."""
        raise NotImplementedError

    def _save_metadata(self, path: str, held: dict[str, Any], about: dict[str, Any]) -> None:
        extra = {_OURS: about, "class": self.name}
        DefaultParamsWriter.saveMetadata(self.instance, path, self.sparkSession, extra, held)


class EstimatorWriter(ParamsWriter):
    """Saves a `KerasEstimator` with its initial model."""

    name = "gridflow.ml.KerasEstimator"

    def _add(self, folder: Path, about: dict[str, Any], objects: dict[str, Any]) -> None:
        model = objects.get("model")
        if keras_objects.is_model(model):
            model = keras_objects.ModelFile.of(model)
        if isinstance(model, keras_objects.ModelFile):
            del objects["model"]
            (folder / _MODEL).write_bytes(model.content)
            about["header"] = {**model.header, "files": [_MODEL]}


class ModelWriter(ParamsWriter):
    """Saves a `KerasModel`."""

    name = "gridflow.ml.KerasModel"

    def _add(self, folder: Path, about: dict[str, Any], objects: dict[str, Any]) -> None:
        del objects
        trained = self.instance.trainedModel
        trained.save(folder / _MODEL)
        about["header"] = {**trained.header, "files": [_MODEL]}
        if self.instance.hasSummary:
            (folder / _SUMMARY).write_text(json.dumps(self.instance.summary.to_dict()))


class ParamsReader(MLReader[T]):
    """Loads objects saved by a `ParamsWriter`.

    `kind`: The class to load.
    """

    def __init__(self, kind: type[T]) -> None:
        super().__init__()
        self.kind = kind

    def load(self, path: str) -> T:
        """Load it.

        Raises `InvalidArgument`: Something else was saved there.
        Raises `GridflowError`: It can't be read here; the message says why.
        """
        if not isinstance(path, str):
            raise TypeError(f"path should be a string, got type {type(path)}")
        metadata = DefaultParamsReader.loadMetadata(path, self.sparkSession)
        if metadata["class"] != f"gridflow.ml.{self.kind.__name__}":
            raise InvalidArgument(
                f"{path} holds a {metadata['class']}, not a gridflow.ml.{self.kind.__name__}."
            )
        about = metadata[_OURS]
        _check(about, path)
        wants_unsafe = _without_safe_mode(metadata)
        folder = tempfile.TemporaryDirectory(prefix="gridflow-loaded-")
        try:
            for file in about["files"]:
                source = f"{path.rstrip('/')}/{file}"
                files.download(self.sparkSession, source, Path(folder.name) / file)
            instance: Any = self._made(about, folder)
        except BaseException:
            folder.cleanup()
            raise
        instance._resetUid(metadata["uid"])  # noqa: SLF001 (as Spark's own readers do)
        DefaultParamsReader.getAndSetParams(instance, metadata)
        objects = Path(folder.name) / _OBJECTS
        if objects.is_file():
            held = _unpickled(objects)
            held.pop(_SAFE_MODE, None)
            instance._set(**held)  # noqa: SLF001
        if wants_unsafe:
            _log.warning(
                "%s was saved with safeMode=False, and is loaded in safe mode: if you trust who "
                "saved it, call setSafeMode(False) on the loaded %s.",
                *(path, self.kind.__name__),
            )
        self._finish(instance, about, folder)
        return instance  # type: ignore[no-any-return]

    def _made(self, about: dict[str, Any], folder: tempfile.TemporaryDirectory[str]) -> Any:
        raise NotImplementedError

    def _finish(
        self, instance: Any, about: dict[str, Any], folder: tempfile.TemporaryDirectory[str]
    ) -> None:
        """Read the rest of the folder."""


class EstimatorReader(ParamsReader[T]):
    """Loads a `KerasEstimator`; imports Keras if it has an initial Keras model."""

    def _made(self, about: dict[str, Any], folder: tempfile.TemporaryDirectory[str]) -> Any:
        del about, folder
        return self.kind()

    def _finish(
        self, instance: Any, about: dict[str, Any], folder: tempfile.TemporaryDirectory[str]
    ) -> None:
        instance.isLoaded = True
        with folder:
            if "header" in about:
                file = keras_objects.ModelFile.at(about["header"], Path(folder.name) / _MODEL)
                instance.setModel(file)
        if "header" in about:
            try:
                instance.setModel(instance.getModel())
            except GridflowError as error:  # the caller may still set how to read it
                _log.warning("the model of the loaded %s wasn't read: %s", instance.uid, error)


class ModelReader(ParamsReader[T]):
    """Loads a `KerasModel`; the driver doesn't need Keras."""

    def _made(self, about: dict[str, Any], folder: tempfile.TemporaryDirectory[str]) -> Any:
        at = Path(folder.name)
        trained = TrainedModel(about["header"], at)
        weakref.finalize(trained, folder.cleanup)  # its file must exist as long as the object
        told = at / _SUMMARY
        summary = None
        if told.is_file():
            summary = KerasTrainingSummary.from_dict(json.loads(told.read_text()))
        kind: Any = self.kind
        return kind(trained, summary)


def _check(about: dict[str, Any], path: str) -> None:
    """Reject what a `ParamsWriter` never writes, such as a header that makes a model a pickle.

    Raises `GridflowError`: Names the path.
    """
    header = about.get("header", {})
    is_ours = set(about["files"]) <= _FILES and (
        not header
        or (
            header["kind"] in MODEL_KINDS
            and header["files"] == [_MODEL]
            and _MODEL in about["files"]
            and header.get("backend") in (None, *BACKENDS)
        )
    )
    if not is_ours:
        raise GridflowError(
            f"{path} isn't a Keras model that gridflow saved: its metadata has the files "
            f"{about['files']!r} and the header {header!r}."
        )


def _without_safe_mode(metadata: dict[str, Any]) -> bool:
    """Remove safe mode from the saved Params; return whether it was off."""
    saved = [
        metadata[part].pop(_SAFE_MODE, True)
        for part in ("defaultParamMap", "paramMap")
        if part in metadata
    ]
    return not all(saved)


def _is_json(value: Any, convert: Callable[[Any], Any] = lambda value: value) -> bool:
    """Return whether a value, once a Param has converted it, comes back from JSON."""
    try:
        return bool(convert(json.loads(json.dumps(value))) == value)
    except (TypeError, ValueError):
        return False


def _pickled(objects: dict[str, Any]) -> bytes:
    try:
        return dump_by_value(objects)
    except Exception as error:
        raise InvalidArgument(
            f"the Params {', '.join(objects)} can't be saved: {type(error).__name__}: {error}"
        ) from error


def _unpickled(file: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = cloudpickle.loads(file.read_bytes())
    except Exception as error:
        raise GridflowError(
            f"Params that are functions or objects can't be read here: {type(error).__name__}: "
            f"{error} They need the modules and the version of Python that they were saved with."
        ) from error
    return found
