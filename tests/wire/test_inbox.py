"""What a training process hears from its agent, whenever it begins to listen."""

from __future__ import annotations

import threading

import pytest

from gridflow._training.inbox import Inbox
from gridflow._wire.channel import Channel
from gridflow._wire.commands import Counts, Replace
from suite.waiting import patience


@pytest.fixture
def agent(monkeypatch):
    """Give the agent's end of a channel and the inbox at the other end."""
    mine, theirs = Channel.pair()
    ended = threading.Event()
    # The process would end with its agent.
    monkeypatch.setattr("gridflow._training.output.leave", lambda code: ended.set())
    channel = Channel.inherited(theirs.detach())
    yield mine, Inbox(channel)
    mine.close()
    assert ended.wait(patience())
    channel.close()


def test_what_came_before_its_listener_is_heard_once(agent):
    channel, inbox = agent
    heard = []

    def send(*views):
        for view in views:
            channel.send(Replace(0, 1, view))
        channel.send(Counts({}, {}, {}, {}, {}))
        inbox.wait(Counts)  # so those before it were read
        inbox.take(Counts)

    send(1, 2)
    inbox.listen(Replace, heard.append)
    assert [each.view for each in heard] == [2]
    send(3)
    assert [each.view for each in heard] == [2, 3]
