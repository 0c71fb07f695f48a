"""A cluster of nodes that run a program's main function, fed by Spark or reading by themselves.

The interface of TensorFlowOnSpark's module. Underneath is a job of `TensorflowDistributor`.
"""

from __future__ import annotations

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
    _frames,
    _node,
    _setting,
    _starting,
    reservation,
)
from gridflow.compat.tfos._setting import InputMode
from gridflow.errors import GridflowError, InvalidArgument, RunTimeout

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gridflow._handle import JobHandle

__all__ = ["InputMode", "TFCluster", "run", "tf_status"]

_log = logging.getLogger(__name__)

#: What made the last cluster fail, under ``"error"``; empty again once another one is started.
tf_status: dict[str, str] = {}
_last: list[JobHandle] = []  # whom that is about: what an earlier one ends with may come later
_telling = threading.Lock()
#: How many times the rows are fed where ``num_epochs=0``.
_EPOCHS: Final = 10
_LOOK_SECONDS: Final = 0.05
#: An evaluator has so long to end by itself once the others have.
_EVALUATOR_SECONDS: Final = 15.0
_SHUTDOWN_SECONDS: Final = 30.0
_QUEUES: Final = ("input", "output", "error")

_frames.remember_frames()


class TFCluster:
    """A cluster that runs; made by `run`.

    Attributes
    ----------
    sc : SparkContext
    defaultFS, working_dir : str
    num_executors : int
    cluster_id : int
    cluster_info : list of dict
        The nodes: ``executor_id``, ``host``, ``job_name``, ``task_index``, ``port``, ``addr``, …
    cluster_meta, meta : dict
    input_mode : int
    queues : list of str
    server : reservation.Server
    handle : JobHandle
        gridflow's own, with the logs of the nodes.
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
        """Feed rows to the nodes, and return once they have taken them.

        Parameters
        ----------
        dataRDD : RDD or DStream
            Of a stream, each batch is fed when it comes; this returns at once.
        num_epochs : int, default 0
            How many times. 0 means 10, as in the original, with a warning. Not for streams.
        feed_timeout : float, default 600
            Seconds in which the program takes no row, after which feeding fails.
        qname : str

        Raises
        ------
        TrainingFailed
            The program failed; at once, with its traceback.
        """
        self._check_feed("train", qname)
        if num_epochs < 0:
            raise InvalidArgument(f"num_epochs must be at least 0; got {num_epochs}.")
        feed = TFSparkNode.train(self.cluster_info, self.cluster_meta, feed_timeout, qname)
        if _starting.is_stream(dataRDD):
            dataRDD.foreachRDD(lambda rdd: rdd.foreachPartition(feed))
            return
        if num_epochs == 0:
            num_epochs = _EPOCHS
            warnings.warn(
                f"num_epochs=0 feeds the rows {_EPOCHS} times, as TensorFlowOnSpark does; say how "
                "often you want them.",
                stacklevel=2,
            )
        columns = _frames.of_frame(dataRDD)
        if columns is not None:
            for _ in range(num_epochs):
                self._while_it_runs(lambda: _frames.feed(columns, feed))
            return
        rows = self.sc.union([dataRDD] * num_epochs) if num_epochs > 1 else dataRDD
        self._while_it_runs(lambda: rows.foreachPartition(feed))

    def inference(self, dataRDD: Any, feed_timeout: float = 600, qname: str = "input") -> Any:
        """Return an RDD of what the program answers: one result for each row, in order.

        Parameters
        ----------
        dataRDD : RDD
        feed_timeout : float, default 600
            Seconds without any progress after which a task fails.
        qname : str

        Returns
        -------
        RDD
            Computed when it is asked for, while the cluster runs.
        """
        self._check_feed("inference", qname)
        return dataRDD.mapPartitions(TFSparkNode.inference(self.cluster_info, feed_timeout, qname))

    def shutdown(self, ssc: Any = None, grace_secs: float = 0, timeout: float = 259200) -> None:
        """End feeding, and wait until the program has ended on all nodes.

        Unlike the original, it waits for what the program still does (exporting a model, say), and
        never ends the driver or its SparkContext.

        Parameters
        ----------
        ssc : StreamingContext, optional
            Waited for first; it is stopped once a client has asked for that, see
            `reservation.Client.request_stop`.
        grace_secs : float, default 0
            Has no effect: nothing is cut off.
        timeout : float, default 259200
            Seconds to wait; then the cluster is ended. 0 or less: no limit.

        Raises
        ------
        TrainingFailed
            The program failed, with its traceback.
        RunTimeout
            It didn't end in time.
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
                    raise  # one of the job's own
                self.handle.cancel()
                _starting.wait_for_end(self.handle)
                raise RunTimeout(
                    f"the cluster did not end within {timeout:g} seconds (timeout) and was ended."
                ) from error
        finally:
            self.server.stop()

    def cancel(self) -> None:
        """End the cluster at once, whatever its program does; the original has no such thing."""
        self.handle.cancel()
        _starting.wait_for_end(self.handle)
        self.server.stop()

    def tensorboard_url(self) -> str | None:
        """Return where TensorBoard is served; None if it isn't.

        Whoever has the URL may look: its path is the only key.
        """
        for node in self.cluster_info:
            if node["tb_port"]:
                return f"http://{node['host']}:{node['tb_port']}/{node['tb_path']}/"
        return None

    def _check_feed(self, method: str, qname: str) -> None:
        if self.input_mode != InputMode.SPARK:
            raise InvalidArgument(
                f"{method}() is for clusters in InputMode.SPARK; this one reads its rows itself."
            )
        if qname not in self.queues:
            raise InvalidArgument(f"qname must be one of {', '.join(self.queues)}; got {qname!r}.")

    def _while_it_runs(self, feed: Callable[[], None]) -> None:
        """Run a Spark job; a program that fails ends it, and is what is raised."""
        tag = f"gridflow-tfos-{self.cluster_id}-{random.getrandbits(32):x}"
        error = _starting.run_beside(self.handle, tag, feed)
        if error is not None:
            self._raise_failure()
            raise error

    def _raise_failure(self) -> None:
        """Raise what the program failed with, if that is why feeding did."""
        if self.server.failure:
            _starting.wait_for_end(self.handle)
        if self.handle.state == "failed":
            _result(self.handle)

    def _await_stream(self, ssc: Any, give_up: float | None) -> None:
        while not ssc.awaitTerminationOrTimeout(1):
            late = give_up is not None and time.monotonic() > give_up
            if self.server.done or self.handle.done() or late:
                ssc.stop(stopSparkContext=False, stopGraceFully=not late)
                return

    def _end_stream(self, ssc: Any) -> None:
        """End a stream that has failed, and raise what the program failed with, if it has."""
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
    """Start a cluster, and return once its nodes are there.

    Parameters
    ----------
    sc : SparkContext
    map_fun : callable
        ``map_fun(tf_args, ctx)``, called on every node; ``ctx`` is a `TFSparkNode.TFNodeContext`.
    tf_args : argparse.Namespace, dict or list
        A list is the nodes' command line, too. ``num_gpus`` in it, a number or a part of one such
        as 0.5, is how many GPUs each node gets that trains.
    num_executors : int
        Nodes in all: parameter servers, evaluator, chief and workers.
    num_ps : int, default 0
    tensorboard : bool, default False
        Serve TensorBoard on the first worker.
    input_mode : int, default InputMode.TENSORFLOW
    log_dir : str, optional
        What TensorBoard shows. Default: ``tensorboard_<number>`` in the executor's folder.
    driver_ps_nodes : bool, default False
        Run the parameter servers beside the driver: they take no executors.
    master_node : str, optional
        The name of the first node that trains, ``chief`` or ``master``.
    reservation_timeout : float, default 600
        Seconds for all nodes to come up.
    queues : sequence of str
    eval_node : bool, default False
        One node is an evaluator.
    release_port : bool, default True
        False: ``ctx.tmp_socket`` keeps the node's port until ``ctx.release_port()``. TensorFlow
        can listen on it in either case.

    Raises
    ------
    InvalidArgument, NotEnoughSlots, NotEnoughGpus
        At the call, before anything is started.
    StartTimeout, TrainingFailed
        Nodes didn't come up, or failed at once.
    """
    from pyspark.sql import SparkSession

    from gridflow._coordinator.policies import Restarts
    from gridflow._distributor import TensorflowDistributor
    from gridflow._spec.option_groups import Deadlines
    from gridflow.compat.tfos._launcher import ClusterLauncher

    with _telling:
        tf_status.clear()
        _last.clear()
    _setting.check(
        num_executors, num_ps, input_mode, master_node, driver_ps_nodes, eval_node, map_fun
    )
    if input_mode == InputMode.SPARK and _starting.is_dynamic(sc):
        raise InvalidArgument(
            "spark.dynamicAllocation.enabled is true: Spark would take the executors away beside "
            "which the nodes of a cluster in InputMode.SPARK live. Turn it off."
        )
    roles = _setting.template(num_executors, num_ps, master_node, eval_node=eval_node)
    gpus = _setting.num_gpus(tf_args)
    _alias.send_along(sc)
    distributor = TensorflowDistributor(
        roles=_setting.roles_of(roles, master_node, gpus),
        strategy="server",
        launcher=ClusterLauncher(
            SparkSession.builder.getOrCreate(),
            detached=input_mode == InputMode.SPARK,
            ps_here=num_ps if driver_ps_nodes else 0,
        ),
        start_timeout=reservation_timeout,
        deadlines=Deadlines(
            step=None, shutdown=_EVALUATOR_SECONDS if eval_node else _SHUTDOWN_SECONDS
        ),
        restarts=Restarts(max_preemptions=0),  # its nodes have one life
        env=_starting.keras_environment(),
        progress=False,
    )
    bound = sc.getConf().get("spark.driver.bindAddress") or sc.getConf().get("spark.driver.host")
    server = reservation.Server(num_executors, ["executor_id"], host=bound)
    meta = {
        "id": random.getrandbits(62),
        "cluster_template": roles,
        "num_executors": num_executors,
        "default_fs": _starting.default_fs(sc),
        "working_dir": os.getcwd(),  # noqa: PTH109 (a text, as programs expect it)
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
        info = _starting.await_nodes(server, handle, 2 * reservation_timeout + _SHUTDOWN_SECONDS)
    except BaseException as error:
        tf_status["error"] = str(error)
        if handle is not None:
            handle.cancel()
            _starting.wait_for_end(handle)
        server.stop()
        raise
    cluster = TFCluster(sc, meta, input_mode, queues, server, handle, info)
    if cluster.tensorboard_url():
        _log.info("TensorBoard: %s", cluster.tensorboard_url())
    return cluster


def _watch(handle: JobHandle, server: reservation.Server) -> None:
    """Let feeders know when the cluster has ended, and how."""
    _starting.wait_for_end(handle)
    try:
        _result(handle)
    except GridflowError as error:
        server.note(failure=str(error))
    server.note(finished=True)


def _result(handle: JobHandle, timeout: float | None = None) -> None:
    """Raise what the cluster failed with; whoever hears of it finds it in `tf_status`, too."""
    try:
        handle.result(timeout)
    except GridflowError as error:
        with _telling:
            if handle in _last:
                tf_status["error"] = str(error)
        raise
