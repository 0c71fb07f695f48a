"""The parameters of `gridflow.compat.tfos.pipeline`, each a mix-in with its setter and getter."""

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
        """Return a dict; anything else is refused."""
        if isinstance(value, dict):
            return value
        raise TypeError(f"expected a dict, such as {{'column': 'tensor'}}; got {value!r}.")


def _param(name: str, text: str, converter: Callable[[Any], Any]) -> Any:
    return Param(Params._dummy(), name, text, converter)  # noqa: SLF001 (as Spark ML's own do)


class HasBatchSize(Params):
    """``batch_size``."""

    batch_size = _param("batch_size", "rows of a batch", TypeConverters.toInt)

    def setBatchSize(self, value: int) -> Any:
        """Set it."""
        return self._set(batch_size=value)

    def getBatchSize(self) -> int:
        """Return it."""
        return int(self.getOrDefault(self.batch_size))


class HasClusterSize(Params):
    """``cluster_size``."""

    cluster_size = _param("cluster_size", "nodes of the cluster, in all", TypeConverters.toInt)

    def setClusterSize(self, value: int) -> Any:
        """Set it."""
        return self._set(cluster_size=value)

    def getClusterSize(self) -> int:
        """Return it."""
        return int(self.getOrDefault(self.cluster_size))


class HasEpochs(Params):
    """``epochs``."""

    epochs = _param("epochs", "how many times the rows are fed", TypeConverters.toInt)

    def setEpochs(self, value: int) -> Any:
        """Set it."""
        return self._set(epochs=value)

    def getEpochs(self) -> int:
        """Return it."""
        return int(self.getOrDefault(self.epochs))


class HasGraceSecs(Params):
    """``grace_secs``."""

    grace_secs = _param("grace_secs", "without effect: nothing is cut off", TypeConverters.toInt)

    def setGraceSecs(self, value: int) -> Any:
        """Set it."""
        return self._set(grace_secs=value)

    def getGraceSecs(self) -> int:
        """Return it."""
        return int(self.getOrDefault(self.grace_secs))


class HasInputMapping(Params):
    """``input_mapping``."""

    input_mapping = _param("input_mapping", "column to input tensor", TFTypeConverters.toDict)

    def setInputMapping(self, value: dict[str, str]) -> Any:
        """Set it."""
        return self._set(input_mapping=value)

    def getInputMapping(self) -> dict[str, str]:
        """Return it."""
        return dict(self.getOrDefault(self.input_mapping))


class HasInputMode(Params):
    """``input_mode``."""

    input_mode = _param("input_mode", "who brings the rows: 1, Spark", TypeConverters.toInt)

    def setInputMode(self, value: int) -> Any:
        """Set it; an estimator is always fed by Spark."""
        if value == InputMode.TENSORFLOW:
            raise InvalidArgument("an estimator is fed by Spark: InputMode.SPARK is the only mode.")
        return self._set(input_mode=value)

    def getInputMode(self) -> int:
        """Return it."""
        return int(self.getOrDefault(self.input_mode))


class HasMasterNode(Params):
    """``master_node``."""

    master_node = _param("master_node", "name of the first node", TypeConverters.toString)

    def setMasterNode(self, value: str) -> Any:
        """Set it."""
        return self._set(master_node=value)

    def getMasterNode(self) -> str:
        """Return it."""
        return str(self.getOrDefault(self.master_node))


class HasModelDir(Params):
    """``model_dir``."""

    model_dir = _param("model_dir", "folder of checkpoints", TypeConverters.toString)

    def setModelDir(self, value: str) -> Any:
        """Set it."""
        return self._set(model_dir=value)

    def getModelDir(self) -> str | None:
        """Return it."""
        return self.getOrDefault(self.model_dir)  # type: ignore[no-any-return]


