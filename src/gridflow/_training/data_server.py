"""The servers of TensorFlow's data service: the dispatcher, and the workers that prepare data."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gridflow._keras.data_service import tag_of
from gridflow._spec.cluster import DATA, DISPATCHER, ClusterSpec, Task
from gridflow._spec.option_groups import JOURNAL
from gridflow._training.groups.base import await_listeners
from gridflow._wire.child import Leave
from gridflow._wire.reports import Ready
from gridflow.errors import GridflowError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gridflow._training.inbox import Inbox
    from gridflow._wire.channel import Channel
    from gridflow._wire.child import Setup

#: How often a worker tells the dispatcher that it lives, in milliseconds. TensorFlow's own value
#: lets a dispatcher that was started again wait for its workers for half a minute.
_HEARTBEAT: Final = 1000


def serve(setup: Setup, channel: Channel, inbox: Inbox) -> int:
    """Be a server of the data service until the agent says to leave; return the exit code."""
    cluster, task = ClusterSpec(setup.addresses), Task.parse(setup.task)
    server = start(
        task,
        cluster.addresses[DISPATCHER][0],
        cluster.addresses[DATA],
        journal=_journal(setup),
        patience=setup.spec.start_timeout,
    )
    channel.send(Ready())
    inbox.wait(Leave)
    del server
    return 0


def _journal(setup: Setup) -> str:
    store = os.environ.get(JOURNAL)
    if store:
        return f"{store.rstrip('/')}/{setup.job}-{setup.generation}"
    return str(Path.cwd() / "journal")  # it is there when a process is replaced


def start(
    task: Task, dispatcher: str, workers: Sequence[str], *, journal: str, patience: float
) -> Any:
    """Start the server of a task, and return it.

    `dispatcher`: Its ``host:port``.
    `workers` (sequence of str): Those of all data workers.
    `journal`: Folder in which the dispatcher writes down what it knows, on this host or in a store
        that TensorFlow can write to. One that is started again goes on from there.
    `patience`: Seconds that a worker waits for the dispatcher to listen.
    Raises `GridflowError`: The dispatcher doesn't listen.
    """
    import tensorflow as tf

    service = tf.data.experimental.service
    if task.role == DISPATCHER:
        return service.DispatchServer(
            service.DispatcherConfig(
                port=int(dispatcher.rpartition(":")[2]),
                protocol="grpc",
                work_dir=journal,
                fault_tolerant_mode=True,
                worker_addresses=list(workers),
            )
        )
    # A worker that finds no dispatcher tries again after pauses that grow to minutes.
    if not await_listeners([dispatcher], patience):
        raise GridflowError(
            f"the dispatcher of the data service doesn't listen at {dispatcher} after "
            f"{patience:g} s (start_timeout)."
        )
    own = workers[task.index]
    Path(tag_of(task.index)).touch()
    return service.WorkerServer(
        service.WorkerConfig(
            dispatcher_address=dispatcher,
            worker_address=own,
            port=int(own.rpartition(":")[2]),
            protocol="grpc",
            heartbeat_interval_ms=_HEARTBEAT,
        )
    )
