"""Helpers for a node's main function: paths, the data feed, and the TensorFlow 1 interface."""

from __future__ import annotations

import getpass
import logging
import queue
from typing import TYPE_CHECKING, Any, Final, NoReturn

from gridflow.compat.tfos import marker
from gridflow.compat.tfos._queues import END, FedQueue, ResultQueue, is_mark
from gridflow.errors import GridflowError, InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_log = logging.getLogger(__name__)

#: File systems that Hadoop and TensorFlow support; the original lacks the last five.
_NAMES: Final = "adl,file,hdfs,oss,s3,s3a,s3n,swift,viewfs,wasb,wasbs,abfs,abfss,gs,har"
_SCHEMES: Final = tuple(f"{name}://" for name in _NAMES.split(","))
#: How long `DataFeed.terminate` waits for rows still on their way to a `TFManager`.
_SILENCE_SECONDS: Final = 5.0


def hdfs_path(ctx: Any, path: str) -> str:
    """Return a path with its file system's scheme.

    Parameters
    ----------
    ctx : TFNodeContext
        Provides ``defaultFS`` and ``working_dir``.
    path : str
        A path with a scheme is returned unchanged. An absolute path gets the default file system's
        scheme. A relative path is resolved against the user's home directory on that file system,
        or against the driver's working directory if it is local.
    """
    if path.startswith(_SCHEMES):
        return path
    root: str = ctx.defaultFS
    if path.startswith("/"):
        return root + path
    if root.startswith(("hdfs://", "viewfs://")):
        return f"{root}/user/{getpass.getuser()}/{path}"
    if root.startswith("file://"):
        return f"{root}/{str(ctx.working_dir).lstrip('/')}/{path}"
    _log.warning("resolving a relative path against the root of %s: %s", root, path)
    return f"{root}/{path}"


def start_cluster_server(ctx: Any, num_gpus: int = 1, rdma: bool = False) -> tuple[Any, Any]:
    """Start the TensorFlow server of a node, for programs written for TensorFlow 1.

    The original doesn't support this on TensorFlow 2, although ``tf.compat.v1`` still has
    everything such a program needs.

    Parameters
    ----------
    ctx : TFNodeContext
    num_gpus : int, default 1
        Has no effect: the node sees the GPUs assigned to it.
    rdma : bool, default False
        TensorFlow 2 packages don't include RDMA: gRPC is used, with a warning.

    Returns
    -------
    (tf.train.ClusterSpec, tf.distribute.Server)
    """
    del num_gpus
    import tensorflow as tf

    if rdma:
        _log.warning("rdma=True: this TensorFlow has no RDMA; using gRPC.")
    ctx_spec = {job: list(hosts) for job, hosts in ctx.cluster_spec.items() if job != "evaluator"}
    cluster = tf.train.ClusterSpec(ctx_spec)
    release_port(ctx, quiet=True)
    server = tf.distribute.Server(
        cluster, job_name=ctx.job_name, task_index=ctx.task_index, protocol="grpc"
    )
    return cluster, server


def export_saved_model(
    sess: Any, export_dir: str, tag_set: str, signatures: Mapping[str, Mapping[str, Any]]
) -> None:
    """Export a session's graph, for programs written for TensorFlow 1.

    Parameters
    ----------
    sess : tf.compat.v1.Session
    export_dir : str
    tag_set : str
        Comma-separated, such as ``serve``.
    signatures : dict
        Maps a key to ``{"inputs": {alias: tensor}, "outputs": {alias: tensor}, "method_name": …}``.
    """
    import tensorflow as tf

    saved_model = tf.compat.v1.saved_model

    def described(tensors: Mapping[str, Any]) -> dict[str, Any]:
        named = {
            alias: sess.graph.get_tensor_by_name(each) if isinstance(each, str) else each
            for alias, each in tensors.items()
        }
        return {alias: saved_model.build_tensor_info(each) for alias, each in named.items()}

    builder = saved_model.Builder(export_dir)
    with sess.graph.as_default():
        builder.add_meta_graph_and_variables(
            sess,
            tag_set.split(","),
            signature_def_map={
                key: saved_model.build_signature_def(
                    described(each["inputs"]),
                    described(each["outputs"]),
                    each.get("method_name", key),
                )
                for key, each in signatures.items()
            },
            clear_devices=True,
        )
    builder.save()


def release_port(ctx: Any, *, quiet: bool = False) -> None:
    """Close the socket that holds the node's port (``release_port=False``).

    TensorFlow can listen on the port in any case; other servers need this call first.
    """
    if ctx.tmp_socket is not None:
        ctx.tmp_socket.close()
        ctx.tmp_socket = None
    elif not quiet:
        _log.warning("release_port(): this node holds no port.")


