"""Deadlines that are put off cost nothing, and what happens costs the same in a large group."""

from __future__ import annotations

import importlib.metadata
import sys

import pytest
from stories import heard

from gridflow._coordinator import events as ev
from gridflow._coordinator.deadlines import Alarms
from gridflow._coordinator.machine import JobMachine
from gridflow._spec.cluster import Task
from gridflow._spec.job import parts_of
from gridflow._spec.option_groups import Deadlines
from gridflow._wire import reports
from gridflow._wire.headers import Registration


def test_only_those_are_due_whose_time_was_not_put_off():
    due = {0: 5.0, 1: 6.0, 2: 7.0}
    alarms = Alarms(due.get)
    for rank in due:
        alarms.watch(rank)
    assert alarms.due(5.0) == []
    due[1] = 20.0
    assert alarms.due(7.5) == [0, 2]
    assert alarms.due(7.5) == [0, 2]  # until somebody does something about it
    due.update({0: None, 2: 30.0})
    assert alarms.due(19.0) == []
    assert alarms.due(99.0) == [1, 2]
    due[0] = 1.0
    assert alarms.due(99.0) == [1, 2]
    alarms.watch(0)
    assert alarms.due(99.0) == [0, 1, 2]


class Group:
    """A machine with all its members at work."""

    def __init__(self, size):
        tasks = [Task("worker", index) for index in range(size)]
        self.machine, self.now = JobMachine(parts_of(tasks, "none"), Deadlines()), 0.0
        self.machine.begin(0.0)
        names = ("python", "tensorflow", "keras", "gridflow")
        versions = {name: importlib.metadata.version("gridflow") for name in names}
        for rank in range(size):
            about = (rank, f"a{rank}", 1, "h", f"h:{rank}", versions)
            self.machine.handle(ev.Registered(0.0, Registration(*about)))
        for rank in range(size):
            self.machine.handle(heard(0.0, rank, reports.Ready(generation=0)))

    def calls(self, rounds):
        """Return how many lines of Python some rounds of events run."""
        count = 0

        def trace(frame, event, arg):
            nonlocal count
            count += event == "line"
            return trace

        sys.settrace(trace)
        try:
            for _ in range(rounds):
                self.now += 0.1
                self.machine.handle(heard(self.now, 3, agent="a3"))
                step = reports.StepsDue(due=True, together=False, generation=0)
                self.machine.handle(heard(self.now, 3, step))
                self.machine.handle(heard(self.now, 5, reports.Succeeded(0, {})))
                self.machine.handle(ev.Tick(self.now))
        finally:
            sys.settrace(None)
        return count


@pytest.mark.parametrize("size", [1024])
def test_what_an_event_costs_does_not_grow_with_the_group(size):
    assert Group(size).calls(50) <= 1.1 * Group(16).calls(50)
