"""A state machine with a clock, as the tests tell it what happens."""

from __future__ import annotations

import importlib.metadata
from dataclasses import replace

from gridflow._coordinator import events as ev
from gridflow._coordinator.machine import JobMachine
from gridflow._coordinator.phases import Phase
from gridflow._coordinator.policies import MaxRestarts
from gridflow._spec.cluster import Task
from gridflow._spec.job import parts_of
from gridflow._spec.option_groups import Deadlines
from gridflow._wire import commands, reports
from gridflow._wire.failures import TaskFailure
from gridflow._wire.headers import Registration, Sender

DEADLINES = Deadlines(heartbeat=10, step=50, shutdown=20)
TASKS = (Task("worker", 0), Task("worker", 1))
WATCHED = (Task("worker", 0), Task("evaluator", 0))
SERVED = (Task("chief", 0), Task("worker", 0), Task("ps", 0), Task("evaluator", 0))
ENVIRONMENT = {
    "python": "3.11.7",
    "tensorflow": "2.21.0",
    "keras": "3.15.1",
    "gridflow": importlib.metadata.version("gridflow"),
}


def failure(rank, *, generation=0, kind="exception", consequence=False, tasks=TASKS):
    return TaskFailure(
        str(tasks[rank]), "host", kind, "it failed", generation, consequence=consequence
    )


#: Let all agents clean up and end.
CLOSE = ev.Send(commands.Close())


def heard(at, rank, report=None, *, agent=None, launch=1):
    """Return what the machine is told when an agent speaks."""
    return ev.Heard(at, Sender(rank, agent or f"agent-{rank}-{launch}", launch), report)


class Story:
    """A machine with a clock, and what it commanded."""

    def __init__(
        self,
        restarts=0,
        tasks=TASKS,
        strategy="none",
        replacements=0,
        agents=False,
        least=None,
        **deadlines,
    ):
        self.machine = JobMachine(
            parts_of(tasks, strategy),
            replace(DEADLINES, **deadlines),
            MaxRestarts(restarts),
            start_timeout=100,
            max_replacements=replacements,
            replaces_agents=agents,
            least=least,
        )
        self.ranks = range(len(tasks))
        self.now = 0.0
        self.commands = list(self.machine.begin(self.now))

    def __call__(self, kind, *args, **fields):
        new = self.machine.handle(kind(self.now, *args, **fields))
        self.commands += new
        return new

    def hears(self, rank, report=None, *, agent=None):
        new = self.machine.handle(
            heard(self.now, rank, report, agent=agent, launch=self.machine.launch)
        )
        self.commands += new
        return new

    def wait(self, seconds, *, silent=()):
        """Let time pass, with agents that are alive but for the silent ones."""
        new = []
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + 0.5)
            for rank in set(self.ranks) - set(silent):
                new += self.hears(rank)
            new += self(ev.Tick)
        return new

    def register(self, rank, environment=ENVIRONMENT, agent=None):
        name = agent or f"agent-{rank}-{self.machine.launch}"
        launch = self.machine.launch
        address = f"h{rank}:1"
        return self(
            ev.Registered, Registration(rank, name, launch, f"host{rank}", address, environment)
        )

    def train(self):
        for rank in self.ranks:
            self.register(rank)
        for rank in self.ranks:
            self.hears(rank, reports.Ready(generation=self.machine.generation))
        assert self.phase is Phase.TRAINING
        return self

    @property
    def phase(self):
        return self.machine.phase

    def finished(self):
        self(ev.LaunchEnded, self.machine.launch)
        assert self.phase is Phase.CLOSED
        (finish,) = [c for c in self.commands if isinstance(c, ev.Finish)]
        return finish
