"""TensorFlow servers, for tasks without user code and for classic programs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gridflow._gpu.devices import limit_memory, server_config
from gridflow._spec.cluster import ClusterMember, ClusterSpec, Task
from gridflow._wire.child import Leave
from gridflow._wire.reports import Joined, Ready

if TYPE_CHECKING:
    from gridflow._spec.program import ScriptProgram
    from gridflow._training.inbox import Inbox
    from gridflow._wire.channel import Channel
    from gridflow._wire.child import Setup


def make_server(cluster: ClusterSpec, task: Task, config: Any = None) -> Any:
    """Start a task's ``tf.distribute.Server`` on the port that its agent holds for it."""
    import tensorflow as tf

    return tf.distribute.Server(
        tf.train.ClusterSpec(cluster.as_dict()),
        job_name=task.role,
        task_index=task.index,
        protocol="grpc",
        config=config,
    )


def announce_joins(channel: Channel, inbox: Inbox) -> None:
    """Make a task that joins its own server announce it, because it will never return.

    The job then no longer waits for it; it ends when told to.
    """
    import tensorflow as tf

    join = tf.distribute.Server.join

    def join_and_say(self: Any) -> None:
        inbox.leaves_at_once = True
        channel.send(Joined())
        join(self)

    tf.distribute.Server.join = join_and_say


def serve(setup: Setup, channel: Channel, inbox: Inbox) -> int:
    """Run a standard server until the agent says to leave; return the exit code."""
    from gridflow._feed.store.records import SPOOL_LINK

    limit_memory(setup.gpu_memory)
    link = Path(SPOOL_LINK)
    if not link.is_symlink():  # it exists when a process is replaced
        link.symlink_to(setup.spool)
    server = make_server(
        ClusterSpec(setup.addresses),
        Task.parse(setup.task),
        server_config(setup.gpu_memory, len(setup.gpus)),
    )
    channel.send(Ready())
    inbox.wait(Leave)
    del server
    return 0


def with_flags(program: ScriptProgram, cluster: ClusterSpec, task: Task) -> ScriptProgram:
    """Return the script with the classic flags in front of its own arguments."""
    return replace(program, args=(*ClusterMember.of(cluster, task).flags, *program.args))
