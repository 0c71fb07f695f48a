"""Reading through TensorFlow's data service, and the account of what was read. Imports TensorFlow.

The data workers run a pipeline that is sent to them as a graph, so it must consist of TensorFlow
operations. gridflow adds one that tells which worker made an element, and two timestamps in the
trainer: between them, the trainer waited.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import tensorflow as tf

from gridflow._keras.patches import private_parts
from gridflow._spec.option_groups import DataServiceUse
from gridflow.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable

    from gridflow._spec.option_groups import Sharding

#: A file in a data worker's working directory, by which a pipeline knows where it runs.
_TAG: Final = "gridflow-data-worker-"
#: Keys of an account beside the numbers of the workers.
_WAITED, _BEGAN, _ENDED, _UNKNOWN = -1, -2, -3, -4

F = TypeVar("F", bound="Callable[..., Any]")


def _as_it_is(function: F) -> F:
    """Mark a function without branches or loops: it needn't be rewritten for a graph."""
    found: F = tf.autograph.experimental.do_not_convert(function)
    return found


def tag_of(index: int) -> str:
    """Return the name of the file by which pipelines know a data worker."""
    return f"{_TAG}{index}"


def refuse_python(dataset: Any, where: str) -> None:
    """Reject a pipeline that calls Python, naming what it calls.

    `where`: Where it would run.

    Raises `InvalidArgument`.
    """
    found = private_parts.python_functions(private_parts.graph_of(dataset))
    if found:
        raise InvalidArgument(
            f"the dataset calls Python: {', '.join(found)}. {where} can run only TensorFlow "
            "operations. Write the function with those, read files with tf.data.TFRecordDataset "
            "and the like, or do this step on the dataset that data_service() returns."
        )


@dataclass(frozen=True)
class RegisteredDataset:
    """A dataset that the dispatcher knows.

    `spec`: Of its elements, as they come from the workers.
    """

    id: str
    spec: Any


def tagged(dataset: Any) -> Any:
    """Return a dataset whose elements say which worker made them."""
    spec = dataset.element_spec

    @_as_it_is
    def tag(*element: Any) -> Any:
        # A tuple comes as several arguments, anything else as one.
        whole = tf.nest.pack_sequence_as(spec, tf.nest.flatten(element))
        return whole, _number(tf.io.matching_files(f"{_TAG}*"))

    return dataset.map(tag)


def _number(files: Any) -> Any:
    """Return the number in the name of a data worker's file; another where there is none."""
    names = tf.concat([files, [f"{_TAG}{_UNKNOWN}"]], axis=0)  # a service that isn't gridflow's
    return tf.strings.to_number(tf.strings.regex_replace(names[0], f".*{_TAG}", ""), tf.int64)


def register(service: str, dataset: Any, compression: str | None) -> RegisteredDataset:
    """Make a dataset known to the dispatcher."""
    method = compression and compression.upper()
    found = tf.data.experimental.service.register_dataset(
        f"grpc://{service}", dataset, compression=method
    )
    return RegisteredDataset(found.numpy().decode(), dataset.element_spec)


def read(service: str, dataset: RegisteredDataset, sharding: Sharding, job_name: str) -> Any:
    """Return what the workers make of a dataset."""
    policies = tf.data.experimental.service.ShardingPolicy
    return tf.data.experimental.service.from_dataset_id(
        policies[sharding.upper()],
        f"grpc://{service}",
        dataset.id,
        element_spec=dataset.spec,
        job_name=job_name,
    )


def untagged(received: Any) -> Any:
    """Return the elements as they were before they were tagged."""
    return _plain(received.map(lambda element, _: element))


class ServiceAccount:
    """What was read through a data service here, and how long that was waited for."""

    def __init__(self) -> None:
        # Not a variable: in a strategy's scope that would be one of all ranks.
        self._table = tf.lookup.experimental.MutableHashTable(
            tf.int64, tf.float64, 0.0, experimental_is_anonymous=True
        )

    def kept(self, received: Any) -> Any:
        """Return the elements without their tags, each noted when it is drawn."""
        # Parts of a zip are drawn one after the other, by whoever draws from it.
        clock = tf.data.Dataset.counter().map(lambda _: tf.timestamp())
        return _plain(tf.data.Dataset.zip((clock, received, clock)).map(self._note))

    @_as_it_is
    def _note(self, begin: Any, received: Any, end: Any) -> Any:
        element, worker = received
        keys = tf.stack([_WAITED, worker, _BEGAN, _ENDED])
        waited, made, began, _ = tf.unstack(self._table.lookup(keys), num=4)
        began = tf.where(began > 0, began, begin)
        noted = self._table.insert(keys, tf.stack([waited + end - begin, made + 1, began, end]))
        with tf.control_dependencies([noted]):
            return tf.nest.map_structure(tf.identity, element, expand_composites=True)

    def read(self) -> DataServiceUse:
        keys, values = (tensor.numpy().tolist() for tensor in self._table.export())
        known = dict(zip(keys, values, strict=True))
        waited, began, ended = (known.pop(key, 0.0) for key in (_WAITED, _BEGAN, _ENDED))
        names = {key: "unknown" if key == _UNKNOWN else f"data:{key}" for key in sorted(known)}
        elements = {name: int(known[key]) for key, name in names.items()}
        return DataServiceUse(waited, ended - began, elements)


def _plain(dataset: Any) -> Any:
    """Return a dataset of which each rank takes all that it is given."""
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return dataset.with_options(options)
