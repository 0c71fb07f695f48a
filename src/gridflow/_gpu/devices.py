"""Everything that touches a real GPU: ``nvidia-smi``, device files, and TensorFlow's memory limit.

It reads the CSV output of ``nvidia-smi``, which is documented and stable.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_SMI: Final = "nvidia-smi"
#: Without persistence mode, the driver is loaded for each call, which takes seconds on big hosts.
_SMI_SECONDS: Final = 30.0
#: Memory that a process needs outside its allocator: CUDA's context, libraries.
_CONTEXT_MIB: Final = 512


class NoAnswer(Exception):
    """``nvidia-smi`` is missing or doesn't work; the text says which."""


@dataclass(frozen=True)
class Device:
    """A GPU of this host.

    `index`: In the order of the PCI bus, which is also CUDA's with
        ``CUDA_DEVICE_ORDER=PCI_BUS_ID``.
    `memory`: Total memory in MiB.
    """

    index: int
    uuid: str
    memory: int


def find() -> list[Device]:
    """Return the GPUs of this host, by index.

    Raises `NoAnswer`: ``nvidia-smi`` doesn't answer.
    """
    found = []
    for line in _ask("--query-gpu=index,uuid,memory.total", "--format=csv,noheader,nounits"):
        index, uuid, memory = (word.strip() for word in line.split(","))
        found.append(Device(int(index), uuid, int(memory)))
    return sorted(found, key=lambda device: device.index)


def busy() -> set[str]:
    """Return the UUIDs of GPUs on which any process computes.

    Raises `NoAnswer`: ``nvidia-smi`` doesn't answer.
    """
    lines = _ask("--query-compute-apps=gpu_uuid,pid", "--format=csv,noheader")
    return {line.split(",")[0].strip() for line in lines}


def ask_for_load() -> subprocess.Popen[str] | None:
    """Start ``nvidia-smi``, whose output `read_load` reads; None if it can't be started."""
    path = shutil.which(_SMI)
    if path is None:
        return None
    about = "index,utilization.gpu,memory.used,memory.total"
    line = [path, f"--query-gpu={about}", "--format=csv,noheader,nounits"]
    try:
        return subprocess.Popen(
            line,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
            text=True,
        )
    except OSError:
        return None


def read_load(output: str) -> dict[str, float]:
    """Return how busy GPUs are and how much of their memory is used, in percent.

    What ``nvidia-smi`` doesn't know of a GPU (``[N/A]``) is left out.
    """
    found = {}
    for line in output.splitlines():
        match [word.strip() for word in line.split(",")]:
            case [index, busy, used, total] if index.isdecimal():
                if busy.isdecimal():
                    found[f"gpu_{index}_utilization_percentage"] = float(busy)
                if used.isdecimal() and total.isdecimal() and int(total):
                    found[f"gpu_{index}_memory_usage_percentage"] = 100 * int(used) / int(total)
    return found


def _ask(*arguments: str) -> list[str]:
    path = shutil.which(_SMI)
    if path is None:
        raise NoAnswer(f"{_SMI} isn't on the PATH")
    try:
        done = subprocess.run(
            [path, *arguments], capture_output=True, text=True, timeout=_SMI_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoAnswer(f"{_SMI} doesn't work: {error}") from error
    if done.returncode:
        words = " ".join((done.stderr or done.stdout).split())
        raise NoAnswer(f"{_SMI} exited with code {done.returncode}: {words[:300]}")
    return [line for line in done.stdout.splitlines() if "," in line]


def visible(devices: Iterable[Device], mask: str | None) -> list[Device]:
    """Return the devices that a value of ``CUDA_VISIBLE_DEVICES`` selects; None: all.

    Like CUDA, it reads indices or prefixes of UUIDs; the first invalid one ends the list.
    """
    every = list(devices)
    if mask is None:
        return every
    chosen: list[Device] = []
    for word in (each.strip() for each in mask.split(",")):
        same = [d for d in every if word and (str(d.index) == word or d.uuid.startswith(word))]
        if len(same) != 1:
            break
        chosen += same
    return sorted(set(chosen), key=lambda device: device.index)


def names(mask: str | None, count: int) -> list[str]:
    """Return names of the GPUs of this process, by which others know whether they have the same.

    `mask`: This process's ``CUDA_VISIBLE_DEVICES``.
    `count`: How many GPUs it has; with 0, nobody is asked.
    """
    if not count:
        return []
    words = [str(place) for place in range(count)] if mask is None else mask.split(",")[:count]
    try:
        found = [device.uuid for device in visible(find(), mask)]
    except NoAnswer:  # the same index may be another GPU in another container
        return [f"{_container()}/{word.strip()}" for word in words]
    return found if len(found) == count else [word.strip() for word in words]  # MIG devices


def _container() -> str:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot}-{Path('/proc/self/ns/mnt').stat().st_ino}"


def lie_idle() -> bool:
    """Return whether this host has GPUs, from its device files alone."""
    return any(re.fullmatch(r"nvidia\d+", name) for name in os.listdir("/dev"))  # noqa: PTH208


def part_of(memory: int, shares: int) -> int:
    """Return the limit, in MiB, of one of the tasks that share a GPU.

    The limit applies only to TensorFlow's allocator. CUDA's context comes on top of it and must
    fit, or the last task finds no memory.
    """
    part = memory // shares
    return part - min(max(_CONTEXT_MIB, part // 10), part // 2)


def limit_memory(limit: int | None) -> None:
    """Limit TensorFlow's memory on each GPU of this process, before it uses any.

    `limit`: In MiB; None: no limit, and TensorFlow isn't imported.
    """
    if limit is None:
        return
    import tensorflow as tf

    for device in tf.config.list_physical_devices("GPU"):
        part = tf.config.LogicalDeviceConfiguration(memory_limit=limit)
        tf.config.set_logical_device_configuration(device, [part])


def are_several() -> bool:
    """Return whether TensorFlow computes on several devices in this process. It takes them now."""
    import tensorflow as tf

    gpus = tf.config.list_logical_devices("GPU")
    return len(gpus or tf.config.list_logical_devices("CPU")) > 1


def server_config(limit: int | None, gpus: int) -> Any:
    """Return the same limit as settings of a ``tf.distribute.Server``; None without a limit."""
    if limit is None or not gpus:
        return None
    import tensorflow as tf

    options = tf.compat.v1.GPUOptions
    part = options.Experimental.VirtualDevices(memory_limit_mb=[limit])
    experimental = options.Experimental(virtual_devices=[part] * gpus)
    return tf.compat.v1.ConfigProto(gpu_options=options(experimental=experimental))


#: The environment of a process that was forked, instead of started with it.
_given: dict[str, str] = {}


def forked_with(environment: Mapping[str, str]) -> None:
    """Note the environment of this process, which was forked."""
    _given.update(environment)


def first_environment() -> dict[str, str]:
    """Return the environment that this process was started with.

    Spark reuses its Python workers, so changes of ``os.environ`` by an earlier task stay. The
    kernel keeps the original block, which no one changes. An agent that was forked has another one.
    """
    if _given:
        return dict(_given)
    block = Path("/proc/self/environ").read_bytes().decode(errors="surrogateescape")
    pairs = (entry.partition("=") for entry in block.split("\0") if "=" in entry)
    return {name: value for name, _, value in pairs}
