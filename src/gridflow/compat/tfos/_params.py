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


def _param(name: str, text: str, converter: Callable[[Any], Any]) -> Any:
    return Param(Params._dummy(), name, text, converter)  # noqa: SLF001 (as in Spark ML)


class HasBatchSize(Params):
    """``batch_size``."""

    batch_size = _param("batch_size", "rows per batch", TypeConverters.toInt)

    def setBatchSize(self, value: int) -> Any:
        """Set ``batch_size``."""
        return self._set(batch_size=value)

    def getBatchSize(self) -> int:
        """Return ``batch_size``."""
        return int(self.getOrDefault(self.batch_size))


class HasClusterSize(Params):
    """``cluster_size``."""

    cluster_size = _param("cluster_size", "total number of nodes", TypeConverters.toInt)

    def setClusterSize(self, value: int) -> Any:
        """Set ``cluster_size``."""
        return self._set(cluster_size=value)

    def getClusterSize(self) -> int:
        """Return ``cluster_size``."""
        return int(self.getOrDefault(self.cluster_size))


class HasEpochs(Params):
    """``epochs``."""

    epochs = _param("epochs", "how many times the rows are fed", TypeConverters.toInt)

    def setEpochs(self, value: int) -> Any:
        """Set ``epochs``."""
        return self._set(epochs=value)

    def getEpochs(self) -> int:
        """Return ``epochs``."""
        return int(self.getOrDefault(self.epochs))


class HasGraceSecs(Params):
    """``grace_secs``."""

    grace_secs = _param("grace_secs", "has no effect", TypeConverters.toInt)

    def setGraceSecs(self, value: int) -> Any:
        """Set ``grace_secs``."""
        return self._set(grace_secs=value)

    def getGraceSecs(self) -> int:
        """Return ``grace_secs``."""
        return int(self.getOrDefault(self.grace_secs))


class HasInputMapping(Params):
    """``input_mapping``."""

    input_mapping = _param("input_mapping", "column to input tensor", TFTypeConverters.toDict)

    def setInputMapping(self, value: dict[str, str]) -> Any:
        """Set ``input_mapping``."""
        return self._set(input_mapping=value)

    def getInputMapping(self) -> dict[str, str]:
        """Return ``input_mapping``."""
        return dict(self.getOrDefault(self.input_mapping))


class HasInputMode(Params):
    """``input_mode``."""

    input_mode = _param("input_mode", "source of the rows: 1 (Spark)", TypeConverters.toInt)

    def setInputMode(self, value: int) -> Any:
        """Set ``input_mode``, which must be ``InputMode.SPARK``."""
        if value == InputMode.TENSORFLOW:
            raise InvalidArgument("an estimator supports only InputMode.SPARK.")
        return self._set(input_mode=value)

    def getInputMode(self) -> int:
        """Return ``input_mode``."""
        return int(self.getOrDefault(self.input_mode))


class HasMasterNode(Params):
    """``master_node``."""

    master_node = _param("master_node", "job name of the first node", TypeConverters.toString)

    def setMasterNode(self, value: str) -> Any:
        """Set ``master_node``."""
        return self._set(master_node=value)

    def getMasterNode(self) -> str:
        """Return ``master_node``."""
        return str(self.getOrDefault(self.master_node))


class HasModelDir(Params):
    """``model_dir``."""

    model_dir = _param("model_dir", "folder for checkpoints", TypeConverters.toString)

    def setModelDir(self, value: str) -> Any:
        """Set ``model_dir``."""
        return self._set(model_dir=value)

    def getModelDir(self) -> str | None:
        """Return ``model_dir``."""
        return self.getOrDefault(self.model_dir)  # type: ignore[no-any-return]


class HasNumPS(Params):
    """``num_ps`` and ``driver_ps_nodes``."""

    num_ps = _param("num_ps", "number of parameter servers", TypeConverters.toInt)
    driver_ps_nodes = _param(
        "driver_ps_nodes", "run parameter servers on the driver", TypeConverters.toBoolean
    )

    def setNumPS(self, value: int) -> Any:
        """Set ``num_ps``."""
        return self._set(num_ps=value)

    def getNumPS(self) -> int:
        """Return ``num_ps``."""
        return int(self.getOrDefault(self.num_ps))

    def setDriverPSNodes(self, value: bool) -> Any:
        """Set ``driver_ps_nodes``."""
        return self._set(driver_ps_nodes=value)

    def getDriverPSNodes(self) -> bool:
        """Return ``driver_ps_nodes``."""
        return bool(self.getOrDefault(self.driver_ps_nodes))


