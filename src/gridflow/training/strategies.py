"""The ``tf.distribute.Strategy`` behind each of gridflow's names."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from gridflow.errors import InvalidArgument
from gridflow.spec import communication, partitioners
from gridflow.spec.cluster import PS
from gridflow.training import locked_updates

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gridflow.spec.cluster import ClusterSpec


def make(
    name: str,
    cluster_spec: ClusterSpec,
    partitioner: Mapping[str, Any] | None,
    options: Mapping[str, Any] | None = None,
) -> Any:
    """Return a new strategy; what it needs of the cluster is in ``TF_CONFIG``.

    Raises
    ------
    InvalidArgument
        There is none of that name.
    """
    match name:
        case "multi_worker_mirrored":
            if "TF_CONFIG" not in os.environ:  # a single worker needs no cluster
                return tf.distribute.MirroredStrategy()
            return tf.distribute.MultiWorkerMirroredStrategy(
                communication_options=communication.to_tensorflow(options)
            )
        case "mirrored":
            return tf.distribute.MirroredStrategy()
        case "parameter_server":
            return _parameter_server(len(cluster_spec.addresses[PS]), partitioner)
        case "none" | "server":
            return tf.distribute.get_strategy()
    raise InvalidArgument(f"there is no strategy {name!r}.")


def _parameter_server(num_ps: int, described: Mapping[str, Any] | None) -> Any:
    partitioner = None
    if described is not None:
        partitioner = partitioners.from_dict(described).to_tensorflow(num_ps)
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    strategy = tf.distribute.ParameterServerStrategy(resolver, variable_partitioner=partitioner)
    return locked_updates.lock_updates(strategy)
