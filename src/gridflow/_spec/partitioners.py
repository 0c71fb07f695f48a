"""How large variables are spread over the parameter servers. Pure.

The names and meanings are those of ``tf.distribute.experimental.partitioners``, which can't be used
where the job is described: the driver needs no TensorFlow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gridflow._spec.option_checks import whole_number


@dataclass(frozen=True)
class MinSizePartitioner:
    """Cut a variable along its first axis into as many shards of a minimal size as possible.

    Parameters
    ----------
    min_shard_bytes : int, default 262,144
        The minimal size of a shard.
    max_shards : int, optional
        Default: one on each parameter server.

    Raises
    ------
    InvalidArgument
        A number is below 1.
    """

    min_shard_bytes: int = 256 << 10
    max_shards: int | None = None

    def __post_init__(self) -> None:
        whole_number("min_shard_bytes", self.min_shard_bytes, 1)
        if self.max_shards is not None:
            whole_number("max_shards", self.max_shards, 1)

    def to_tensorflow(self, num_ps: int) -> Any:
        """Return TensorFlow's partitioner of the same name."""
        import tensorflow as tf

        return tf.distribute.experimental.partitioners.MinSizePartitioner(
            min_shard_bytes=self.min_shard_bytes, max_shards=self.max_shards or num_ps
        )


@dataclass(frozen=True)
class FixedShardsPartitioner:
    """Cut every variable along its first axis into the same number of shards.

    Parameters
    ----------
    num_shards : int

    Raises
    ------
    InvalidArgument
        The number is below 1.
    """

    num_shards: int

    def __post_init__(self) -> None:
        whole_number("num_shards", self.num_shards, 1)

    def to_tensorflow(self, num_ps: int) -> Any:  # noqa: ARG002 (the same call for both)
        """Return TensorFlow's partitioner of the same name."""
        import tensorflow as tf

        return tf.distribute.experimental.partitioners.FixedShardsPartitioner(self.num_shards)


Partitioner = MinSizePartitioner | FixedShardsPartitioner
