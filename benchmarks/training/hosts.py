"""Milliseconds of a step of four workers on two hosts, beside PyTorch DDP over gloo.

``python benchmarks/training/hosts.py [REPETITIONS]``, as root. The hosts are network namespaces,
two workers in each, with a link of 1 Gbit/s and 1 ms in each direction between them (a process that
delays frames: not every kernel has netem). The model is the small one of ``steps.py``.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections import deque
from pathlib import Path

import steps
from models import CASES, rows

from gridflow import LaunchOptions, LocalLauncher, Network, TensorflowDistributor

CASE, WORKERS, PORT = "784-128-10", 4, 29400
HOSTS, ADDRESS = ("gridflow-a", "gridflow-b"), "10.78.1.{}"
DELAY, BYTES_PER_SECOND, MTU = 1e-3, 125e6, 9000
_TUNSETIFF, _TAP, _NO_HEADER = 0x400454CA, 0x0002, 0x1000
#: Starts the first two agents on the first host, the others on the second.
PYTHON = """#!/bin/sh
host={b}
for turn in 1 2; do mkdir {turns}/$turn 2>/dev/null && host={a} && break; done
exec ip netns exec $host {python} "$@"
"""


def ip(*words):
    """Run the command ip."""
    subprocess.run(["ip", *words], check=True)


@contextlib.contextmanager
def hosts():
    """Make both, and the link between them."""
    taps = []
    with contextlib.ExitStack() as stack:
        for number, host in enumerate(HOSTS, 1):
            ip("netns", "add", host)
            stack.callback(ip, "netns", "del", host)
            tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
            stack.callback(os.close, tap)
            taps.append(tap)
            name = f"gftap{number}"
            request = struct.pack("16sH", name.encode(), _TAP | _NO_HEADER)
            fcntl.ioctl(tap, _TUNSETIFF, request)
            ip("link", "set", name, "netns", host)
            ip("-n", host, "link", "set", "lo", "up")
            ip("-n", host, "link", "set", name, "mtu", str(MTU), "up")
            ip("-n", host, "address", "add", f"{ADDRESS.format(number)}/24", "dev", name)
        link = subprocess.Popen([sys.executable, __file__, "link", *map(str, taps)], pass_fds=taps)
        stack.callback(link.wait)
        stack.callback(link.kill)
        yield


def link(taps):
    """Pass frames on from each host to the other, late."""
    on_the_way = {tap: deque() for tap in taps}
    free_at = dict.fromkeys(taps, 0.0)
    other = {taps[0]: taps[1], taps[1]: taps[0]}
    while True:
        now = time.monotonic()
        for tap, frames in on_the_way.items():
            while frames and frames[0][0] <= now:
                with contextlib.suppress(BlockingIOError):
                    os.write(other[tap], frames.popleft()[1])
        due = [frames[0][0] for frames in on_the_way.values() if frames]
        patience = max(0.0, min(due) - time.monotonic()) if due else None
        for tap in select.select(taps, [], [], patience)[0]:
            with contextlib.suppress(BlockingIOError):
                while True:
                    frame = os.read(tap, MTU + 64)
                    sent = max(free_at[tap], time.monotonic()) + len(frame) / BYTES_PER_SECOND
                    free_at[tap] = sent
                    on_the_way[tap].append((sent + DELAY, frame))


def by_gridflow():
    """Train with gridflow; print the milliseconds. Runs on the first host."""
    with tempfile.TemporaryDirectory() as folder:
        wrapper, real = Path(folder, "python"), sys.executable
        names = dict(zip("ab", HOSTS, strict=True))
        wrapper.write_text(PYTHON.format(python=real, turns=folder, **names))
        wrapper.chmod(0o755)
        sys.executable = str(wrapper)
        x, y = rows(CASE, WORKERS)
        distributor = TensorflowDistributor(
            WORKERS,
            launcher=LocalLauncher(),
            logs="none",
            progress=False,
            network=Network(host=ADDRESS.format(1)),
            launch_options=LaunchOptions(warm_seconds=0),
            env={"PYTHONPATH": str(Path(__file__).parent), "OMP_NUM_THREADS": "1"},
        )
        result = distributor.run(steps.train, CASE, data={"rows": {"x": x, "y": y}})
    print(json.dumps(result.value))


def on_host(host, *words, **env):
    """Start a program of this folder on a host."""
    return subprocess.Popen(
        ["ip", "netns", "exec", host, sys.executable, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **env},
    )


def by_ddp():
    """Return the milliseconds of DDP's steps."""
    started = []
    for rank in range(WORKERS):
        address = {"MASTER_ADDR": ADDRESS.format(1), "WORKERS": str(WORKERS)}
        host = HOSTS[rank >= WORKERS // 2]
        address["GLOO_SOCKET_IFNAME"] = f"gftap{HOSTS.index(host) + 1}"
        words = (str(steps.PEERS), "ddp", CASE, str(rank), str(PORT))
        started.append(on_host(host, *words, **address))
    told = [process.communicate()[0] for process in started]
    return json.loads(told[0].splitlines()[-1])


def main():
    """Measure both, alternately."""
    if sys.argv[1:2] == ["link"]:
        link([int(each) for each in sys.argv[2:]])
    if sys.argv[1:2] == ["gridflow"]:
        by_gridflow()
        return
    found = {"gridflow": [], "PyTorch DDP": []}
    with hosts():
        for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 3):
            told = on_host(HOSTS[0], __file__, "gridflow").communicate()[0]
            found["gridflow"] += json.loads(told.splitlines()[-1])
            found["PyTorch DDP"] += by_ddp()
    medians = {who: statistics.median(each) for who, each in found.items()}
    print(f"{CASE}, {CASES[CASE][0]} rows a worker, four workers on two hosts: ms a step")
    for who, each in medians.items():
        print(f"  {who:14}{each:8.2f}{each / medians['PyTorch DDP']:8.2f}")


if __name__ == "__main__":
    main()
