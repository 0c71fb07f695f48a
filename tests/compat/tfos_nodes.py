"""Nodes of `gridflow.compat.tfos` without a cluster: their agents' streams, and their queues."""

from __future__ import annotations

import threading
from types import SimpleNamespace

from gridflow._features.streams.agent import Streams
from gridflow._feed.normalize import FeedOptions
from gridflow._training.inbox import Inbox
from gridflow._training.streaming import SentRows
from gridflow._wire.commands import EndRows
from gridflow.compat.tfos import TFNode
from gridflow.compat.tfos._queues import NodeQueues
from suite.waiting import patience


class _Inbox(Inbox):
    """What the agent tells the training process, in the same process."""

    def __init__(self):
        self._messages = {}
        self._changed = threading.Condition()

    def tell(self, message):
        with self._changed:
            self._messages[type(message)] = message
            self._changed.notify_all()


class Node:
    """A node's agent and queues.

    `limit`: How many bytes of rows may wait here.
    """

    def __init__(self, folder, identity, limit=64 << 20):
        spec = SimpleNamespace(
            training=SimpleNamespace(checkpoint_every=None),
            hosts=SimpleNamespace(spool=SimpleNamespace(limit_in_bytes=limit)),
            feed=FeedOptions(),
            tasks=(),
        )
        payload = SimpleNamespace(
            spec=spec, generation=0, coordinator="127.0.0.1:9", identity=identity
        )
        inbox = _Inbox()
        self.streams = Streams(
            SimpleNamespace(
                payload=payload,
                folder=folder,
                tell=inbox.tell,
                reporter=SimpleNamespace(report=lambda report: None),
            )
        )
        folder.mkdir()
        runtime = SimpleNamespace(
            inbox=inbox,
            channel=SimpleNamespace(send=self.streams.hear),
            setup=SimpleNamespace(spool=str(folder / "spool")),
            work_dir=folder,
        )
        names = ["input", "output", "error", "other"]
        self.queues = NodeQueues(names, lambda name: SentRows(runtime, name))
        self.queues.set("state", "running")
        self.address = self.queues.address
        self.rows, self.gate = [], threading.Event()
        self.gate.set()
        self.error = None
        self.program = None

    def run(self, answers=None, size=7, train_mode=True):
        """Be the node's program in a thread: read what comes, and answer it."""

        def program():
            feed = TFNode.DataFeed(self.queues, train_mode)
            try:
                while not feed.should_stop():
                    self.gate.wait()
                    batch = feed.next_batch(size)
                    self.rows += batch
                    if answers is not None:
                        feed.batch_results(answers(batch))
            except Exception as error:
                self.error = error

        self.program = threading.Thread(target=program, name="program")
        self.program.start()

    def end(self):
        """End the feed, and wait until the program has read what is there."""
        self.gate.set()
        self.streams.obey(EndRows(0, None, are_all=True))
        if self.program is not None:
            self.program.join(patience())
            assert not self.program.is_alive()
        return self.rows

    def close(self):
        self.end()
        self.streams.close()
