"""Models for `predict_udf`, in the driver: their kind, inputs and outputs, and bytes."""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gridflow._agent.folder import temporary_folder
from gridflow._spec.option_checks import boolean
from gridflow._spec.program import dump_by_value
from gridflow.errors import InvalidArgument, MissingDependency, did_you_mean
from gridflow.ml.columns import STRING, Slot
from gridflow.ml.keras_file import KerasFile
from gridflow.ml.model_broadcast import zipped

if TYPE_CHECKING:
    from collections.abc import Iterable

#: The default signature of TensorFlow Serving and of Keras's export.
_DEFAULT_SIGNATURE: Final = "serving_default"
_SAVED_MODEL_FILE: Final = "saved_model.pb"


@dataclass(frozen=True)
class Servable:
    """A model, or a function that creates one, ready to be sent.

    `kind`: As in `gridflow.ml.serving.ServedModel`, like all but the following.
    `inputs`, `outputs` (dict of str to Slot): In the model's own order; empty if unknown.
    """

    kind: str
    content: bytes
    inputs: dict[str, Slot] = field(default_factory=dict)
    outputs: dict[str, Slot] = field(default_factory=dict)
    options: bytes = b""
    backend: str | None = None
    structure: str = "one"


def of(
    model: Any,
    custom_objects: Mapping[str, Any] | None,
    safe_mode: bool,
    signature: str | None,
    backend: str | None,
) -> Servable:
    """Convert the argument of `predict_udf` to a servable.

    Raises `InvalidArgument`: It isn't a model or a supported function, or can't be saved or read.
    Raises `GridflowError`: A file can't be read here.
    """
    from gridflow._keras import results

    if custom_objects is not None and not isinstance(custom_objects, Mapping):
        raise InvalidArgument(
            "custom_objects= maps names to classes or functions, {'Mine': Mine}; got "
            f"{custom_objects!r}."
        )
    boolean("safe_mode", safe_mode)
    options = {"custom_objects": dict(custom_objects or {}), "safe_mode": safe_mode}
    found: Servable
    if isinstance(model, KerasFile):
        found = _of_file(model.path.read_bytes(), model.header, options)
    elif results.flavour_of(model) is not None:
        found = _of_object(model, options)
    elif isinstance(model, str | Path):
        found = _of_path(str(model), options, signature)
    elif callable(model):
        found = Servable("function", dump_by_value(model))
    else:
        raise InvalidArgument(
            f"predict_udf takes a Keras model, result.model, the path of a .keras file or of a "
            f"SavedModel's folder, or a function that makes a function; got {model!r}."
        )
    if signature is not None and found.kind != "saved_model":
        raise InvalidArgument(f"signature={signature!r} is for SavedModels; leave it out.")
    if backend is not None and found.backend is None:
        raise InvalidArgument(f"backend={backend!r} is for models of Keras 3; leave it out.")
    return found


def _of_file(content: bytes, header: Mapping[str, Any], options: dict[str, Any]) -> Servable:
    """Return the servable of a ``.keras`` file with a header."""
    if not header["inputs"] or not header["outputs"]:
        return _of_undeclared(content, header["kind"], options)
    dtypes = header.get("dtypes", {})
    slots = {
        side: {
            name: Slot.of_batch(shape, dtype)
            for (name, shape), dtype in zip(
                header[side].items(), dtypes.get(side) or [None] * len(header[side]), strict=True
            )
        }
        for side in ("inputs", "outputs")
    }
    return Servable(
        header["kind"],
        content,
        slots["inputs"],
        slots["outputs"],
        dump_by_value({**options, "compile": False}),
        header.get("backend"),
        "one" if len(slots["inputs"]) == 1 else "dict",
    )


def _of_object(model: Any, options: dict[str, Any]) -> Servable:
    """Return the servable of a Keras model in this process, with its custom classes."""
    from gridflow._keras import results
    from gridflow._keras.patches import private_parts

    own = {
        type(each).__name__: type(each)
        for each in (model, *private_parts.layers(model))  # those of layers, too
        if type(each).__module__.split(".")[0] not in results.FLAVOURS
    }
    options = {**options, "custom_objects": {**own, **options["custom_objects"]}}
    with temporary_folder("gridflow-model-") as folder:
        try:
            header = results.pack(model, folder, is_chief=True)
        except InvalidArgument as error:
            raise InvalidArgument(
                f"this {type(model).__name__} can't be saved: {error.__cause__ or error} A "
                f"custom model class needs get_config(); or give a SavedModel of it, "
                "model.export(path)."
            ) from error
        content = (folder / header["files"][0]).read_bytes()
    return _of_file(content, header, options)


