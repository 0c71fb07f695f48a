"""Predictions on the executors, by the model in a process of its own."""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gridflow._feed.ingest.base import quoted
from gridflow.compat.tfos import _setting
from gridflow.errors import GridflowError, InvalidArgument, SchemaError, did_you_mean
from gridflow.ml.columns import check_range
from gridflow.ml.inference.frames import with_predictions
from gridflow.ml.predict import serve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import numpy as np
    import pandas as pd
    from pyspark.sql import DataFrame

_log = logging.getLogger(__name__)
#: The column of all outputs, before each becomes a column of its own.
_PREDICTED: Final = "__gridflow_predicted"


@dataclass(frozen=True)
class Work:
    """What to predict, and with which model.

    `export_dir`: With None, the newest checkpoint in `model_dir` is used.
    `inputs`: tuple of (column, tensor).
    `outputs`: tuple of (tensor, column).
    """

    export_dir: str | None
    model_dir: str | None
    tags: tuple[str, ...] | None
    signature: str
    inputs: tuple[tuple[str, str], ...]
    outputs: tuple[tuple[str, str], ...]
    batch_size: int
    argv: list[str] | None = None
    num_gpus: float | None = None


def transform(dataset: DataFrame, work: Work) -> DataFrame:
    """Return the predictions for a DataFrame's rows."""
    from pyspark.sql import functions

    names = [column for column, _ in work.inputs]
    missing = [column for column in names if column not in dataset.columns]
    if missing:
        hint = did_you_mean(missing[0], dataset.columns)
        raise SchemaError(f"input_mapping: the DataFrame has no column {missing[0]!r}.{hint}")
    written = _written(work.export_dir or work.model_dir)

    def make(_written: object = written) -> Callable[..., dict[str, np.ndarray]]:
        return _LoadedModel(work).predict

    served = serve(
        make,
        inputs=names,
        outputs=f"struct<{_schema(dataset, work)}>",
        batch_size=work.batch_size,
        spark=dataset.sparkSession,
    )
    columns = [functions.col(quoted(name)) for name in names]
    predicted = with_predictions(dataset.select(columns), served, columns, _PREDICTED)
    return predicted.select(f"{_PREDICTED}.*")


