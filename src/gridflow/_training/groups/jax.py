"""A group of JAX processes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from gridflow._keras.patches import private_parts
from gridflow._spec import backends
from gridflow._training.groups import base, cpu
from gridflow.errors import GridflowError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gridflow._training.process import TaskProcess

__all__ = ["equal_parts", "join", "leave", "spread"]

#: Seconds: all leave together; the agent ends a rank that doesn't.
_SHUTDOWN_SECONDS: Final = 5


def join(process: TaskProcess, timeout: float) -> None:
    """Wait for all ranks."""
    import jax

    # JAX itself can't be asked for GPUs: that would start its backend before the group is there.
    with cpu.announced(process, base.own_gpus(len(process.setup.gpus))) as meet:
        group, gpus = meet()
    _check_gpus(gpus)
    process.agreement.join(group, in_steps=False)
    base.await_first(process)
    own, _ = base.address(process.cluster_spec, process.rank)
    private_parts.leave_jax_without_waiting()  # `leave` is called when all are there
    # Its handler of SIGTERM would keep the process from being ended.
    jax.config.update("jax_enable_preemption_service", False)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.config.update("jax_check_proxy_envs", False)  # its warning; see `past_proxies`
    private_parts.listen_as(own.strip("[]"))
    host, port = base.address(process.cluster_spec, 0)
    jax.distributed.initialize(
        coordinator_address=f"{host}:{port}",
        coordinator_bind_address=f"{base.bindable(host)}:{port}",
        num_processes=process.num_workers,
        process_id=process.rank,
        cluster_detection_method="deactivate",
        initialization_timeout=math.ceil(timeout),
        shutdown_timeout_seconds=_SHUTDOWN_SECONDS,
    )


def _check_gpus(everyone: Sequence[Sequence[str]]) -> None:
    if base.share_gpus(everyone):
        raise GridflowError(
            "on JAX, the ranks of a model can't share a GPU: NCCL refuses. Use gpus=1, or the "
            f"backends {backends.sharing_gpus()}, which exchange values another way."
        )


def spread(num_workers: int) -> int:
    """Make Keras train one model on all devices of all ranks; return their number."""
    del num_workers
    import jax

    import keras

    # A rank feeds its own part of the global batches.
    distribution = keras.distribution.DataParallel(auto_shard_dataset=False)
    keras.distribution.set_distribution(distribution)
    return int(jax.device_count())


def equal_parts() -> int:
    """Return how many devices of this rank share its batches.

    The parts of a global batch are equal, and so are those of the devices of a rank.
    """
    import jax

    return int(jax.local_device_count())


def leave() -> None:
    """Leave the group cleanly, together with all others."""
    import jax

    jax.distributed.shutdown()