def _of_undeclared(content: bytes, kind: str, options: dict[str, Any]) -> Servable:
    """Return the servable of a subclassed model; its outputs are found by a test prediction.

    Raises `InvalidArgument`: It was never built, or can't predict rows of zeros.
    """
    from gridflow._keras import results

    with temporary_folder("gridflow-model-") as folder:
        (folder / "model.keras").write_bytes(content)
        header = {"kind": kind, "files": ["model.keras"]}
        model = results.unpack(header, folder, {**options, "compile": False})
    hint = (
        "Pass it as a SavedModel, whose signature declares them: model.export(path), "
        "predict_udf(path)."
    )
    shapes = (model.get_build_config() or {}).get("input_shape")
    if shapes is None:
        raise InvalidArgument(
            f"the inputs of {type(model).__name__} are unknown: it was never called, or has "
            f"several arguments. {hint}"
        )
    structure, named = "one", {"input": shapes}
    if isinstance(shapes, dict):
        structure, named = "dict", shapes
    elif shapes and isinstance(shapes[0], list | tuple):
        structure, named = "list", {f"input_{i}": shape for i, shape in enumerate(shapes)}
    inputs = {name: Slot.of_batch(shape) for name, shape in named.items()}
    zeros: Any = {
        name: np.zeros((2, *(size or 1 for size in slot.shape or ())), "float32")
        for name, slot in inputs.items()
    }
    if structure != "dict":
        zeros = list(zeros.values())
        zeros = zeros[0] if structure == "one" else zeros
    try:
        found = model.predict_on_batch(zeros)
    except Exception as error:
        raise InvalidArgument(
            f"the outputs of {type(model).__name__} are unknown, and it can't predict two rows of "
            f"zeros: {error} {hint}"
        ) from error
    if isinstance(found, list | tuple):
        found = {f"output_{i}": value for i, value in enumerate(found)}
    elif not isinstance(found, dict):
        found = {"output": found}
    outputs = {
        name: Slot.of_batch(np.shape(value), _dtype_name(np.asarray(value).dtype))
        for name, value in found.items()
    }
    about = results.described(model)
    return Servable(
        kind,
        content,
        inputs,
        outputs,
        dump_by_value({**options, "compile": False}),
        about.get("backend"),
        structure,
    )


def _dtype_name(dtype: np.dtype[Any]) -> str:
    return STRING if dtype.kind in "OSU" else dtype.name


def _of_path(path: str, options: dict[str, Any], signature: str | None) -> Servable:
    if "://" in path:
        with temporary_folder("gridflow-model-") as folder:
            return _of_path(str(_fetched(path, folder)), options, signature)
    place = Path(path)
    if (place / _SAVED_MODEL_FILE).is_file():
        return _of_saved_model(place, signature, options["safe_mode"])
    if place.is_file() and zipfile.is_zipfile(place):
        content = place.read_bytes()
        return _of_object_file(content, _flavour_of_file(content, path), options)
    if not place.exists():
        raise InvalidArgument(
            f"{path} doesn't exist; it must be a .keras file or a SavedModel's folder."
        )
    what = f"a folder without {_SAVED_MODEL_FILE}" if place.is_dir() else "not a .keras file"
    raise InvalidArgument(
        f"{path} is {what}. predict_udf takes .keras files and SavedModels; load anything else "
        "(.h5, weights, checkpoints) into a model and give that."
    )


def _of_object_file(content: bytes, kind: str, options: dict[str, Any]) -> Servable:
    """Return the servable of a ``.keras`` file, loaded once to find inputs and outputs."""
    from gridflow._keras import results

    with temporary_folder("gridflow-model-") as folder:
        (folder / "model.keras").write_bytes(content)
        header = {"kind": kind, "files": ["model.keras"]}
        model = results.unpack(header, folder, {**options, "compile": False})
    return _of_file(content, {**header, **results.described(model)}, options)


