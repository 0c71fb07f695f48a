"""TensorFlowOnSpark's ``util``: the host's address, files, and a node's environment."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gridflow._spec.gpus import VISIBLE
from gridflow.compat.tfos import gpu_info

if TYPE_CHECKING:
    from collections.abc import Sequence

_log = logging.getLogger(__name__)
_EXECUTOR_ID: Final = Path("executor_id")
#: A documentation address (RFC 5737): nothing is sent there, only the route is looked up.
_FAR_AWAY: Final = ("192.0.2.1", 9)


def single_node_env(num_gpus: int = 1, worker_index: int = -1, nodes: Sequence[str] = ()) -> None:
    """Set ``CLASSPATH`` for Hadoop, and ``CUDA_VISIBLE_DEVICES`` for one node.

    Parameters
    ----------
    num_gpus : int, default 1
    worker_index : int, default -1
        The node's index in `nodes`.
    nodes : sequence of str
        The addresses of all nodes. Nodes on the same host share its GPUs in this order.
    """
    expand_hadoop_classpath()
    if num_gpus <= 0 or not gpu_info.is_gpu_available():
        os.environ[VISIBLE] = ""
        return
    index = rank_on_host(nodes, worker_index) if worker_index >= 0 and nodes else worker_index
    os.environ[VISIBLE] = str(gpu_info.get_gpus(num_gpus, index))
    _log.info("using GPUs %s", os.environ[VISIBLE])


def rank_on_host(nodes: Sequence[str], index: int) -> int:
    """Return a node's index among the nodes on its host; addresses are ``host:port``."""
    hosts = [address.rpartition(":")[0] or address for address in nodes]
    return hosts[:index].count(hosts[index])


def expand_hadoop_classpath() -> None:
    """Set a ``CLASSPATH`` without wildcards for libhdfs, once, if Hadoop is installed."""
    home = os.environ.get("HADOOP_PREFIX") or os.environ.get("HADOOP_HOME")
    if not home or "TFOS_CLASSPATH_UPDATED" in os.environ:
        return
    command = Path(home, "bin", "hadoop")
    if command.is_file():
        found = subprocess.check_output([command, "classpath", "--glob"], text=True).strip()
        before = os.environ.get("CLASSPATH")
        os.environ["CLASSPATH"] = f"{before}{os.pathsep}{found}" if before else found
        os.environ["TFOS_CLASSPATH_UPDATED"] = "1"


def get_ip_address() -> str:
    """Return this host's address: ``SPARK_LOCAL_IP``, or the address used for outgoing traffic."""
    chosen = os.environ.get("SPARK_LOCAL_IP")
    if chosen:
        return chosen
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        probe.connect(_FAR_AWAY)
        return str(probe.getsockname()[0])
    try:
        return socket.gethostbyname(socket.getfqdn())
    except OSError:
        return "127.0.0.1"


def find_in_path(path: str, file: str) -> str | bool:
    """Return the first file with this name on a search path; False if there is none."""
    for folder in path.split(os.pathsep):
        candidate = Path(folder, file)
        if candidate.is_file():
            return str(candidate)
    return False


def write_executor_id(num: int) -> None:
    """Write a number to the file ``executor_id`` in the working directory."""
    _EXECUTOR_ID.write_text(str(num), encoding="utf-8")


def read_executor_id() -> int:
    """Return the number in the file ``executor_id`` in the working directory.

    gridflow doesn't need this file: nodes are found through the cluster's registry.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    """
    if not _EXECUTOR_ID.is_file():
        raise FileNotFoundError(f"no file executor_id in {Path.cwd()}.")
    return int(_EXECUTOR_ID.read_text(encoding="utf-8"))
