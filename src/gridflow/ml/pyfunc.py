"""Trained models as MLflow's flavour ``python_function``.

The model's folder holds the ``.keras`` file; MLflow calls this module to load it.
"""

from __future__ import annotations

import json
import shutil
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gridflow._agent.folder import temporary_folder
from gridflow.ml import columns, servable, serving
from gridflow.ml.keras_file import KerasFile
from gridflow.ml.model_broadcast import Parcel, key_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd

    from gridflow.ml.columns import Slot

_HEADER: Final = "header.json"
#: MLflow's types of columns by Spark's.
_MLFLOW_TYPES: Final = {
    "boolean": "boolean",
    "tinyint": "integer",
    "smallint": "integer",
    "int": "integer",
    "bigint": "long",
    "float": "float",
    "double": "double",
    "string": "string",
    "binary": "binary",
}


def save(model: KerasFile, path: Path, data: Mapping[str, Any], run: str) -> None:
    """Write a model as MLflow's ``save_model`` does.

    `data`: The datasets that it was trained on; the signature has the types of their columns.
    `run`: Id of the MLflow run that it belongs to.
    """
    from mlflow import pyfunc
    from mlflow.models import Model

    served = servable.of(model, None, safe_mode=True, signature=None, backend=None)
    extra = "tf-keras" if model.header["kind"] == "tf_keras" else served.backend or "tensorflow"
    with temporary_folder("gridflow-mlflow-") as folder:
        files = folder / "keras"
        files.mkdir()
        shutil.copyfile(model.path, files / model.path.name)
        (files / _HEADER).write_text(json.dumps(model.header))
        pyfunc.save_model(
            path,
            loader_module=__name__,
            data_path=str(files),
            mlflow_model=Model(artifact_path="model", run_id=run),
            signature=_signature(served.inputs, served.outputs, data),
            pip_requirements=[f"gridflow[{extra}]=={version('gridflow')}"],
        )


def _signature(
    inputs: Mapping[str, Slot], outputs: Mapping[str, Slot], data: Mapping[str, Any]
) -> Any:
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, Schema

    # `dtypes` of Spark's DataFrames is a list, pandas' isn't.
    frames = (getattr(each, "dtypes", None) for each in data.values())
    fed = {name: kind for each in frames if isinstance(each, list) for name, kind in each}
    taken = [
        ColSpec(_kind(fed.get(name, "")) or _kind(slot.spark_type), name)
        for name, slot in inputs.items()
    ]
    given = [ColSpec(_kind(slot.spark_type), name) for name, slot in outputs.items()]
    return ModelSignature(Schema(taken), Schema(given))


def _kind(spark_type: str) -> Any:
    """Return MLflow's type of a column; None where it has none."""
    from mlflow.types.schema import Array, DataType

    if spark_type.startswith("array<"):
        inner = _kind(spark_type.removeprefix("array<").removesuffix(">"))
        return None if inner is None else Array(inner)
    name = _MLFLOW_TYPES.get(spark_type)
    return None if name is None else DataType[name]


class _Predictor:
    """What MLflow calls for predictions."""

    def __init__(self, folder: Path) -> None:
        header = json.loads((folder / _HEADER).read_text())
        given = servable.of(
            KerasFile(header, folder), None, safe_mode=True, signature=None, backend=None
        )
        self._inputs = given.inputs
        self._predict = serving.load(
            serving.ServedModel(
                kind=given.kind,
                parcel=Parcel(key_of(given.content), given.content),
                inputs=given.inputs,
                outputs=tuple(given.outputs),
                chosen={},
                is_struct=False,
                options=given.options,
                backend=given.backend,
                arguments=tuple(given.inputs),
                structure=given.structure,
            )
        )

    def predict(self, frame: pd.DataFrame, params: Any = None) -> pd.DataFrame:  # noqa: ARG002
        """Return a column for each output."""
        import pandas as pd
        import pyarrow as pa

        # By name, or in order: Keras gives inputs without a name one of its own.
        names = list(self._inputs)
        taken = frame[names] if set(names) <= set(frame) else frame
        arrays = [
            columns.to_input(pa.Array.from_pandas(taken[column]), slot, name)
            for (name, slot), column in zip(self._inputs.items(), taken, strict=True)
        ]
        found = {}
        for name, values in self._predict(arrays).items():
            flat = values.reshape(len(frame), -1)
            found[name] = flat[:, 0] if flat.shape[1] == 1 else list(values)
        return pd.DataFrame(found)


def _load_pyfunc(path: str) -> _Predictor:
    """Load a model: MLflow calls this by name."""
    return _Predictor(Path(path))