def _flavour_of_file(content: bytes, path: str) -> str:
    """Return the Keras flavour of a ``.keras`` file.

    Raises `InvalidArgument`: It isn't a ``.keras`` file.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            version = str(json.loads(archive.read("metadata.json"))["keras_version"])
    except (KeyError, TypeError, ValueError, zipfile.BadZipFile) as error:
        raise InvalidArgument(f"{path} is not a .keras file: {error}.") from error
    return "tf_keras" if version.startswith("2.") else "keras"


def _of_saved_model(folder: Path, signature: str | None, is_safe: bool) -> Servable:
    from gridflow._keras import safe_mode

    try:
        import tensorflow as tf
        from tensorflow.core.protobuf import saved_model_pb2
    except ModuleNotFoundError as error:
        raise MissingDependency(
            f"a SavedModel is read by TensorFlow: pip install 'gridflow[tensorflow]' ({error})."
        ) from error
    if is_safe:
        safe_mode.check_saved_model(str(folder))
    read = saved_model_pb2.SavedModel()
    read.ParseFromString((folder / _SAVED_MODEL_FILE).read_bytes())
    graph = next(
        (graph for graph in read.meta_graphs if "serve" in graph.meta_info_def.tags),
        read.meta_graphs[0],
    )
    # Names with two leading underscores are TensorFlow's own.
    there = {name: each for name, each in graph.signature_def.items() if not name.startswith("__")}
    name = signature or (_DEFAULT_SIGNATURE if len(there) != 1 else next(iter(there)))
    if name not in there:
        raise InvalidArgument(
            f"the SavedModel {folder} has no signature {name!r}; it has "
            f"{', '.join(map(repr, sorted(there))) or 'none'}.{did_you_mean(name, there)} "
            "Choose one with signature=."
        )
    slots = {
        side: {key: _slot_of_tensor(key, info, tf) for key, info in sorted(tensors.items())}
        for side, tensors in (("inputs", there[name].inputs), ("outputs", there[name].outputs))
    }
    for key, info in there[name].inputs.items():
        if not (info.tensor_shape.unknown_rank or info.tensor_shape.dim):
            raise InvalidArgument(
                f"the input {key!r} of the signature {name!r} takes a single value instead of "
                "rows, so it can't be fed from a column. Export a signature with a fixed value."
            )
    options = {"signature": name, "tags": list(graph.meta_info_def.tags), "safe_mode": is_safe}
    return Servable(
        "saved_model", zipped(folder), slots["inputs"], slots["outputs"], dump_by_value(options)
    )


def _slot_of_tensor(name: str, info: Any, tf: Any) -> Slot:
    if info.WhichOneof("encoding") != "name":
        raise InvalidArgument(
            f"the tensor {name!r} of the SavedModel is sparse or ragged, which isn't supported for "
            "columns."
        )
    dtype = tf.dtypes.as_dtype(info.dtype).name
    if info.tensor_shape.unknown_rank:
        return Slot(None, dtype)
    sizes = [None if dim.size < 0 else int(dim.size) for dim in info.tensor_shape.dim]
    return Slot.of_batch(sizes, dtype)


def _fetched(url: str, folder: Path) -> Path:
    """Copy a model from a file system that pyarrow supports: file, hdfs, s3, gs.

    Raises `InvalidArgument`: It doesn't exist or can't be read.
    """
    from pyarrow import ArrowException, fs

    target = folder / (os.path.basename(url.rstrip("/")) or "model")  # noqa: PTH119 (no path)
    try:
        fs.copy_files(url, str(target))
    except (ArrowException, OSError) as error:
        raise InvalidArgument(f"{url} can't be read: {error}") from error
    return target


def check_names(what: str, given: Iterable[str], there: Iterable[str]) -> None:
    """Reject names that a model doesn't have.

    Raises `InvalidArgument`: Lists the existing names.
    """
    names = list(there)
    for name in given:
        if name not in names:
            listed = ", ".join(repr(each) for each in names)
            raise InvalidArgument(
                f"the model has no {what} {name!r}; it has {listed}."
                f"{did_you_mean(str(name), names)}"
            )