class HasNumPS(Params):
    """``num_ps`` and ``driver_ps_nodes``."""

    num_ps = _param("num_ps", "parameter servers", TypeConverters.toInt)
    driver_ps_nodes = _param(
        "driver_ps_nodes", "whether they run beside the driver", TypeConverters.toBoolean
    )

    def setNumPS(self, value: int) -> Any:
        """Set the number."""
        return self._set(num_ps=value)

    def getNumPS(self) -> int:
        """Return the number."""
        return int(self.getOrDefault(self.num_ps))

    def setDriverPSNodes(self, value: bool) -> Any:
        """Set where they run."""
        return self._set(driver_ps_nodes=value)

    def getDriverPSNodes(self) -> bool:
        """Return where they run."""
        return bool(self.getOrDefault(self.driver_ps_nodes))


class HasOutputMapping(Params):
    """``output_mapping``."""

    output_mapping = _param("output_mapping", "output tensor to column", TFTypeConverters.toDict)

    def setOutputMapping(self, value: dict[str, str]) -> Any:
        """Set it."""
        return self._set(output_mapping=value)

    def getOutputMapping(self) -> dict[str, str]:
        """Return it."""
        return dict(self.getOrDefault(self.output_mapping))


class HasProtocol(Params):
    """``protocol``, which reaches the program's arguments only."""

    protocol = _param("protocol", "for the program's own use", TypeConverters.toString)

    def setProtocol(self, value: str) -> Any:
        """Set it."""
        return self._set(protocol=value)

    def getProtocol(self) -> str:
        """Return it."""
        return str(self.getOrDefault(self.protocol))


class HasReaders(Params):
    """``readers``, which reaches the program's arguments only."""

    readers = _param("readers", "for the program's own use", TypeConverters.toInt)

    def setReaders(self, value: int) -> Any:
        """Set it."""
        return self._set(readers=value)

    def getReaders(self) -> int:
        """Return it."""
        return int(self.getOrDefault(self.readers))


class HasSteps(Params):
    """``steps``, which reaches the program's arguments only."""

    steps = _param("steps", "for the program's own use", TypeConverters.toInt)

    def setSteps(self, value: int) -> Any:
        """Set it."""
        return self._set(steps=value)

    def getSteps(self) -> int:
        """Return it."""
        return int(self.getOrDefault(self.steps))


class HasTensorboard(Params):
    """``tensorboard``."""

    tensorboard = _param("tensorboard", "whether it is served", TypeConverters.toBoolean)

    def setTensorboard(self, value: bool) -> Any:
        """Set it."""
        return self._set(tensorboard=value)

    def getTensorboard(self) -> bool:
        """Return it."""
        return bool(self.getOrDefault(self.tensorboard))


class HasTFRecordDir(Params):
    """``tfrecord_dir``, which reaches the program's arguments only."""

    tfrecord_dir = _param("tfrecord_dir", "for the program's own use", TypeConverters.toString)

    def setTFRecordDir(self, value: str) -> Any:
        """Set it."""
        return self._set(tfrecord_dir=value)

    def getTFRecordDir(self) -> str | None:
        """Return it."""
        return self.getOrDefault(self.tfrecord_dir)  # type: ignore[no-any-return]


class HasExportDir(Params):
    """``export_dir``."""

    export_dir = _param("export_dir", "folder of the SavedModel", TypeConverters.toString)

    def setExportDir(self, value: str) -> Any:
        """Set it."""
        return self._set(export_dir=value)

    def getExportDir(self) -> str | None:
        """Return it."""
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
        """Set it."""
        return self._set(signature_def_key=value)

    def getSignatureDefKey(self) -> str | None:
        """Return it."""
        return self.getOrDefault(self.signature_def_key)  # type: ignore[no-any-return]


class HasTagSet(Params):
    """``tag_set``."""

    tag_set = _param("tag_set", "comma-separated tags of the SavedModel", TypeConverters.toString)

    def setTagSet(self, value: str) -> Any:
        """Set it."""
        return self._set(tag_set=value)

    def getTagSet(self) -> str | None:
        """Return it."""
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
                f"arguments are a list, a dict or an argparse.Namespace; got {d!r}."
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
    """Arguments of a program beside parameters of Spark ML."""

    args: Any = None

    def merge_args_params(self) -> Any:
        """Return the arguments with the parameters' values over them."""
        merged = copy.copy(self.args)
        values = {p.name: self.getOrDefault(p) for p in self.params if self.isDefined(p)}
        vars(merged).update(values)
        return merged
