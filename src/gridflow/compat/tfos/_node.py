"""A node of a cluster, run in a training process of gridflow."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import logging
import os
import socket
import threading
import time
import traceback
from typing import TYPE_CHECKING, Any, Final, cast

from gridflow._features.board.agent import end_board, secret_path, serve_board
from gridflow._keras import runtime
from gridflow._spec.cluster import CHIEF, PS, WORKER
from gridflow._training.streaming import SentRows
from gridflow._wire.channel import AGENT_VARIABLE
from gridflow.compat.tfos import TFSparkNode, _setting, reservation, util
from gridflow.compat.tfos._queues import NodeQueues
from gridflow.errors import InvalidArgument, MissingDependency

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gridflow._training.context import TrainingContext
    from gridflow._training.runtime import TaskRuntime

_log = logging.getLogger(__name__)
_LOOK_SECONDS: Final = 0.2


def run(
    ctx: TrainingContext,
    meta: Mapping[str, Any],
    map_fun: Callable[[Any, Any], Any],
    tf_args: Any,
) -> None:
    """Run a node: register, wait for the other nodes, and call the main function.

    `meta`: The cluster's settings from `TFCluster.run`.
    """
    job_name, task_index = _job_name(ctx, meta), ctx.task.index
    executor_id = meta["cluster_template"][job_name][task_index]
    _go_where_the_executor_works()
    client = reservation.Client(meta["server_addr"], meta["server_key"])
    is_fed = meta["is_fed"] and ctx.rank >= 0
    task = cast("TaskRuntime", runtime.current())
    open_rows = functools.partial(SentRows, task) if is_fed else None
    queues = NodeQueues([*meta["queues"], "control", "error"], open_rows)
    queues.set("state", "running")
    host = ctx.cluster_spec.address(ctx.task).rpartition(":")[0]
    bare = host.strip("[]")  # around IPv6 addresses
    port = Port()
    board = (
        _Board(bare, meta["log_dir"] or f"tensorboard_{executor_id}")
        if _has_board(meta, executor_id)
        else None
    )
    me = {
        "executor_id": executor_id,
        "host": host,
        "job_name": job_name,
        "task_index": task_index,
        "port": port.number,
        "tb_pid": board.pid if board is not None else 0,
        "tb_port": board.port if board is not None else 0,
        "tb_path": board.path if board is not None else "",
        "addr": queues.address,
        "authkey": meta["server_key"],
        "server_addr": meta["server_addr"],
    }
    client.register(me)
    everyone = sorted(client.await_reservations(), key=lambda each: int(each["executor_id"]))
    spec = _setting.addresses(everyone)
    _setting.set_tf_config(spec, job_name, task_index)
    if ctx.task.role != PS and ctx.rank >= 0 and not meta["has_fraction"]:
        nodes = [address for hosts in spec.values() for address in hosts]
        index = util.rank_on_host(nodes, nodes.index(f"{host}:{port.number}"))
        TFSparkNode.choose_gpus(tf_args, ctx.gpus, index)
    if meta["release_port"]:
        port.release_when_bound()
    util.expand_hadoop_classpath()
    node = TFSparkNode.TFNodeContext(
        executor_id,
        job_name,
        task_index,
        spec,
        meta["default_fs"],
        meta["working_dir"],
        queues,
        None if meta["release_port"] else port.holder,
    )
    TFSparkNode.TFSparkNode.mgr, TFSparkNode.TFSparkNode.cluster_id = queues, meta["id"]
    if ctx.rank >= 0:
        _setting.let_old_calls_work()
    args = (ctx, queues)
    threading.Thread(target=_await_end, args=args, name="gridflow-tfos-end", daemon=True).start()
    try:
        _setting.call(map_fun, tf_args, node)
    except BaseException as error:
        _tell(client, error)
        raise
    finally:
        if board is not None:
            board.close()
    queues.set("state", "stopped")
    client.close()


def run_alone(
    ctx: TrainingContext,
    first: int,
    num_workers: int,
    default_fs: str,
    map_fun: Callable[[Any, Any], Any],
    tf_args: Any,
) -> None:
    """Run one of several independent nodes (`TFParallel.run`)."""
    _go_where_the_executor_works()
    os.environ.pop("TF_CONFIG", None)
    nodes = [ctx.cluster_spec.address(task) for task in ctx.cluster_spec.ranks]
    TFSparkNode.choose_gpus(tf_args, ctx.gpus, util.rank_on_host(nodes, ctx.rank))
    util.expand_hadoop_classpath()
    node = TFSparkNode.TFNodeContext()
    node.defaultFS = default_fs
    node.worker_num = node.executor_id = first + ctx.rank
    node.num_workers = num_workers
    _setting.let_old_calls_work()
    _setting.call(map_fun, tf_args, node)


def _job_name(ctx: TrainingContext, meta: Mapping[str, Any]) -> str:
    """Return the program's name for this node's role."""
    return str(meta["master_node"]) if ctx.task.role == CHIEF else ctx.task.role


def _go_where_the_executor_works() -> None:
    """Change to the executor's folder, where the original resolves relative paths."""
    with contextlib.suppress(OSError, KeyError):
        os.chdir(f"/proc/{int(os.environ[AGENT_VARIABLE])}/cwd")