class HasOutputMapping(Params):
    """``output_mapping``."""

    output_mapping = _param("output_mapping", "output tensor to column", TFTypeConverters.toDict)

    def setOutputMapping(self, value: dict[str, str]) -> Any:
        """Set ``output_mapping``."""
        return self._set(output_mapping=value)

    def getOutputMapping(self) -> dict[str, str]:
        """Return ``output_mapping``."""
        return dict(self.getOrDefault(self.output_mapping))


class HasProtocol(Params):
    """``protocol``, only passed to the program."""

    protocol = _param("protocol", "only passed to the program", TypeConverters.toString)

    def setProtocol(self, value: str) -> Any:
        """Set ``protocol``."""
        return self._set(protocol=value)

    def getProtocol(self) -> str:
        """Return ``protocol``."""
        return str(self.getOrDefault(self.protocol))


class HasReaders(Params):
    """``readers``, only passed to the program."""

    readers = _param("readers", "only passed to the program", TypeConverters.toInt)

    def setReaders(self, value: int) -> Any:
        """Set ``readers``."""
        return self._set(readers=value)

    def getReaders(self) -> int:
        """Return ``readers``."""
        return int(self.getOrDefault(self.readers))


class HasSteps(Params):
    """``steps``, only passed to the program."""

    steps = _param("steps", "only passed to the program", TypeConverters.toInt)

    def setSteps(self, value: int) -> Any:
        """Set ``steps``."""
        return self._set(steps=value)

    def getSteps(self) -> int:
        """Return ``steps``."""
        return int(self.getOrDefault(self.steps))


class HasTensorboard(Params):
    """``tensorboard``."""

    tensorboard = _param("tensorboard", "whether to serve TensorBoard", TypeConverters.toBoolean)

    def setTensorboard(self, value: bool) -> Any:
        """Set ``tensorboard``."""
        return self._set(tensorboard=value)

    def getTensorboard(self) -> bool:
        """Return ``tensorboard``."""
        return bool(self.getOrDefault(self.tensorboard))


class HasTFRecordDir(Params):
    """``tfrecord_dir``, only passed to the program."""

    tfrecord_dir = _param("tfrecord_dir", "only passed to the program", TypeConverters.toString)

    def setTFRecordDir(self, value: str) -> Any:
        """Set ``tfrecord_dir``."""
        return self._set(tfrecord_dir=value)

    def getTFRecordDir(self) -> str | None:
        """Return ``tfrecord_dir``."""
        return self.getOrDefault(self.tfrecord_dir)  # type: ignore[no-any-return]


class HasExportDir(Params):
    """``export_dir``."""

    export_dir = _param("export_dir", "folder for the SavedModel", TypeConverters.toString)

    def setExportDir(self, value: str) -> Any:
        """Set ``export_dir``."""
        return self._set(export_dir=value)

    def getExportDir(self) -> str | None:
        """Return ``export_dir``."""
        return self.getOrDefault(self.export_dir)  # type: ignore[no-any-return]


class HasSignatureDefKey(Params):
    """``signature_def_key``."""

    signature_def_key = _param(
        "signature_def_key", "key of the SavedModel's signature", TypeConverters.toString
    )

    def __init__(self) -> None:
        super().__init__()
        self._setDefault(signature_def_key=None)

    def setSignatureDefKey(self, value: str) -> Any:
        """Set ``signature_def_key``."""
        return self._set(signature_def_key=value)

    def getSignatureDefKey(self) -> str | None:
        """Return ``signature_def_key``."""
        return self.getOrDefault(self.signature_def_key)  # type: ignore[no-any-return]


class HasTagSet(Params):
    """``tag_set``."""

    tag_set = _param("tag_set", "comma-separated tags of the SavedModel", TypeConverters.toString)

    def setTagSet(self, value: str) -> Any:
        """Set ``tag_set``."""
        return self._set(tag_set=value)

    def getTagSet(self) -> str | None:
        """Return ``tag_set``."""
        return self.getOrDefault(self.tag_set)  # type: ignore[no-any-return]


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
