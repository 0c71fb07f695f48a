"""A host with stand-in GPUs: an ``nvidia-smi`` that says what a test wants it to say."""

from __future__ import annotations

import os
import socket

import pytest

from gridflow import LocalLauncher, Role, TensorflowDistributor
from gridflow._gpu import devices
from gridflow._gpu.locks import FOLDER_VARIABLE, GpuLocks

_SMI = """#!/bin/sh
folder=$(dirname "$0")
case "$1" in
  --query-gpu=index,uuid,memory.total) cat "$folder/gpus.csv" ;;
  --query-compute-apps=gpu_uuid,pid) cat "$folder/apps.csv" ;;
  --query-gpu=index,utilization.gpu,memory.used,memory.total) cat "$folder/load.csv" ;;
  *) echo "unknown option $1" >&2; exit 2 ;;
esac
"""


class Host:
    """A host whose GPUs are stand-ins."""

    def __init__(self, folder):
        self.folder = folder
        self.name = socket.gethostname()
        (folder / "bin").mkdir()
        script = folder / "bin" / "nvidia-smi"
        script.write_text(_SMI)
        script.chmod(0o755)
        self.has(0)
        self.locks = GpuLocks(folder / "locks")

    def has(self, count, memory=16384):
        """Have that many GPUs, nobody computing on them."""
        rows = [f"{i}, GPU-{i}aaa-bbb, {memory}\n" for i in range(count)]
        (self.folder / "bin" / "gpus.csv").write_text("".join(rows))
        self.computes_on()

    def computes_on(self, *indices):
        """Let other processes compute on GPUs."""
        rows = [f"GPU-{i}aaa-bbb, 4711\n" for i in indices]
        (self.folder / "bin" / "apps.csv").write_text("".join(rows))

    @property
    def devices(self):
        """Return what there is."""
        return devices.find()


@pytest.fixture
def host(tmp_path, monkeypatch):
    """Give a host without GPUs at first; agents that are started see the same."""
    host = Host(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "locks"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return host


@pytest.fixture(autouse=True)
def _no_leaks(no_leaks, by_value):
    """Apply to all."""


@pytest.fixture
def distribute():
    """Make a silent distributor of workers on this machine that share nothing."""

    def make(num_workers=1, *, launcher=None, roles=None, **options):
        roles = [Role(name, *values) for name, *values in roles] if roles else None
        return TensorflowDistributor(
            None if roles else num_workers,
            "none",
            roles=roles,
            launcher=launcher or LocalLauncher(),
            **{"logs": "none", "progress": False, **options},
        )

    return make