def _await_end(ctx: TrainingContext, queues: NodeQueues) -> None:
    """End the feeds when the driver requests it."""
    while not ctx.should_stop:
        time.sleep(_LOOK_SECONDS)
    queues.end_feeds()


def _tell(client: reservation.Client, error: BaseException) -> None:
    """Tell the driver why the node failed: feeders, which fail right away, ask it."""
    if isinstance(error, SystemExit) and not error.code:
        return
    with contextlib.suppress(OSError, EOFError):
        client.report_failure("".join(traceback.format_exception(error)))


def _has_board(meta: Mapping[str, Any], executor_id: int) -> bool:
    """Return whether TensorBoard runs on this node: the first worker or, without one, the chief."""
    roles: Mapping[str, Sequence[int]] = meta["cluster_template"]
    job = next(name for name in (WORKER, meta["master_node"]) if roles.get(name or ""))
    return bool(meta["tensorboard"]) and executor_id == roles[job][0]


class _Board:
    """TensorBoard next to a node, at a secret path; it ends with the node's process.

    `host`: The address to serve on.
    `folder`: The folder with the event files.
    """

    def __init__(self, host: str, folder: str) -> None:
        if importlib.util.find_spec("tensorboard") is None:
            raise MissingDependency(
                "tensorboard=True needs TensorBoard on the executors: "
                "pip install 'gridflow[tensorboard]'"
            )
        self.port = int(os.environ.get("TENSORBOARD_PORT", "0")) or _free_port(host)
        self.path = secret_path()
        options = ["--reload_multifile=true"]
        self._server = serve_board(folder, host, self.path, port=self.port, options=options)
        self.pid = self._server.pid

    def close(self) -> None:
        """Stop TensorBoard."""
        end_board(self._server)


def _free_port(host: str) -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


# A node's port, reserved until the program listens on it.


class Port:
    """A node's port: the value of ``TENSORFLOW_PORT``, or a free port that is held open.

    TensorFlow's server can listen on the held port because both sockets set ``SO_REUSEPORT``; other
    servers can't.

    `holder`: The socket that holds the port.
    """

    def __init__(self) -> None:
        named = os.environ.get("TENSORFLOW_PORT", "")
        if named and not named.isdigit():
            raise InvalidArgument(f"TENSORFLOW_PORT must be a port such as 2222; it is {named!r}.")
        self.holder: socket.socket | None = None
        self.number = int(named or "0")
        if not named:
            self.holder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            self.holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            self.holder.bind(("", 0))
            self.number = int(self.holder.getsockname()[1])

    def release_when_bound(self) -> None:
        """Release the port as soon as Python code in this process binds it."""
        bind = socket.socket.bind
        number, holder = self.number, self.holder

        @functools.wraps(bind)
        def bind_there(sock: socket.socket, address: Any) -> None:
            if holder is not None and isinstance(address, tuple) and address[1:2] == (number,):
                holder.close()
            bind(sock, address)

        socket.socket.bind = bind_there  # type: ignore[method-assign, assignment]
