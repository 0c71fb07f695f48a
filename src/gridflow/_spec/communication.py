"""How the workers of ``multi_worker_mirrored`` exchange gradients. Pure.

The names and meanings are those of ``tf.distribute.experimental.CommunicationOptions``, which can't
be used where the job is described: the driver needs no TensorFlow.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

from gridflow._spec.option_checks import choose, whole_number
from gridflow.errors import InvalidArgument

Implementation = Literal["auto", "gridflow", "ring", "nccl"]
_IMPLEMENTATIONS: Final = get_args(Implementation)


@dataclass(frozen=True)
class CommunicationOptions:
    """Options of the collective operations of ``multi_worker_mirrored``.

    Parameters
    ----------
    implementation : {'auto', 'gridflow', 'ring', 'nccl'}, default 'auto'
        ``gridflow`` is for CPUs: ranks on one host share memory, hosts are connected by TLS.
        ``ring`` is TensorFlow's, over gRPC, on CPUs and GPUs; ``nccl`` is NVIDIA's, between GPUs
        only. ``auto`` is ``gridflow`` without GPUs; with GPUs TensorFlow chooses.
    timeout_seconds : float, optional
        Time after which an operation that waits for a peer fails. Default: no limit;
        ``Deadlines.step`` then detects a rank that hangs.
    bytes_per_pack : int, default 0
        Gradients are sent in packs of about this size, so that sending can start while the last
        ones are still being computed. 0: TensorFlow's choice.

    Raises
    ------
    InvalidArgument
        A value isn't allowed.

    Examples
    --------
    >>> from gridflow import CommunicationOptions, TensorflowDistributor, LocalLauncher
    >>> ring = CommunicationOptions("ring", timeout_seconds=120)
    >>> distributor = TensorflowDistributor(2, communication=ring, launcher=LocalLauncher())
    """

    implementation: Implementation = "auto"
    timeout_seconds: float | None = None
    bytes_per_pack: int = 0

    def __post_init__(self) -> None:
        choose("implementation", self.implementation, _IMPLEMENTATIONS)
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
