"""A cluster of nodes that run a program's main function on rows from Spark or on their own input.

Has the interface of TensorFlowOnSpark's module, and runs a job of `TensorflowDistributor`.
"""

from __future__ import annotations

import functools
import logging
import os
import random
import threading
import time
import warnings
import weakref
from typing import TYPE_CHECKING, Any, Final

from gridflow.compat.tfos import (
    TFSparkNode,
    _alias,
    _launcher,
    _node,
    _queues,
    _setting,
    reservation,
)
from gridflow.compat.tfos._setting import InputMode
from gridflow.errors import GridflowError, InvalidArgument, RunTimeout

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gridflow._handle import JobHandle
    from gridflow._wire.identity import Identity

__all__ = ["InputMode", "TFCluster", "run", "tf_status"]

_log = logging.getLogger(__name__)

#: The last cluster's failure, under ``"error"``; cleared when another cluster starts.
tf_status: dict[str, str] = {}
_last: list[JobHandle] = []  # the last cluster's handle; an earlier cluster may still end after it
_telling = threading.Lock()
#: The number of epochs with ``num_epochs=0``.
_EPOCHS: Final = 10
_LOOK_SECONDS: Final = 0.05
#: How long an evaluator may keep running after the other nodes have ended.
_EVALUATOR_SECONDS: Final = 15.0
_SHUTDOWN_SECONDS: Final = 30.0
_QUEUES: Final = ("input", "output", "error")
#: How many bytes of rows may wait for a node on its disk.
_WAITING: Final = "64MiB"

_queues.remember_frames()


