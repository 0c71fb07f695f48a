"""A node of a cluster: its context, its main function, and the functions that feed it."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
import threading
import traceback
from typing import TYPE_CHECKING, Any

from gridflow._feed.push.exactly_once import PartitionAttempt
from gridflow._spec.gpus import VISIBLE
from gridflow.compat.tfos import (
    TFNode,
    _feeding,
    _queues,
    _setting,
    gpu_info,
    reservation,
    util,
)
from gridflow.compat.tfos._queues import NodeQueues
from gridflow.errors import NotEnoughGpus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

_log = logging.getLogger(__name__)


class TFNodeContext:
    """A node's context: the argument ``ctx`` of a program's main function.

    Attributes
    ----------
    executor_id, worker_num : int
        The node's number in the cluster.
    job_name : str
        ``ps``, ``worker``, ``evaluator``, or the value of ``master_node``.
    task_index : int
        The node's number within its job.
    cluster_spec : dict of str to list of str
        Addresses by job.
    num_workers : int
        Number of nodes named ``worker``, ``chief`` and ``master``.
    defaultFS : str
        Default file system of Spark's Hadoop configuration.
    working_dir : str
        The driver's working directory.
    mgr : NodeQueues or None
    tmp_socket : socket or None
        Holds the node's port, with ``release_port=False``.
    """

    def __init__(
        self,
        executor_id: int = 0,
        job_name: str = "",
        task_index: int = 0,
        cluster_spec: Mapping[str, Sequence[str]] | None = None,
        defaultFS: str = "file://",
        working_dir: str = ".",
        mgr: Any = None,
        tmp_socket: socket.socket | None = None,
    ) -> None:
        self.worker_num = self.executor_id = executor_id
        self.job_name, self.task_index = job_name, task_index
        self.cluster_spec = dict(cluster_spec or {})
        trains = ("master", "chief", "worker")
        self.num_workers = sum(len(self.cluster_spec.get(name, ())) for name in trains)
        self.defaultFS, self.working_dir = defaultFS, working_dir
        self.mgr, self.tmp_socket = mgr, tmp_socket

    def absolute_path(self, path: str) -> str:
        """Return a path with its scheme, see `TFNode.hdfs_path`."""
        return TFNode.hdfs_path(self, path)

    def start_cluster_server(self, num_gpus: int = 1, rdma: bool = False) -> tuple[Any, Any]:
        """Start the node's TensorFlow server, see `TFNode.start_cluster_server`."""
        return TFNode.start_cluster_server(self, num_gpus, rdma)

    def export_saved_model(
        self, sess: Any, export_dir: str, tag_set: str, signatures: Mapping[str, Any]
    ) -> None:
        """Export a session's graph, see `TFNode.export_saved_model`."""
        TFNode.export_saved_model(sess, export_dir, tag_set, signatures)

    def get_data_feed(
        self,
        train_mode: bool = True,
        qname_in: str = "input",
        qname_out: str = "output",
        input_mapping: Mapping[str, str] | None = None,
    ) -> TFNode.DataFeed:
        """Return the rows that Spark pushes, see `TFNode.DataFeed`."""
        return TFNode.DataFeed(self.mgr, train_mode, qname_in, qname_out, input_mapping)

    def release_port(self) -> None:
        """Close the socket that holds the node's port, see `TFNode.release_port`."""
        TFNode.release_port(self)


class TFSparkNode:
    """The node that runs in this process, if any.

    Attributes
    ----------
    mgr : NodeQueues or None
    cluster_id : int or None
    """

    mgr: Any = None
    cluster_id: int | None = None


def _has_spark_resource_api() -> bool:
    """Return True: every version of Spark that gridflow supports reports a task's resources."""
    return True


