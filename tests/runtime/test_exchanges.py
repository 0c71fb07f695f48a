"""How often an agent asks for commands."""

from __future__ import annotations

import queue
import threading

import pytest

from gridflow._agent import reporter
from gridflow._wire.commands import Close
from suite.waiting import patience

EAGER, INTERVAL, QUIET = 0.05, 0.2, 1.0


class Coordinator:
    """Answers each exchange with what is put here, and notes how long the agent means to wait."""

    def __init__(self):
        self.commands, self.pauses = queue.SimpleQueue(), queue.SimpleQueue()
        self.coordinator_gone = False

    def exchange(self):
        return self.commands.get(timeout=patience())

    def wait(self, with_lines, without):
        self.pauses.put((with_lines, without))

    def hurry(self):
        self.commands.put([])


@pytest.fixture
def agent(monkeypatch):
    """Give an agent whose clock stands still."""
    clock = [100.0]
    monkeypatch.setattr(reporter.time, "monotonic", lambda: clock[0])
    coordinator, quiet = Coordinator(), threading.Event()
    beating = reporter.Heartbeat(coordinator, INTERVAL, QUIET, quiet.is_set, EAGER)

    def pause(*commands, after=0.0):
        clock[0] += after
        coordinator.commands.put(list(commands))
        return coordinator.pauses.get(timeout=patience())

    pause.quiet = quiet
    yield pause
    beating.stop()


def test_commands_that_may_follow_one_another_are_asked_for_at_once(agent):
    assert agent() == (EAGER, EAGER)  # it has just begun
    assert agent(after=10) == (INTERVAL, INTERVAL)
    assert agent(Close()) == (EAGER, EAGER)
    assert agent(after=1) == (EAGER, EAGER)
    assert agent(after=1.5) == (INTERVAL, INTERVAL)


def test_who_is_at_work_is_left_alone_whatever_came_before(agent):
    agent.quiet.set()
    assert agent(Close()) == (INTERVAL, QUIET)
