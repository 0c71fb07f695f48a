"""The load of an agent's host, as MLflow names it: processors, memory, disk, network, GPUs."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any, Final

from gridflow._gpu import devices
from gridflow._wire.headers import LOAD_SECONDS

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

_MB: Final = 1e6
#: When it is measured first: jobs of a few seconds are told of, too.
_FIRST_SECONDS: Final = 1.0


class HostLoad:
    """Measures the load of this host, soon after the start and then every ten seconds.

    `folder`: Whose disk is told.
    `has_gpus`: Whether to ask ``nvidia-smi``, too. It may take seconds, so its answer is taken the
        next time, and it is told ten seconds late.
    """

    def __init__(self, folder: Path, *, has_gpus: bool) -> None:
        import psutil

        self._psutil, self._folder = psutil, folder
        self._has_gpus = has_gpus
        self._asked: subprocess.Popen[str] | None = None
        self._due = time.monotonic() + _FIRST_SECONDS
        self._network: Any = None
        with contextlib.suppress(Exception):  # as in `read`
            psutil.cpu_percent()  # the next call measures from here
            self._network = psutil.net_io_counters()

    def read(self) -> dict[str, float]:
        """Return what it is since the last time; empty if it isn't time yet."""
        if time.monotonic() < self._due:
            return {}
        self._due = time.monotonic() + LOAD_SECONDS
        # In the thread of the heartbeat, which a host that hides its /proc mustn't end.
        with contextlib.suppress(Exception):
            return self._measured()
        return {}

    def _measured(self) -> dict[str, float]:
        memory = self._psutil.virtual_memory()
        found = {
            "cpu_utilization_percentage": self._psutil.cpu_percent(),
            "system_memory_usage_megabytes": memory.used / _MB,
            "system_memory_usage_percentage": memory.percent,
        }
        with contextlib.suppress(OSError):
            found["disk_usage_percentage"] = self._psutil.disk_usage(str(self._folder)).percent
        before, self._network = self._network, self._psutil.net_io_counters()
        if before is not None and self._network is not None:
            received = self._network.bytes_recv - before.bytes_recv
            sent = self._network.bytes_sent - before.bytes_sent
            found["network_receive_megabytes"] = received / _MB
            found["network_transmit_megabytes"] = sent / _MB
        return found | self._gpus()

    def close(self) -> None:
        """End what is still asked."""
        if self._asked is not None:
            self._asked.kill()
            self._asked.communicate()

    def _gpus(self) -> dict[str, float]:
        """Return what was asked the last time, and ask again."""
        if not self._has_gpus:
            return {}
        found: dict[str, float] = {}
        if self._asked is not None:
            if self._asked.poll() is None:
                return {}
            found = devices.read_load(self._asked.communicate()[0])
        self._asked = devices.ask_for_load()
        return found