def _get_cluster_spec(sorted_cluster_info: Iterable[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return the addresses by job, for nodes sorted by number."""
    return _setting.addresses(sorted_cluster_info)


def _spark_gpus() -> list[str]:
    """Return the GPUs that Spark assigned to the current task; empty outside a task."""
    if "pyspark" not in sys.modules or not _has_spark_resource_api():
        return []
    from pyspark import TaskContext

    context = TaskContext.get()
    resources = context.resources() if context is not None else {}
    return list(resources["gpu"].addresses) if resources and "gpu" in resources else []


def choose_gpus(tf_args: Any, given: Sequence[str], index: int) -> None:
    """Set ``CUDA_VISIBLE_DEVICES`` as the original does.

    Uses the GPUs that Spark assigned, up to ``num_gpus``. If Spark assigned none and the host has
    GPUs, it picks ``num_gpus`` free ones, by default one. On Kubernetes, only Spark can assign
    GPUs.

    Parameters
    ----------
    tf_args : Namespace, dict or list
        May contain ``num_gpus``.
    given : sequence of str
        The GPUs that Spark assigned.
    index : int
        The node's index among the nodes on its host.

    Raises
    ------
    NotEnoughGpus
        If there are fewer GPUs than the program requests.
    """
    asked = _setting.num_gpus(tf_args)
    gpus = list(given) if asked is None else list(given)[: int(asked)]
    in_kubernetes = "SPARK_EXECUTOR_POD_IP" in os.environ
    wanted = 1 if asked is None else int(asked)
    if not gpus and wanted and not in_kubernetes and gpu_info.is_gpu_available():
        gpus = list(gpu_info.get_gpus(wanted, index, format=gpu_info.AS_LIST))
    if asked is not None and len(gpus) < int(asked):
        words = f"num_gpus={asked}, but this node has {len(gpus)} GPUs: {', '.join(gpus) or 'none'}"
        raise NotEnoughGpus(words, int(asked), len(gpus))
    os.environ[VISIBLE] = ",".join(gpus)


def run(
    fn: Callable[[Any, TFNodeContext], Any],
    tf_args: Any,
    cluster_meta: Mapping[str, Any],
    tensorboard: bool,
    log_dir: str | None,
    queues: Sequence[str],
    background: bool,
) -> Callable[[Iterable[int]], None]:
    """Return a function that runs a node in the calling process; it takes the node's number.

    `TFCluster.run` starts its nodes differently; this is for programs and tests that call it
    directly. It doesn't start TensorBoard.

    Parameters
    ----------
    fn : callable
        ``fn(tf_args, ctx)``.
    tf_args : Namespace, dict or list
    cluster_meta : dict
        Keys: ``id``, ``cluster_template``, ``server_addr``, ``default_fs``, ``working_dir`` and
        optionally ``server_key`` and ``release_port``.
    tensorboard, log_dir
        Not used.
    queues : sequence of str
    background : bool
        Whether to run ``fn`` in its own thread, which puts its traceback into the queue ``error``.
    """

    def node(numbers: Iterable[int]) -> None:
        (executor_id,) = numbers
        given = _spark_gpus()
        choose_gpus(tf_args, given, 0)
        job_name, task_index = _setting.place(cluster_meta["cluster_template"], executor_id)
        mgr = NodeQueues([*queues, "control", "error"])
        mgr.set("state", "running")
        TFSparkNode.mgr, TFSparkNode.cluster_id = mgr, cluster_meta["id"]
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as holder:
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            holder.bind(("", int(os.environ.get("TENSORFLOW_PORT", "0"))))
            me = {
                "executor_id": executor_id,
                "host": util.get_ip_address(),
                "job_name": job_name,
                "task_index": task_index,
                "port": holder.getsockname()[1],
                "tb_pid": 0,
                "tb_port": 0,
                "tb_path": "",
                "addr": None,
                "authkey": b"",
            }
            server = tuple(cluster_meta["server_addr"])
            client = reservation.Client(server, cluster_meta.get("server_key"))
            with contextlib.closing(client):
                client.register(me)
                everyone = client.await_reservations()
        everyone.sort(key=lambda each: int(each["executor_id"]))
        spec = _get_cluster_spec(everyone)
        _setting.set_tf_config(spec, job_name, task_index)
        choose_gpus(tf_args, given, _rank_on_host(spec, job_name, task_index))
        ctx = TFNodeContext(
            executor_id,
            job_name,
            task_index,
            spec,
            cluster_meta["default_fs"],
            cluster_meta["working_dir"],
            mgr,
        )
        if background:
            args = (fn, tf_args, ctx, mgr)
            threading.Thread(target=_noting, args=args, name="gridflow-tfos", daemon=True).start()
        else:
            _setting.call(fn, tf_args, ctx)

    return node


def _noting(fn: Callable[..., Any], tf_args: Any, ctx: TFNodeContext, mgr: NodeQueues) -> None:
    try:
        _setting.call(fn, tf_args, ctx)
    except Exception:  # noqa: BLE001 (passed on as text)
        errors = mgr.get_queue("error")
        assert errors is not None
        errors.put(traceback.format_exc())


def _rank_on_host(spec: Mapping[str, Sequence[str]], job_name: str, task_index: int) -> int:
    nodes = [address for hosts in spec.values() for address in hosts]
    return util.rank_on_host(nodes, nodes.index(spec[job_name][task_index]))


def train(
    cluster_info: Sequence[Mapping[str, Any]],
    cluster_meta: Mapping[str, Any],
    feed_timeout: float = 600,
    qname: str = "input",
    *,
    is_columns: bool = False,
) -> Callable[[Iterable[Any]], list[bool]]:
    """Return a function for ``foreachPartition`` that feeds its rows to a node.

    Parameters
    ----------
    cluster_info : list of dict
        The cluster's nodes.
    cluster_meta : dict
    feed_timeout : float, default 600
        The task fails if no row is read for this many seconds.
    qname : str
        Name of the queue.
    is_columns : bool, default False
        Whether the function is given record batches instead of rows.
    """
    server, key = cluster_meta["server_addr"], cluster_meta["server_key"]

    def feed(rows: Iterable[Any]) -> list[bool]:
        feeder = _feeding.Feeder(cluster_info, feed_timeout, qname, _attempt())
        count = feeder.train(rows if is_columns else _queues.batches(rows))
        if feeder.unwanted:
            _log.info("no more rows are needed; %d of this partition were sent", count)
            # The driver may be gone or unreachable; nothing depends on this request.
            with contextlib.suppress(OSError, EOFError):
                client = reservation.Client(server, key)
                client.request_stop()
                client.close()
        return [feeder.unwanted]

    return feed


def inference(
    cluster_info: Sequence[Mapping[str, Any]], feed_timeout: float = 600, qname: str = "input"
) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """Return a function for ``mapPartitions`` that yields a result for each of its rows.

    Parameters
    ----------
    cluster_info : list of dict
        The cluster's nodes.
    feed_timeout : float, default 600
        The task fails after this many seconds without progress.
    qname : str
        Name of the queue.
    """

    def answers(rows: Iterable[Any]) -> Iterator[Any]:
        return _feeding.Feeder(cluster_info, feed_timeout, qname, _attempt()).infer(rows)

    return answers


def _attempt() -> PartitionAttempt:
    return PartitionAttempt.of_this_task() or PartitionAttempt(0, 0, 0)


def shutdown(
    cluster_info: Sequence[Mapping[str, Any]],
    grace_secs: float = 0,
    queues: Sequence[str] = ("input",),
) -> Callable[[Iterable[Any]], list[bool]]:
    """Return a function that does nothing: `TFCluster.TFCluster.shutdown` stops the nodes."""

    def nothing(rows: Iterable[Any]) -> list[bool]:
        del rows
        return [True]

    return nothing