def _schema(dataset: DataFrame, work: Work) -> str:
    """Ask an executor for the predictions' types; the driver may not have TensorFlow."""

    def ask(frames: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for frame in frames:
            frame["schema"] = _model(_Key(work)).schema
            yield frame[["schema"]]

    frame = dataset.sparkSession.range(1, numPartitions=1).mapInPandas(ask, "schema string")
    (row,) = frame.collect()
    return str(row["schema"])


class _Key:
    """Cache key: compares only what a `Work`'s model depends on."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.known_by = (
            *(work.export_dir, work.model_dir, work.tags, work.signature),
            *(work.inputs, work.outputs),
            _written(work.export_dir or work.model_dir),
        )

    def __hash__(self) -> int:
        return hash(self.known_by)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self.known_by == other.known_by


def _written(folder: str | None) -> tuple[int, int] | None:
    """Return what tells a model in a local folder from one that was there before."""
    local = Path((folder or "").removeprefix("file://"))
    for name in ("saved_model.pb", "checkpoint"):
        with contextlib.suppress(OSError):  # not this kind of model, or not a local one
            found = (local / name).stat()
            return found.st_mtime_ns, found.st_ino
    return None


@lru_cache(maxsize=1)
def _model(key: _Key) -> _LoadedModel:
    return _LoadedModel(key.work)


class _LoadedModel:
    """A loaded model with its selected inputs and outputs."""

    def __init__(self, work: Work) -> None:
        _setting.single_node_env(work.argv, work.num_gpus)
        self._work = work
        wanted = [tensor for _, tensor in work.inputs], [tensor for tensor, _ in work.outputs]
        if work.export_dir is None:
            restored = Restored(str(work.model_dir), *wanted)
            self._function, self._specs, given = restored.run, restored.inputs, restored.outputs
        else:
            self._function, self._specs, given = self._load(work.export_dir)
        inputs = _names(wanted[0], list(self._specs), "input")
        self._columns = {
            name: column for (column, _), name in zip(work.inputs, inputs, strict=True)
        }
        self._outputs = _names(wanted[1], list(given), "output")
        fields = [
            f"`{column}`: {_spark_type(given[name])}"
            for (_, column), name in zip(work.outputs, self._outputs, strict=True)
        ]
        self.schema = ", ".join(fields)

    def _load(self, export_dir: str) -> tuple[Callable[..., Any], Any, Any]:
        """Return a SavedModel's function, inputs and outputs."""
        from gridflow._keras import safe_mode

        # TensorFlowOnSpark knows no safe mode (docs/security.md).
        loaded = safe_mode.load_saved_model(export_dir, self._work.tags, is_safe=False)
        if self._work.signature not in loaded.signatures:
            raise InvalidArgument(
                f"the SavedModel has no signature {self._work.signature!r}; it has "
                f"{', '.join(loaded.signatures)}."
            )
        self._loaded = loaded  # a signature doesn't keep its model alive
        function = loaded.signatures[self._work.signature]
        return function, function.structured_input_signature[1], function.structured_outputs

    def predict(self, *columns: np.ndarray) -> dict[str, np.ndarray]:
        """Return the outputs for a batch of rows, by the columns that they become."""
        import numpy as np

        inputs = {
            name: self._tensor(values, self._specs[name], column)
            for (name, column), values in zip(self._columns.items(), columns, strict=True)
        }
        answers = self._function(**inputs)
        found = {}
        for (_, column), name in zip(self._work.outputs, self._outputs, strict=True):
            values: np.ndarray = np.asarray(answers[name])
            if values.ndim == 0 or len(values) != len(columns[0]):
                raise InvalidArgument(
                    f"output {name!r} has shape {values.shape} for {len(columns[0])} rows; an "
                    "output in output_mapping needs one value for each row."
                )
            found[column] = values
        return found

    def _tensor(self, values: np.ndarray, spec: Any, column: str) -> Any:
        import numpy as np
        import tensorflow as tf

        tensor = tf.convert_to_tensor(values.tolist() if values.dtype == object else values)
        if tensor.dtype != spec.dtype:
            if tensor.dtype.is_floating or tensor.dtype.is_integer:
                wanted = np.dtype(spec.dtype.as_numpy_dtype)
                has = f"the column {column!r} holds"
                check_range(tensor.numpy(), wanted, has, f"the model's {spec.dtype.name}")
            tensor = tf.cast(tensor, spec.dtype)
        if spec.shape.rank is None:
            return tensor
        # Restore the shape, because arrays in Spark are usually flat.
        return tf.reshape(tensor, [len(values), *(size or -1 for size in spec.shape[1:])])


def _names(wanted: Sequence[str], known: Sequence[str], what: str) -> list[str]:
    """Return the model's names for tensors; Keras 3 may have renamed a model's only tensor."""
    found = [name.removesuffix(":0") for name in wanted]
    unknown = [name for name in found if name not in known]
    if unknown and len(wanted) == len(known) == 1:
        _log.warning("the SavedModel's only %s is %r, not %r", what, known[0], unknown[0])
        return list(known)
    if unknown:
        raise InvalidArgument(
            f"the signature has no {what} {unknown[0]!r}; it has {', '.join(sorted(known))}."
            f"{did_you_mean(unknown[0], known)}"
        )
    return found


def _spark_type(spec: Any) -> str:
    """Return a column's type; numbers are as wide as Python's, as in the original."""
    kind = spec.dtype
    if kind.is_bool:
        name = "boolean"
    elif kind.is_integer:
        name = "bigint"
    elif kind.is_floating:
        name = "double"
    else:
        name = "binary"
    rank = spec.shape.rank
    for _ in range((1 if rank is None else rank) - 1):
        name = f"array<{name}>"
    return name


# Loads a TensorFlow 1 checkpoint with its graph (``.meta``) as a function.


class Restored:
    """A folder's newest checkpoint, restored into a session.

    `model_dir`: The folder, or the checkpoint itself.
    `inputs`, `outputs`: Names of tensors in the graph, with or without ``:0``.
    `inputs`, `outputs`: Tensors by name, without ``:0``.
    Raises `GridflowError`: If there is no checkpoint, or it has no graph.
    Raises `InvalidArgument`: If the graph has no such tensor.
    """

    def __init__(self, model_dir: str, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        import tensorflow as tf

        checkpoint = _newest(model_dir)
        graph = tf.Graph()
        with graph.as_default():
            saver = tf.compat.v1.train.import_meta_graph(f"{checkpoint}.meta", clear_devices=True)
            self._session = tf.compat.v1.Session(graph=graph)
            if saver is not None:  # None if the graph has no variables
                saver.restore(self._session, checkpoint)
        self.inputs = {_bare(name): _tensor(graph, name) for name in inputs}
        self.outputs = {_bare(name): _tensor(graph, name) for name in outputs}

    def run(self, **inputs: Any) -> dict[str, Any]:
        """Return the outputs for a batch."""
        import numpy as np

        values = {self.inputs[name]: np.asarray(value) for name, value in inputs.items()}
        found: dict[str, Any] = self._session.run(self.outputs, values)
        return found


def _newest(model_dir: str) -> str:
    import tensorflow as tf

    exists = tf.io.gfile.exists
    found = model_dir if exists(f"{model_dir}.meta") else tf.train.latest_checkpoint(model_dir)
    if found is None:
        raise GridflowError(
            f"model_dir={model_dir!r} contains no checkpoint of tf.compat.v1.train.Saver. For a "
            "SavedModel, use setExportDir()."
        )
    if not exists(f"{found}.meta"):
        raise GridflowError(
            f"the checkpoint {found} has no graph ({found}.meta), because TensorFlow 2 doesn't "
            "write one. Export the model with compat.export_saved_model(model, export_dir, True), "
            "and pass its folder to setExportDir()."
        )
    return str(found)


def _bare(name: str) -> str:
    return name.removesuffix(":0")


def _tensor(graph: Any, name: str) -> Any:
    try:
        return graph.get_tensor_by_name(name if ":" in name else f"{name}:0")
    except (KeyError, ValueError) as error:
        operations = graph.get_operations()
        open_ones = [
            each.name
            for each in operations
            if each.type.startswith("Placeholder") and not each.name.startswith("save")  # Saver's
        ]
        raise InvalidArgument(
            f"the checkpoint's graph has no tensor {name!r}; its placeholders are "
            f"{', '.join(open_ones) or 'none'}.{did_you_mean(name, [o.name for o in operations])}"
        ) from error