class TFCluster:
    """A running cluster, created by `run`.

    Attributes
    ----------
    sc : SparkContext
    defaultFS, working_dir : str
    num_executors, cluster_id : int
    cluster_info : list of dict
        The nodes: ``executor_id``, ``host``, ``job_name``, ``task_index``, ``port``, ``addr``, …
    cluster_meta, meta : dict
    input_mode : int
    queues : list of str
    server : reservation.Server
    handle : JobHandle
        The underlying gridflow job, with the logs of the nodes.
    """

    def __init__(
        self,
        sc: Any,
        meta: dict[str, Any],
        input_mode: int,
        queues: Sequence[str],
        server: reservation.Server,
        handle: JobHandle,
        cluster_info: list[dict[str, Any]],
    ) -> None:
        self.sc = sc
        self.defaultFS, self.working_dir = meta["default_fs"], meta["working_dir"]
        self.num_executors, self.cluster_id = meta["num_executors"], meta["id"]
        self.cluster_meta = self.meta = meta
        self.cluster_info, self.input_mode, self.queues = cluster_info, input_mode, list(queues)
        self.server, self.handle = server, handle
        self.nodeRDD: Any = None
        weakref.finalize(self, server.stop)
        watch = threading.Thread(None, _watch, "gridflow-tfos-watch", (handle, server), daemon=True)
        watch.start()

    def train(
        self, dataRDD: Any, num_epochs: int = 0, feed_timeout: float = 600, qname: str = "input"
    ) -> None:
        """Feed rows to the nodes, and return once they have read them.

        Parameters
        ----------
        dataRDD : RDD or DStream
            For a stream, this returns at once and each batch is fed when it arrives.
        num_epochs : int, default 0
            Not for streams. 0 means 10, as in the original, with a warning.
        feed_timeout : float, default 600
            Feeding fails if the program reads no row for this many seconds.
        qname : str
            Name of the queue.

        Raises
        ------
        TrainingFailed
            As soon as the program fails; contains its traceback.
        """
        self._check_feed("train", qname)
        if num_epochs < 0:
            raise InvalidArgument(f"num_epochs must be at least 0; got {num_epochs}.")
        make = functools.partial(
            TFSparkNode.train, self.cluster_info, self.cluster_meta, feed_timeout, qname
        )
        feed = make()
        if _launcher.is_stream(dataRDD):
            dataRDD.foreachRDD(lambda rdd: rdd.foreachPartition(feed))
            return
        if num_epochs == 0:
            num_epochs = _EPOCHS
            warnings.warn(
                f"num_epochs=0 feeds the rows {_EPOCHS} times, as TensorFlowOnSpark does; pass the "
                "number of epochs you want.",
                stacklevel=2,
            )
        columns = _queues.of_frame(dataRDD)
        if columns is not None:
            send = make(is_columns=True)
            for _ in range(num_epochs):
                self._while_it_runs(lambda: _queues.feed(columns, send))
            return
        rows = self.sc.union([dataRDD] * num_epochs) if num_epochs > 1 else dataRDD
        self._while_it_runs(lambda: rows.foreachPartition(feed))

    def inference(self, dataRDD: Any, feed_timeout: float = 600, qname: str = "input") -> Any:
        """Return an RDD of the program's results: one for each row, in order.

        Parameters
        ----------
        dataRDD : RDD
        feed_timeout : float, default 600
            A task fails after this many seconds without progress.
        qname : str
            Name of the queue.

        Returns
        -------
        RDD
            Evaluated lazily; the cluster must still be running.
        """
        self._check_feed("inference", qname)
        return dataRDD.mapPartitions(TFSparkNode.inference(self.cluster_info, feed_timeout, qname))

    def shutdown(self, ssc: Any = None, grace_secs: float = 0, timeout: float = 259200) -> None:
        """Stop feeding, and wait until the program has ended on all nodes.

        Unlike the original, it also waits for what the program does after its last row, and never
        stops the driver or its SparkContext.

        Parameters
        ----------
        ssc : StreamingContext, optional
            A stream to wait for first. It is stopped when a client requests it, see
            `reservation.Client.request_stop`.
        grace_secs : float, default 0
            Has no effect: the program is never cut off.
        timeout : float, default 259200
            Seconds to wait before the cluster is stopped. 0 or less means no limit.

        Raises
        ------
        TrainingFailed
            If the program failed; contains its traceback.
        RunTimeout
            If the program didn't end in time.
        """
        del grace_secs
        give_up = time.monotonic() + timeout if timeout > 0 else None
        try:
            if ssc is not None:
                try:
                    self._await_stream(ssc, give_up)
                except BaseException:
                    self._end_stream(ssc)
                    raise
            self.handle.stop()
            left = None if give_up is None else max(give_up - time.monotonic(), 0.0)
            try:
                _result(self.handle, left)
            except TimeoutError as error:
                if self.handle.done():
                    raise  # the job's own timeout
                self.handle.cancel()
                _launcher.wait_for_end(self.handle)
                raise RunTimeout(
                    f"the cluster did not end within {timeout:g} seconds (timeout) and was stopped."
                ) from error
        finally:
            self.server.stop()

    def cancel(self) -> None:
        """Stop the cluster at once, whatever its program is doing. Not in the original."""
        self.handle.cancel()
        _launcher.wait_for_end(self.handle)
        self.server.stop()

    def tensorboard_url(self) -> str | None:
        """Return TensorBoard's URL, or None if TensorBoard isn't running.

        Anyone with the URL has access: its random path is the only protection.
        """
        for node in self.cluster_info:
            if node["tb_port"]:
                return f"http://{node['host']}:{node['tb_port']}/{node['tb_path']}/"
        return None

    def _check_feed(self, method: str, qname: str) -> None:
        if self.input_mode != InputMode.SPARK:
            raise InvalidArgument(
                f"{method}() needs a cluster in InputMode.SPARK; this one's nodes read their input."
            )
        if qname not in self.queues:
            raise InvalidArgument(f"qname must be one of {', '.join(self.queues)}; got {qname!r}.")

    def _while_it_runs(self, feed: Callable[[], None]) -> None:
        """Run a Spark job; if the program fails, cancel the job and raise the program's error."""
        tag = f"gridflow-tfos-{self.cluster_id}-{random.getrandbits(32):x}"
        error = _launcher.run_beside(self.handle, tag, feed)
        if error is not None:
            self._raise_failure()
            raise error

    def _raise_failure(self) -> None:
        """Raise the program's error, if it was the reason why feeding failed."""
        if self.server.failure:
            _launcher.wait_for_end(self.handle)
        if self.handle.state == "failed":
            _result(self.handle)

    def _await_stream(self, ssc: Any, give_up: float | None) -> None:
        while not ssc.awaitTerminationOrTimeout(1):
            late = give_up is not None and time.monotonic() > give_up
            if self.server.done or self.handle.done() or late:
                ssc.stop(stopSparkContext=False, stopGraceFully=not late)
                return

    def _end_stream(self, ssc: Any) -> None:
        """Stop a failed stream, and raise the program's error if there is one."""
        ssc.stop(stopSparkContext=False, stopGraceFully=False)
        self._raise_failure()
        self.cancel()


