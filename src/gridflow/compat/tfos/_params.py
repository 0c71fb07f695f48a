"""The parameters of `gridflow.compat.tfos.pipeline`, each as a mix-in with setter and getter."""

from __future__ import annotations

import argparse
import copy
from typing import TYPE_CHECKING, Any

from pyspark.ml.param import Param, Params, TypeConverters

from gridflow.compat.tfos.TFCluster import InputMode
from gridflow.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class TFTypeConverters:
    """Converters that Spark ML lacks."""

    @staticmethod
    def toDict(value: Any) -> dict[str, str]:
        """Return the value if it is a dict, and raise TypeError otherwise."""
        if isinstance(value, dict):
            return value
        raise TypeError(f"expected a dict, such as {{'column': 'tensor'}}; got {value!r}.")


def _mixin(**params: tuple[str, str, Callable[[Any], Any]]) -> Any:
    """Return a mix-in with a setter and a getter for each parameter.

    `params`: By name: its name in those methods, what it is, and what Spark ML converts it with.
    """
    methods: dict[str, Any] = {"__module__": __name__, "__doc__": f"{', '.join(params)}."}
    for name, (title, text, converter) in params.items():

        def set_value(self: Any, value: Any, name: str = name) -> Any:
            return self._set(**{name: value})

        def get_value(self: Any, name: str = name) -> Any:
            return self.getOrDefault(self.getParam(name))

        param = Param(Params._dummy(), name, text, converter)  # noqa: SLF001 (as in Spark ML)
        set_value.__doc__, get_value.__doc__ = f"Set ``{name}``: {text}.", f"Return ``{name}``."
        methods |= {name: param, f"set{title}": set_value, f"get{title}": get_value}
    first, *_ = [title for title, _, _ in params.values()]
    return type(f"Has{first}", (Params,), methods)


_ignored = "only passed to the program"
_to_bool, _to_dict = TypeConverters.toBoolean, TFTypeConverters.toDict
_to_int, _to_text = TypeConverters.toInt, TypeConverters.toString

HasBatchSize = _mixin(batch_size=("BatchSize", "rows per batch", _to_int))
HasClusterSize = _mixin(cluster_size=("ClusterSize", "total number of nodes", _to_int))
HasEpochs = _mixin(epochs=("Epochs", "how many times the rows are fed", _to_int))
HasExportDir = _mixin(export_dir=("ExportDir", "folder for the SavedModel", _to_text))
HasGraceSecs = _mixin(grace_secs=("GraceSecs", "has no effect", _to_int))
HasInputMapping = _mixin(input_mapping=("InputMapping", "column to input tensor", _to_dict))
HasMasterNode = _mixin(master_node=("MasterNode", "job name of the first node", _to_text))
HasModelDir = _mixin(model_dir=("ModelDir", "folder for checkpoints", _to_text))
HasNumPS = _mixin(
    num_ps=("NumPS", "number of parameter servers", _to_int),
    driver_ps_nodes=("DriverPSNodes", "run parameter servers on the driver", _to_bool),
)
HasOutputMapping = _mixin(output_mapping=("OutputMapping", "output tensor to column", _to_dict))
HasProtocol = _mixin(protocol=("Protocol", _ignored, _to_text))
HasReaders = _mixin(readers=("Readers", _ignored, _to_int))
HasSteps = _mixin(steps=("Steps", _ignored, _to_int))
HasTagSet = _mixin(tag_set=("TagSet", "comma-separated tags of the SavedModel", _to_text))
HasTensorboard = _mixin(tensorboard=("Tensorboard", "whether to serve TensorBoard", _to_bool))
HasTFRecordDir = _mixin(tfrecord_dir=("TFRecordDir", _ignored, _to_text))
_InputMode: Any = _mixin(input_mode=("InputMode", "source of the rows: 1 (Spark)", _to_int))
_SignatureDefKey: Any = _mixin(
    signature_def_key=("SignatureDefKey", "key of the SavedModel's signature", _to_text)
)


class HasInputMode(_InputMode):
    """``input_mode``, which must be ``InputMode.SPARK``."""

    def setInputMode(self, value: int) -> Any:
        """Set ``input_mode``."""
        if value == InputMode.TENSORFLOW:
            raise InvalidArgument("an estimator supports only InputMode.SPARK.")
        return super().setInputMode(value)


class HasSignatureDefKey(_SignatureDefKey):
    """``signature_def_key``, None by default."""

    def __init__(self) -> None:
        super().__init__()
        self._setDefault(signature_def_key=None)


class Namespace:
    """Arguments by name, or a command line.

    Parameters
    ----------
    d : list, dict, argparse.Namespace or Namespace
        A list becomes ``argv``.
    """

    argv: list[str] | None = None

    def __init__(self, d: Any) -> None:
        if isinstance(d, list):
            self.argv = d
        elif isinstance(d, dict):
            self.__dict__.update(d)
        elif isinstance(d, argparse.Namespace | Namespace):
            self.__dict__.update(vars(d))
        else:
            raise InvalidArgument(
                f"arguments must be a list, a dict or an argparse.Namespace; got {d!r}."
            )

    def __iter__(self) -> Iterator[str]:
        return iter(self.argv or list(self.__dict__))

    def __repr__(self) -> str:
        if self.argv:
            return str(self.argv)
        items = ", ".join(f"{name}={value!r}" for name, value in sorted(vars(self).items()))
        return f"{type(self).__name__}({items})"

    def __eq__(self, other: object) -> bool:
        if self.argv:
            return self.argv == (other.argv if isinstance(other, Namespace) else other)
        return isinstance(other, Namespace | argparse.Namespace) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]


class TFParams(Params):
    """Combines a program's arguments with Spark ML parameters."""

    args: Any = None

    def merge_args_params(self) -> Any:
        """Return the arguments, overridden by the parameters' values."""
        merged = copy.copy(self.args)
        values = {p.name: self.getOrDefault(p) for p in self.params if self.isDefined(p)}
        vars(merged).update(values)
        return merged
