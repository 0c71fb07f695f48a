"""What goes wrong, in a process of the job that runs, or between its hosts."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import time
from typing import TYPE_CHECKING, Any, Final

import psutil

if TYPE_CHECKING:
    import random

#: Set for this process and all that it starts.
MARK: Final = "GRIDFLOW_CHAOS"
TRAINING, AGENT = "gridflow._training.main", "gridflow._agent.main"
EXECUTOR: Final = "CoarseGrainedExecutorBackend"
_EVERYWHERE: Final = ("none", "kill", "kill", "kill twice", "stop", "starve", "no disk")
_OF_ELASTIC: Final = (*_EVERYWHERE, "kill an agent", *["kill again and again"] * 5)
#: By the job's kind.
FAULTS: Final = {
    "elastic": _OF_ELASTIC,
    "elastic on torch": _OF_ELASTIC,
    "elastic loop": _OF_ELASTIC,
    "on Spark": (*_EVERYWHERE, "kill an executor", "kill an executor"),
    "old program": (*_EVERYWHERE, "kill an executor"),
    "two hosts": ("none", "kill", "kill an agent", "cut", "cut", "cut for good"),
}


def of(kind: str) -> tuple[str, ...]:
    return FAULTS.get(kind, (*_EVERYWHERE, "kill an agent", "kill an agent"))


def processes(name: str) -> list[psutil.Process]:
    """Return the living processes of this run's jobs; fork servers' aren't its children."""
    found = []
    for each in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if each.environ().get(MARK) != os.environ[MARK]:
                continue
            # A process that was forked has its command line as one word.
            if name in " ".join(each.cmdline()) and each.status() != psutil.STATUS_ZOMBIE:
                found.append(each)
    return sorted(found, key=lambda each: each.pid)


def strike(fault: str, rng: random.Random, job: Any) -> None:
    """Let something go wrong."""
    if fault.startswith("cut"):
        _cut(job.hosts, rng, for_good=fault == "cut for good")
        return
    names = {"kill an agent": AGENT, "kill an executor": EXECUTOR}
    there = processes(names.get(fault, TRAINING))
    if not there:
        return
    with contextlib.suppress(psutil.Error, ProcessLookupError, PermissionError):
        victim = rng.choice(there)
        match fault:
            case "kill" | "kill an agent" | "kill an executor":
                victim.kill()
            case "kill twice":
                victim.kill()
                time.sleep(rng.uniform(0, 6))
                again = processes(TRAINING)
                if again:
                    rng.choice(again).kill()
            case "kill again and again":
                victim.kill()
                for _ in range(rng.randint(1, 4)):
                    time.sleep(rng.uniform(0, 4))
                    again = processes(TRAINING)
                    if again:
                        rng.choice(again).kill()
            case "stop":
                victim.suspend()
            case "starve":
                for _ in range(20):
                    victim.suspend()
                    time.sleep(0.3)
                    victim.resume()
                    time.sleep(0.05)
            case "no disk":
                _, hard = resource.prlimit(victim.pid, resource.RLIMIT_FSIZE)
                resource.prlimit(victim.pid, resource.RLIMIT_FSIZE, (512, hard))


def _cut(hosts: Any, rng: random.Random, *, for_good: bool) -> None:
    """Cut a host off from the driver and the other one."""
    host = rng.choice((hosts.first, hosts.second))
    words = ["ip", "-n", host, "link", "set", "cluster"]
    # The hosts may be gone with their job.
    if subprocess.run([*words, "down"], capture_output=True, check=False).returncode == 0:
        time.sleep(0 if for_good else rng.choice((1, 4, 20)))
        if not for_good:
            subprocess.run([*words, "up"], capture_output=True, check=False)
