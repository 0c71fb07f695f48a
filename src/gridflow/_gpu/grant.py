"""The GPUs of a task, and the environment of its training process."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from gridflow._gpu import devices
from gridflow._gpu.locks import GpuLocks, HeldLock
from gridflow._spec.gpus import VISIBLE, GpuNeed, GpuOptions
from gridflow.errors import GridflowError, NotEnoughGpus

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gridflow._gpu.devices import Device

_GROWTH: Final = "TF_FORCE_GPU_ALLOW_GROWTH"
_PREALLOCATE: Final = "XLA_PYTHON_CLIENT_PREALLOCATE"
_FRACTION: Final = "XLA_PYTHON_CLIENT_MEM_FRACTION"
#: Set only sometimes; values that an earlier task left in a reused worker must be removed.
_RESET: Final = ("CUDA_DEVICE_ORDER", _GROWTH, _PREALLOCATE, _FRACTION)
#: Hides all devices from CUDA; an empty string would, too, but some tools drop empty variables.
_HIDDEN: Final = "-1"
_MIB: Final = 1 << 20
#: A job that has just ended or died may not have released its GPUs yet.
_PATIENCE_SECONDS: Final = 10.0
_AGAIN_SECONDS: Final = 0.5


@dataclass(frozen=True)
class SparkGpus:
    """The GPUs that Spark assigned to a task.

    `addresses`: As in ``TaskContext.resources()["gpu"]``.
    `shares`: How many tasks get the same address.
    """

    addresses: tuple[str, ...] = ()
    shares: int = 1


@dataclass
class GpuGrant:
    """The GPUs of one task, held until `close`.

    `addresses`: Their indices or UUIDs.
    `memory_limit`: In MiB, for each of them.
    `environment`: For the training process; a variable that is None is removed.
    `files`: Descriptors of locks, which the training process inherits.
    """

    addresses: tuple[str, ...] = ()
    memory_limit: int | None = None
    environment: dict[str, str | None] = field(default_factory=dict)
    files: tuple[int, ...] = ()

    def close(self) -> None:
        """Release the GPUs, once the training process has ended, too."""
        for file in self.files:
            with contextlib.suppress(OSError):
                os.close(file)
        self.files = ()


def take(
    need: GpuNeed,
    options: GpuOptions,
    spark: SparkGpus,
    owner: str,
    *,
    locks: GpuLocks | None = None,
    patience: float = _PATIENCE_SECONDS,
) -> GpuGrant:
    """Take the GPUs of a task: those that Spark assigned to it, or free ones of this host.

    `owner`: Its description, for others who find a GPU in use.
    `patience`: Seconds to wait for GPUs that are in use.
    Raises `NotEnoughGpus`: With the host and the numbers.
    """
    first = devices.first_environment()
    reset = {name: first.get(name) for name in _RESET}
    if need.count == 0 or (need.count is None and not spark.addresses):
        return GpuGrant(environment={**reset, VISIBLE: _HIDDEN})
    files: tuple[int, ...] = ()
    if spark.addresses:
        addresses, shares = _of_spark(need, spark), max(need.shares, spark.shares)
        known = _known(addresses) if shares > 1 or options.memory else []
    else:
        mask = first.get(VISIBLE)
        held = _wait_for(need, mask, owner, locks or GpuLocks(), patience)
        known, shares = [each.device for each in held], need.shares
        addresses = tuple(str(device.index) for device in known)
        files = tuple(each.file for each in held)
    grant = GpuGrant(addresses, files=files)
    try:
        grant.memory_limit = _limit(options, shares, known, addresses)
    except NotEnoughGpus:
        grant.close()
        raise
    total = min((device.memory for device in known), default=0)
    grant.environment = {
        **reset,
        VISIBLE: ",".join(addresses),
        # CUDA orders devices by speed, but Spark's addresses and ours are nvidia-smi's.
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }
    if grant.memory_limit is not None and total:
        # For JAX, which allocates its fraction at once; rounded down.
        grant.environment[_FRACTION] = f"{1000 * grant.memory_limit // total / 1000:g}"
    if options.allow_growth:
        grant.environment[_GROWTH], grant.environment[_PREALLOCATE] = "true", "false"
    return grant


def check_host(needs: Sequence[GpuNeed], environment: Mapping[str, str]) -> None:
    """Compare the needs of tasks that will all run on this host with its free GPUs.

    `environment`: The agents' environment, which may hide GPUs from them.
    Raises `NotEnoughGpus`: With the numbers.
    """
    wanted = [need for need in needs if need.count]
    if not wanted:
        return
    present = _present(environment.get(VISIBLE))
    sizes = {need.shares for need in wanted}
    required = 0
    for shares in sizes:  # a GPU is shared by parts of one size
        places = sum(need.count or 0 for need in wanted if need.shares == shares)
        required += -(-places // shares)
    locks = GpuLocks()
    busy = _busy()
    if required > len(present):
        raise NotEnoughGpus(
            f"the job's tasks need {required} GPUs, but {socket.gethostname()} has {len(present)}. "
            "Use fewer tasks, or reduce gpus=.",
            required,
            len(present),
        )
    free = {shares: locks.count_free(GpuNeed(1, shares), present, lambda: busy) for shares in sizes}
    for shares in sizes:
        places = sum(need.count or 0 for need in wanted if need.shares == shares)
        if places > free[shares]:
            what = "GPUs" if shares == 1 else f"parts (1/{shares}) of GPUs"
            raise NotEnoughGpus(
                f"the job's tasks need {places} {what}, but only {free[shares]} are free on "
                f"{socket.gethostname()}, which has {len(present)} GPUs. "
                f"{_taken(locks, present, busy)}Wait, or use fewer tasks.",
                places,
                free[shares],
            )


def _of_spark(need: GpuNeed, spark: SparkGpus) -> tuple[str, ...]:
    count = len(spark.addresses) if need.count is None else need.count
    if count > len(spark.addresses):
        raise NotEnoughGpus(
            f"it needs {count} GPUs, but Spark assigned it {', '.join(spark.addresses)}. Start the "
            f"application with spark.task.resource.gpu.amount={count}.",
            count,
            len(spark.addresses),
        )
    return spark.addresses[:count]


def _known(addresses: Sequence[str]) -> list[Device]:
    """Return the devices of addresses that others chose; fewer if some are unknown."""
    try:
        every = devices.find()
    except devices.NoAnswer:
        return []
    found = [devices.visible(every, address) for address in addresses]
    return [device for each in found for device in each]


def _wait_for(
    need: GpuNeed, mask: str | None, owner: str, locks: GpuLocks, patience: float
) -> list[HeldLock]:
    present = _present(mask)
    give_up = time.monotonic() + patience
    while True:
        try:
            held = locks.take(need, present, _busy, owner)
        except GridflowError as error:
            raise NotEnoughGpus(str(error), need.count or 0, 0) from error
        if held:
            return held
        if len(present) < (need.count or 0) or time.monotonic() > give_up:
            break
        time.sleep(_AGAIN_SECONDS)
    what = f"{need.count} GPUs" if need.shares == 1 else f"a part (1/{need.shares}) of a GPU"
    free = locks.count_free(need, present, _busy)
    raise NotEnoughGpus(
        f"it needs {what}, but only {free} of {len(present)} are free. "
        f"{_taken(locks, present, _busy())}".rstrip(),
        need.count or 0,
        free,
    )


def _present(mask: str | None) -> list[Device]:
    try:
        return devices.visible(devices.find(), mask)
    except devices.NoAnswer as error:
        raise _none_found(error) from error


def _busy() -> set[str]:
    try:
        return devices.busy()
    except devices.NoAnswer as error:
        raise _none_found(error) from error


def _none_found(error: Exception) -> NotEnoughGpus:
    return NotEnoughGpus(
        f"no GPU found on {socket.gethostname()}: {error}. Leave gpus= out to run on CPUs.",
        1,
        0,
    )


def _taken(locks: GpuLocks, present: Sequence[Device], busy: set[str]) -> str:
    words = locks.owners(present)
    told = " ".join(words)
    words += [
        f"GPU {device.index} by other processes"
        for device in present
        if device.uuid in busy and f"GPU {device.index} " not in told
    ]
    return f"Taken: {'; '.join(words)}. " if words else ""


def _limit(
    options: GpuOptions, shares: int, known: Sequence[Device], addresses: Sequence[str]
) -> int | None:
    if options.allow_growth:
        return None
    if options.memory_in_bytes is not None:
        limit = options.memory_in_bytes // _MIB
        for device in known:
            if limit > device.memory // shares:
                part = f"a part (1/{shares}) of " if shares > 1 else ""
                raise NotEnoughGpus(
                    f"GpuOptions(memory=) is {limit:,} MiB, but {part}GPU {device.index} has "
                    f"{device.memory // shares:,} MiB."
                )
        return limit
    if shares == 1:
        return None
    if len(known) < len(addresses):
        raise NotEnoughGpus(
            f"it shares GPU {', '.join(addresses)}, whose memory size nvidia-smi doesn't report. "
            "Give GpuOptions(memory='2GiB') or GpuOptions(allow_growth=True)."
        )
    return min(devices.part_of(device.memory, shares) for device in known)
