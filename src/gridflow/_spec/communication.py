"""How the workers of ``multi_worker_mirrored`` exchange values. Pure.

The names and meanings of `CommunicationOptions` are those of TensorFlow's own, in
``tf.distribute.experimental``, which can't be used where the job is described: the driver needs no
TensorFlow.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from gridflow._spec.option_checks import choose, whole_number
from gridflow.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable

Implementation = Literal["auto", "gridflow", "ring", "nccl"]
_IMPLEMENTATIONS: Final = get_args(Implementation)
WireType = Literal["float32", "bfloat16"]
_WIRE_TYPES: Final = get_args(WireType)


@dataclass(frozen=True)
class CommunicationOptions:
    """Options of the collective operations of ``multi_worker_mirrored``.

    Parameters
    ----------
    implementation : {'auto', 'gridflow', 'ring', 'nccl'}, default 'auto'
        ``gridflow``: ranks on one host share memory, hosts are connected by TLS. It is for CPUs,
        and for workers that share a GPU. ``ring`` is TensorFlow's, over gRPC, on CPUs and GPUs;
        ``nccl`` is NVIDIA's, for workers with GPUs of their own. ``auto`` is ``gridflow``, unless
        each worker has GPUs of its own: then TensorFlow chooses.
    timeout_seconds : float, optional
        Time after which an operation that waits for a peer fails, with a ``TimeoutError`` that
        names the rank that is missing, on its own host or another. Default: no limit;
        ``Deadlines.step`` then detects a rank that hangs. A host that can't be reached is noticed
        after two minutes in any case, by gridflow's own exchange.
    bytes_per_pack : int, default 0
        Gradients are sent in packs of about this size, so that sending can start while the last
        ones are still being computed. 0: TensorFlow's choice.
    wire_dtype : {'float32', 'bfloat16'}, default 'float32'
        The type in which float32 gradients are sent and added up. ``bfloat16`` halves the bytes,
        and keeps 8 bits of precision. It is for slow networks: on one host it takes longer.
        (float16 isn't offered: sums of gradients weighted by rows would overflow.)

    Raises
    ------
    InvalidArgument
        A value isn't allowed.

    Examples
    --------
    >>> from gridflow import CommunicationOptions, Distribution, LocalLauncher
    >>> from gridflow import TensorflowDistributor
    >>> ring = Distribution(communication=CommunicationOptions("ring", timeout_seconds=120))
    >>> distributor = TensorflowDistributor(2, distribution=ring, launcher=LocalLauncher())
    """

    implementation: Implementation = "auto"
    timeout_seconds: float | None = None
    bytes_per_pack: int = 0
    wire_dtype: WireType = "float32"

    def __post_init__(self) -> None:
        choose("implementation", self.implementation, _IMPLEMENTATIONS)
        choose("wire_dtype", self.wire_dtype, _WIRE_TYPES)
        whole_number("bytes_per_pack", self.bytes_per_pack, 0)
        seconds = self.timeout_seconds
        if seconds is None:
            return
        number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        if not number or not 0 < seconds < math.inf:
            raise InvalidArgument(
                f"timeout_seconds must be a number greater than 0, or None; got {seconds!r}."
            )

    def to_tensorflow(self) -> Any:
        """Return TensorFlow's options of the same name."""
        import tensorflow as tf

        experimental = tf.distribute.experimental
        own = self.implementation == "gridflow"
        name = "AUTO" if own else self.implementation.upper()
        return experimental.CommunicationOptions(
            bytes_per_pack=self.bytes_per_pack,
            timeout_seconds=self.timeout_seconds,
            implementation=experimental.CommunicationImplementation(name),
        )


@dataclass(frozen=True, kw_only=True)
class LocalSteps:
    """Let each worker train on its own for some steps, then average the models.

    Workers exchange nothing in the steps between. This is another algorithm than synchronous
    training: local SGD [1]_, and with an outer momentum DiLoCo [2]_. See ``docs/gpus.md``.

    Parameters
    ----------
    sync_every : int
        Steps from one average to the next. There is also one at the end of each epoch, and before
        each checkpoint.
    outer_learning_rate : float, default 1.0
        How far the weights go from the last average to the new one. 1: all the way.
    outer_momentum : float, default 0.0
        Nesterov momentum of these moves, at least 0 and less than 1. DiLoCo uses 0.9, with an outer
        learning rate of 0.7 and hundreds of steps between averages.

    Raises
    ------
    InvalidArgument
        A value isn't allowed.

    References
    ----------
    .. [1] S. U. Stich, "Local SGD Converges Fast and Communicates Little", 2019,
       https://arxiv.org/abs/1805.09767
    .. [2] A. Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models",
       2023, https://arxiv.org/abs/2311.08105

    Examples
    --------
    >>> from gridflow import Distribution, LocalLauncher, LocalSteps, TensorflowDistributor
    >>> seldom = Distribution(local_steps=LocalSteps(sync_every=32))
    >>> distributor = TensorflowDistributor(2, distribution=seldom, launcher=LocalLauncher())
    """

    sync_every: int
    outer_learning_rate: float = 1.0
    outer_momentum: float = 0.0

    def __post_init__(self) -> None:
        whole_number("LocalSteps(sync_every=)", self.sync_every, 1)
        _check_number("outer_learning_rate", self.outer_learning_rate, "more than 0", _is_rate)
        _check_number(
            "outer_momentum", self.outer_momentum, "at least 0 and less than 1", _is_momentum
        )

    @property
    def is_plain(self) -> bool:
        """Whether the weights become the average itself."""
        return self.outer_learning_rate == 1 and self.outer_momentum == 0


def _is_rate(value: float) -> bool:
    return 0 < value < math.inf


def _is_momentum(value: float) -> bool:
    return 0 <= value < 1


def _check_number(name: str, value: Any, allowed: str, is_allowed: Callable[[float], bool]) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not is_allowed(value):
        raise InvalidArgument(f"LocalSteps({name}=) must be a number, {allowed}; got {value!r}.")