def run(
    sc: Any,
    map_fun: Callable[[Any, Any], Any],
    tf_args: Any,
    num_executors: int,
    num_ps: int = 0,
    tensorboard: bool = False,
    input_mode: int = InputMode.TENSORFLOW,
    log_dir: str | None = None,
    driver_ps_nodes: bool = False,
    master_node: str | None = None,
    reservation_timeout: float = 600,
    queues: Sequence[str] = _QUEUES,
    eval_node: bool = False,
    release_port: bool = True,
) -> TFCluster:
    """Start a cluster, and return once its nodes are up.

    Parameters
    ----------
    sc : SparkContext
    map_fun : callable
        ``map_fun(tf_args, ctx)``, called on every node; ``ctx`` is a `TFSparkNode.TFNodeContext`.
    tf_args : argparse.Namespace, dict or list
        A list also becomes the nodes' ``sys.argv``. Its ``num_gpus`` is the number of GPUs for
        each training node, or a fraction such as 0.5.
    num_executors : int
        Total number of nodes: parameter servers, evaluator, chief and workers.
    num_ps : int, default 0
        Number of parameter servers.
    tensorboard : bool, default False
        Serve TensorBoard on the first worker.
    input_mode : int, default InputMode.TENSORFLOW
    log_dir : str, optional
        TensorBoard's log folder. Default: ``tensorboard_<number>`` in the executor's folder.
    driver_ps_nodes : bool, default False
        Run the parameter servers on the driver's machine, without using executors.
    master_node : str, optional
        The first training node's job name: ``chief`` or ``master``.
    reservation_timeout : float, default 600
        Seconds for all nodes to come up.
    queues : sequence of str
        Names of the queues.
    eval_node : bool, default False
        Whether one node is an evaluator.
    release_port : bool, default True
        With False, ``ctx.tmp_socket`` keeps the node's port until ``ctx.release_port()``.

    Raises
    ------
    InvalidArgument, NotEnoughSlots, NotEnoughGpus
        At the call, before anything starts.
    StartTimeout, TrainingFailed
        If nodes didn't come up, or failed at once.
    """
    from pyspark.sql import SparkSession

    from gridflow._coordinator.policies import Restarts
    from gridflow._distributor import TensorflowDistributor
    from gridflow._spec.option_groups import Deadlines, Spool
    from gridflow.compat.tfos._launcher import ClusterLauncher

    with _telling:
        tf_status.clear()
        _last.clear()
    _setting.check(
        num_executors, num_ps, input_mode, master_node, driver_ps_nodes, eval_node, map_fun
    )
    if input_mode == InputMode.SPARK and _launcher.is_dynamic(sc):
        raise InvalidArgument(
            "spark.dynamicAllocation.enabled is true: Spark would remove executors on which nodes "
            "of a cluster in InputMode.SPARK still run. Turn it off."
        )
    roles = _setting.template(num_executors, num_ps, master_node, eval_node=eval_node)
    gpus = _setting.num_gpus(tf_args)
    _alias.send_along(sc)
    identities: list[Identity] = []
    distributor = TensorflowDistributor(
        roles=_setting.roles_of(roles, master_node, gpus),
        strategy="server",
        launcher=ClusterLauncher(
            SparkSession.builder.getOrCreate(),
            detached=input_mode == InputMode.SPARK,
            ps_here=num_ps if driver_ps_nodes else 0,
            on_launch=identities.append,
        ),
        start_timeout=reservation_timeout,
        deadlines=Deadlines(
            step=None, shutdown=_EVALUATOR_SECONDS if eval_node else _SHUTDOWN_SECONDS
        ),
        restarts=Restarts(max_preemptions=0),  # nodes are never restarted
        spool=Spool(limit=_WAITING),
        env=_launcher.keras_environment(),
        progress=False,
    )
    bound = sc.getConf().get("spark.driver.bindAddress") or sc.getConf().get("spark.driver.host")
    server = reservation.Server(num_executors, ["executor_id"], host=bound)
    meta = {
        "id": random.getrandbits(62),
        "cluster_template": roles,
        "num_executors": num_executors,
        "default_fs": _launcher.default_fs(sc),
        "working_dir": os.getcwd(),  # noqa: PTH109 (programs expect a string)
        "server_addr": server.start(),
        "server_key": server.key,
        "release_port": release_port,
        "queues": list(queues),
        "is_fed": input_mode == InputMode.SPARK,
        "tensorboard": tensorboard,
        "log_dir": log_dir,
        "master_node": master_node,
        "has_fraction": gpus is not None and gpus != int(gpus),
    }
    handle = None
    try:
        handle = distributor.start(_node.run, meta, map_fun, tf_args)
        _last.append(handle)
        info = _launcher.await_nodes(server, handle, 2 * reservation_timeout + _SHUTDOWN_SECONDS)
        info = [{**node, "identity": identities[-1]} for node in info]
    except BaseException as error:
        tf_status["error"] = str(error)
        if handle is not None:
            handle.cancel()
            _launcher.wait_for_end(handle)
        server.stop()
        raise
    cluster = TFCluster(sc, meta, input_mode, queues, server, handle, info)
    if cluster.tensorboard_url():
        _log.info("TensorBoard: %s", cluster.tensorboard_url())
    return cluster


def _watch(handle: JobHandle, server: reservation.Server) -> None:
    """Tell feeders when the cluster has ended, and whether it failed."""
    _launcher.wait_for_end(handle)
    try:
        _result(handle)
    except GridflowError as error:
        server.note(failure=str(error))
    server.note(finished=True)


def _result(handle: JobHandle, timeout: float | None = None) -> None:
    """Raise the cluster's error, if it failed, and record it in `tf_status` first."""
    try:
        handle.result(timeout)
    except GridflowError as error:
        with _telling:
            if handle in _last:
                tf_status["error"] = str(error)
        raise
