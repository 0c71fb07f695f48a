"""When an agent gives its driver up: soon if that is gone, late if it is only silent."""

from __future__ import annotations

import threading
import time

import pytest

from gridflow._agent.reporter import Reporter
from gridflow._spec.network import Network
from gridflow._wire.client import CoordinatorClient
from gridflow._wire.identity import make_identities
from gridflow._wire.reports import Gone
from gridflow._wire.server import listen
from suite.waiting import patience, wait_for

pytestmark = pytest.mark.slow

TIMEOUT, PATIENCE, FOR_EVER = 0.5, 3.0, 3600.0


class Driver:
    """Answers, until it is to be silent."""

    def __init__(self):
        self.answers = threading.Event()
        self.answers.set()
        self.heard = []

    def register(self, message):
        raise AssertionError(message)

    def sync(self, message):
        self.answers.wait(patience())
        self.heard += message["reports"]
        return {"heard": max((r["seq"] for r in message["reports"]), default=0), "commands": []}


@pytest.fixture
def driver(request):
    """Start a driver's server; give its handler, a way to end it, and an agent's reporter.

    A silent driver is given up after so many seconds; by default that takes longer than any test.
    """
    ours, agents = make_identities()
    handler = Driver()
    server = listen(Network(host="127.0.0.1"), ours, handler)
    client = CoordinatorClient(f"127.0.0.1:{server.port}", agents)
    me = {"rank": 0, "agent": "a", "launch": 1}
    reporter = Reporter(client, me, TIMEOUT, getattr(request, "param", FOR_EVER))
    reporter.exchange()
    yield handler, server.shutdown, reporter
    handler.answers.set()
    client.close()
    server.shutdown()


def until_given_up(reporter):
    """Return the seconds until a reporter gives its driver up."""

    def is_given_up():
        if not reporter.coordinator_gone:
            reporter.exchange()
        return reporter.coordinator_gone

    began = time.monotonic()
    wait_for(is_given_up, "the end of its patience")
    return time.monotonic() - began


def test_a_driver_that_has_ended_is_given_up_after_the_heartbeats_deadline(driver):
    _, end, reporter = driver
    end()
    assert until_given_up(reporter) > TIMEOUT


@pytest.mark.parametrize("driver", [PATIENCE], indirect=True)
def test_a_driver_that_is_silent_is_given_up_much_later(driver):
    handler, _, reporter = driver
    handler.answers.clear()
    assert until_given_up(reporter) > PATIENCE - 0.1


def test_a_driver_that_goes_on_after_a_pause_is_told_all(driver):
    handler, _, reporter = driver
    handler.answers.clear()
    reporter.report(Gone())
    for _ in range(4):  # four times Deadlines.heartbeat
        reporter.exchange()
    assert not reporter.coordinator_gone
    handler.answers.set()
    reporter.flush(patience())
    assert "gone" in [report["kind"] for report in handler.heard]
    assert not reporter.coordinator_gone


def test_a_driver_that_ends_after_a_pause_is_given_up_soon(driver):
    handler, end, reporter = driver
    handler.answers.clear()
    for _ in range(3):
        reporter.exchange()
    handler.answers.set()
    end()
    assert until_given_up(reporter) > TIMEOUT
