"""The GPUs of this host, from ``nvidia-smi``."""

from __future__ import annotations

import logging
import random
import re
import subprocess
import time
from typing import Final

from gridflow.errors import InvalidArgument, NotEnoughGpus

_log = logging.getLogger(__name__)

MAX_RETRIES: Final = 3
AS_STRING: Final = "string"
AS_LIST: Final = "list"
#: Seconds before each retry: a process that ends takes a while to release its GPUs.
_PAUSES: Final = (2.0, 5.0, 10.0)
_LISTED: Final = re.compile(r"^GPU (\d+):.*\(UUID: ([^)]+)\)", re.MULTILINE)


def is_gpu_available() -> bool:
    """Return whether ``nvidia-smi`` lists a GPU."""
    try:
        return bool(_LISTED.search(_ask("--list-gpus")))
    except (OSError, subprocess.SubprocessError):
        return False


def get_gpus(
    num_gpu: int = 1,
    worker_index: int = -1,
    format: str = AS_STRING,  # noqa: A002 (its name)
) -> str | list[str]:
    """Return the indices of GPUs that no process uses.

    Parameters
    ----------
    num_gpu : int, default 1
    worker_index : int, default -1
        The worker's index on this host: it gets the free GPUs after those of lower indices. With
        -1, any free GPUs.
    format : {'string', 'list'}, default 'string'
        The form of the result: ``"0,1"`` or ``["0", "1"]``.

    Raises
    ------
    NotEnoughGpus
        If there aren't enough free GPUs after `MAX_RETRIES` attempts.
    """
    if format not in {AS_STRING, AS_LIST}:
        raise InvalidArgument(f"format must be {AS_STRING!r} or {AS_LIST!r}; got {format!r}.")
    free: list[str] = []
    for attempt in range(MAX_RETRIES):
        free = _free()
        if len(free) >= num_gpu:
            break
        _log.warning("%d GPUs are required, %d are free", num_gpu, len(free))
        if attempt + 1 < MAX_RETRIES:
            time.sleep(_PAUSES[attempt])
    if len(free) < num_gpu:
        words = f"{num_gpu} free GPUs are required on this host, but it has only {len(free)}."
        raise NotEnoughGpus(words, num_gpu, len(free))
    if worker_index < 0:
        chosen = random.sample(free, num_gpu)
    else:
        first = worker_index * num_gpu
        if first + num_gpu > len(free):
            first %= max(len(free) - num_gpu + 1, 1)
        chosen = free[first : first + num_gpu]
    return ",".join(chosen) if format == AS_STRING else chosen


def _free() -> list[str]:
    busy = _ask("--format=csv,noheader,nounits", "--query-compute-apps=gpu_uuid").split()
    return [index for index, uuid in _LISTED.findall(_ask("--list-gpus")) if uuid not in busy]


def _ask(*arguments: str) -> str:
    return subprocess.check_output(["nvidia-smi", *arguments], text=True, timeout=60)