def next_batch(mgr: Any, batch_size: int, qname: str = "input") -> NoReturn:
    """Raise an error, as the original does."""
    _refuse("next_batch")


def batch_results(mgr: Any, results: Iterable[Any], qname: str = "output") -> NoReturn:
    """Raise an error, as the original does."""
    _refuse("batch_results")


def terminate(mgr: Any, qname: str = "input") -> NoReturn:
    """Raise an error, as the original does."""
    _refuse("terminate")


def _refuse(name: str) -> NoReturn:
    raise GridflowError(
        f"TFNode.{name}() was removed in TensorFlowOnSpark 1.0: use ctx.get_data_feed().{name}()."
    )


class _OneByOne:
    """Reads a queue that Spark doesn't feed, such as a `TFManager`'s, like a `FedQueue`.

    Parameters
    ----------
    there : queue
    """

    def __init__(self, there: Any) -> None:
        self._there = there

    def take(self, most: int) -> tuple[list[Any], bool, Any]:
        """Wait for a row or a marker."""
        del most
        item = self._there.get(block=True)
        self._there.task_done()
        return ([], True, item) if is_mark(item) else ([item], False, None)


class DataFeed:
    """The rows that Spark pushes to this node, and the channel for results.

    Parameters
    ----------
    mgr : manager
        ``ctx.mgr``, or a `TFManager` that the program started.
    train_mode : bool, default True
        With True, no results are expected. With False, a batch never mixes rows from two
        partitions.
    qname_in, qname_out : str
        Names of the queues.
    input_mapping : dict, optional
        Maps columns to tensors; `next_batch` then returns a dict by tensor. The columns of a row
        must be in the alphabetical order of their names.

    Attributes
    ----------
    done_feeding : bool
        Whether the feed has ended.
    """

    def __init__(
        self,
        mgr: Any,
        train_mode: bool = True,
        qname_in: str = "input",
        qname_out: str = "output",
        input_mapping: Mapping[str, str] | None = None,
    ) -> None:
        self.mgr, self.train_mode = mgr, train_mode
        self.qname_in, self.qname_out = qname_in, qname_out
        self.done_feeding = False
        self.input_tensors = (
            None
            if input_mapping is None
            else [input_mapping[name] for name in sorted(input_mapping)]
        )
        self.queue_in = _queue(mgr, qname_in)
        self.queue_out = _queue(mgr, qname_out)
        self._source = (
            self.queue_in if isinstance(self.queue_in, FedQueue) else _OneByOne(self.queue_in)
        )

    def next_batch(self, batch_size: int) -> list[Any] | dict[str, list[Any]]:
        """Wait for rows.

        Parameters
        ----------
        batch_size : int

        Returns
        -------
        list, or dict of tensor to list
            Fewer rows than `batch_size`, possibly none, at the end of the feed; with
            ``train_mode=False`` also at the end of a partition, or of 64 MiB of a larger one.
        """
        rows: list[Any] = []
        while len(rows) < batch_size and not self.done_feeding:
            more, is_a_mark, mark = self._source.take(batch_size - len(rows))
            if not is_a_mark:
                rows = more if not rows else rows + more
            elif mark is END:
                self.done_feeding = True
            elif isinstance(mark, marker.EndPartition) and not self.train_mode and rows:
                break
        if self.input_tensors is None:
            return rows
        return {
            tensor: [row[place] for row in rows] for place, tensor in enumerate(self.input_tensors)
        }

    def should_stop(self) -> bool:
        """Return whether the feed has ended."""
        return self.done_feeding

    def batch_results(self, results: Iterable[Any]) -> None:
        """Return results to Spark: one for each row of a batch, in the same order."""
        if isinstance(self.queue_out, ResultQueue):
            self.queue_out.put_all(results)
            return
        for each in results:
            self.queue_out.put(each, block=True)

    def terminate(self) -> None:
        """End feeding, and discard rows that are still on their way."""
        self.done_feeding = True
        self.mgr.set("state", "terminating")
        if isinstance(self.queue_in, FedQueue):
            self.queue_in.close()
            return
        # Nobody is on the way to a queue of this process.
        seconds = 0.0 if isinstance(self.queue_in, queue.Queue) else _SILENCE_SECONDS
        while True:
            try:
                self.queue_in.get(block=True, timeout=seconds)
            except queue.Empty:
                return
            self.queue_in.task_done()


def _queue(mgr: Any, name: str) -> Any:
    found = None if mgr is None else mgr.get_queue(name)
    if found is None:
        raise InvalidArgument(
            f"this node has no queue {name!r}. Only workers of a cluster in InputMode.SPARK are "
            "fed; parameter servers and evaluators never are."
        )
    return found
