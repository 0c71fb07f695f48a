"""A simulated cluster: a clock, a network, agents and training processes, drawn from a seed.

The decisions are the product's own: the state machine (`gridflow._coordinator.machine`) with its
policies, deadlines and watch over steps, and the meetings of ranks. Simulated is what surrounds
them: agents that call the driver and obey it, processes that form groups and make steps together,
Spark's ways to end tasks, and everything that goes wrong.
"""

from __future__ import annotations

import heapq
import importlib.metadata
import itertools
import random
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from gridflow import errors
from gridflow._coordinator import events as ev
from gridflow._coordinator.machine import JobMachine
from gridflow._coordinator.meetings import Meetings
from gridflow._coordinator.phases import Phase
from gridflow._coordinator.policies import ApartFromPreemptions, MaxRestarts
from gridflow._spec.cluster import Task
from gridflow._spec.job import parts_of
from gridflow._spec.option_groups import Deadlines
from gridflow._wire import commands, reports
from gridflow._wire.failures import TaskFailure
from gridflow._wire.headers import Registration, Sender

if TYPE_CHECKING:
    from collections.abc import Callable

DEADLINES = Deadlines(heartbeat=10, step=60, shutdown=20)
START_TIMEOUT = 60.0
#: Seconds between two calls of an agent, and after which it gives up a call.
SYNC, LATE = 0.5, 1.0
TICK = 0.5
#: An agent whose driver is silent for so long ends itself.
DRIVER_SILENT = 120.0
STEP = 0.3
#: Steps between two checkpoints.
SAVES = 10
#: Steps of an epoch, at whose end a group can grow.
EPOCH = 15
#: No job may take longer: the sum of the deadlines of all generations that a plan allows.
LONGEST = 3000.0
ENVIRONMENT = {
    "python": "3.11",
    "tensorflow": "2",
    "keras": "3",
    "gridflow": importlib.metadata.version("gridflow"),
}


class Broken(AssertionError):
    """A promise was broken."""


@dataclass(frozen=True)
class Fault:
    """What goes wrong, when, and for how long if it passes."""

    at: float
    kind: str
    rank: int
    seconds: float = 0.0

    def __str__(self) -> str:
        lasts = f" for {self.seconds:.1f} s" if self.seconds else ""
        return f"{self.at:7.2f} s  {self.kind} of rank {self.rank}{lasts}"


@dataclass(frozen=True)
class Plan:
    """A job and what happens to it."""

    seed: int
    workers: int
    steps: int
    launches: str
    restarts: int
    preemptions: int
    replacements: int
    faults: tuple[Fault, ...]
    #: With how many ranks a group goes on. Default: all.
    least: int | None = None
    #: How many slots there are from which time on. Default: enough.
    room: tuple[tuple[float, int], ...] = ()

    def __str__(self) -> str:
        about = (
            f"seed {self.seed}: {self.workers} workers, {self.steps} steps, on {self.launches}, "
            f"max_restarts={self.restarts}, max_preemptions={self.preemptions}, "
            f"max_replacements={self.replacements}, with at least {self.least or self.workers}"
        )
        room = [f"{at:9.2f} s  {slots} slots" for at, slots in self.room]
        return "\n".join([about, *room, *(f"  {fault}" for fault in self.faults)])


#: Faults: of a process, of its agent, of the network between agent and driver, of the driver.
PROCESS = ("kill", "freeze", "exception", "exit")
AGENT = ("agent killed", "agent frozen", "preempted")
NETWORK = ("deaf", "mute", "cut", "slow")
DRIVER = ("driver stands still",)
LAUNCHES = ("plain processes", "barrier", "plain stage")


def plan_of(seed: int, workers: int | None = None) -> Plan:
    """Draw a plan."""
    rng = random.Random(seed)
    size = workers or rng.choice((1, 2, 2, 3, 3, 4, 6))
    steps = rng.choice((5, 30, 60, 100))
    faults = []
    for _ in range(rng.choice((0, 1, 1, 1, 2, 2, 3, 5))):
        kinds = rng.choice((PROCESS, PROCESS, PROCESS, AGENT, NETWORK, DRIVER))
        seconds = rng.choice((0.5, 5.0, 15.0, 40.0, 90.0)) * rng.uniform(0.5, 1.5)
        at = rng.uniform(0, 8 + STEP * steps)
        faults.append(Fault(at, rng.choice(kinds), rng.randrange(size), seconds))
    launches = rng.choice(LAUNCHES)
    plan = Plan(
        seed,
        size,
        steps,
        launches,
        rng.choice((0, 1, 3)),
        rng.choice((0, 2)),
        rng.choice((0, 0, 1, 3)),
        tuple(sorted(faults, key=lambda fault: fault.at)),
        rng.choice((None, 1, max(1, size - 1))),
    )
    if plan.least is None or not plan.replacements or rng.random() < 0.5:
        return plan
    room = [(0.0, rng.randint(plan.least, size))]
    for _ in range(rng.choice((0, 1, 1, 2))):
        at = rng.uniform(room[-1][0], 30 + STEP * steps)
        room.append((at, rng.randint(max(1, plan.least - 1), size)))
    return replace(plan, room=tuple(room))


class World:
    """One job from its start to its end."""

    def __init__(self, plan: Plan, *, tells: bool = False) -> None:
        self.plan, self.tells = plan, tells
        self.random = random.Random(plan.seed + 1)
        self.now = 0.0
        self.story: list[str] = []
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self.agents: list[Agent] = []
        self.saved = self.saved_by = 0
        #: The phase of the job in which each fault struck.
        self.struck: dict[Fault, Phase] = {}
        #: Generations in which a rank has made all steps.
        self.finished: set[int] = set()
        #: By generation and view: the group, and the newest that has made a step.
        self.groups: dict[tuple[int, int, int], Group] = {}
        self.newest = (0, 0, 0)
        #: How many agents can run at once; whether some that did had to go.
        self.slots = plan.room[0][1] if plan.room else plan.workers
        self.had_fewer = False
        self.driver = Driver(self)
        for at, slots in plan.room[1:]:
            self.after(at, lambda slots=slots: self.have(slots))
        for fault in plan.faults:
            self.after(fault.at, lambda fault=fault: self.strike(fault))

    def save(self, done: int, size: int) -> None:
        """Keep the place of a checkpoint, and with how many ranks it was made."""
        self.saved, self.saved_by = max(self.saved, done), size

    def saved_for(self, size: int) -> int:
        """Return the place of the checkpoint from which so many ranks can go on."""
        return self.saved if size == self.saved_by else self.saved // EPOCH * EPOCH

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._heap, (self.now + seconds, self._count, action))

    def say(self, words: str) -> None:
        if self.tells:
            self.story.append(f"{self.now:7.2f} s  {words}")

    def run(self) -> ev.Finish:
        """Let it happen; return how the job ended."""
        self.driver.begin()
        while self.driver.finish is None:
            at, _, action = heapq.heappop(self._heap)
            if at > LONGEST:
                raise Broken(f"the job hasn't ended after {LONGEST:.0f} s")
            self.now = at
            action()
        return self.driver.finish

    def have(self, slots: int) -> None:
        """Let there be another number of slots."""
        self.say(f"there are {slots} slots")
        self.had_fewer |= slots < self.slots
        self.slots = slots
        for agent in list(self.agents):
            if agent.rank >= slots:
                agent.end(died=True)
        self.driver.tell_of_slots()

    def strike(self, fault: Fault) -> None:
        """Let something go wrong."""
        self.struck[fault] = self.driver.machine.phase
        if fault.kind in DRIVER:
            self.driver.stand_still(fault.seconds)
            return
        agent = next((each for each in reversed(self.agents) if each.rank == fault.rank), None)
        if agent is not None and agent.is_alive:
            agent.strike(fault)


class Driver:
    """The driver: the product's machine and meetings, and what carries their decisions out."""

    def __init__(self, world: World) -> None:
        self.world, plan = world, world.plan
        self.tasks = tuple(Task("worker", rank) for rank in range(plan.workers))
        self.machine = JobMachine(
            parts_of(self.tasks, "multi_worker_mirrored"),
            DEADLINES,
            ApartFromPreemptions(MaxRestarts(plan.restarts), plan.preemptions),
            start_timeout=START_TIMEOUT,
            max_replacements=plan.replacements,
            replaces_agents=plan.launches != "barrier",
            least=plan.least,
            size=min(plan.workers, world.slots),
        )
        self.meetings = self._meetings(0)
        self.mailboxes: list[Mailbox] = [Mailbox() for _ in self.tasks]
        self.finish: ev.Finish | None = None
        self._still_until = 0.0
        #: The clock of events doesn't count the driver's standstills.
        self._paused = 0.0

    def _meetings(self, generation: int) -> Meetings:
        names = [str(task) for task in self.machine.tasks]
        keeps = self.world.plan.replacements > 0
        return Meetings(generation, range(len(names)), names, keeps=keeps)

    @property
    def clock(self) -> float:
        return self.world.now - self._paused

    @property
    def is_still(self) -> bool:
        return self.world.now < self._still_until

    def stand_still(self, seconds: float) -> None:
        if self.is_still:
            return
        self.world.say(f"the driver stands still for {seconds:.1f} s")
        self._still_until = self.world.now + seconds
        self.world.after(seconds, lambda: self._go_on(seconds))

    def _go_on(self, seconds: float) -> None:
        self._paused += seconds
        self.tell(ev.DriverStoodStill(self.clock, seconds))

    def begin(self) -> None:
        self._carry_out(self.machine.begin(self.clock))
        self.world.after(TICK, self._tick)

    def _tick(self) -> None:
        self.world.after(TICK, self._tick)
        if not self.is_still:
            self.tell(ev.Tick(self.clock))

    def when_awake(self, action: Callable[[], None]) -> None:
        """Do something, after the driver's standstill if it stands still."""
        if self.is_still:
            self.world.after(self._still_until - self.world.now + 0.001, action)
        else:
            action()

    def tell(self, event: ev.Event) -> None:
        before = self.machine.phase
        self._carry_out(self.machine.handle(event))
        if self.machine.phase is not before:
            self.world.say(f"the job is {self.machine.phase.value}")

    def _carry_out(self, todo: list[ev.Instruction]) -> None:
        for one in todo:
            match one:
                case ev.BeginLaunch(launch):
                    self.mailboxes = [Mailbox() for _ in self.machine.tasks]
                    Launch(self.world, launch, self.machine.generation, len(self.mailboxes))
                    self.world.after(1.0, self.tell_of_slots)
                case ev.CancelLaunch(launch):
                    self._launch_of(launch).cancel()
                case ev.StartGeneration(generation, _):
                    self.world.saved = self.world.saved_for(len(self.machine.tasks))
                    self.meetings = self._meetings(generation)
                    self.send(commands.Start(generation, (), None))
                case ev.Send(command, to):
                    if isinstance(command, commands.Replace) and command.view:
                        self.answer(self.meetings.replaced(command))
                    self.send(command, to)
                case ev.Say(text):
                    self.world.say(text)
                case ev.Finish():
                    self.finish = one
                case ev.ReplaceExecutor():
                    pass
                case ev.ReplaceAgent(launch, rank):
                    if not self._launch_of(launch).replace(rank):
                        no = ev.NotReplaced(self.clock, launch, rank, "its launch has ended")
                        self.world.after(0, partial(self.when_awake, partial(self.tell, no)))
                case ev.StartRank(generation, rank, _, view):
                    self.send(commands.Start(generation, (), None, view=view), (rank,))

    def tell_of_slots(self) -> None:
        """Tell the machine how many slots there are, if it could use more."""
        if len(self.machine.tasks) < len(self.tasks) and self.machine.launch:

            def told() -> None:
                self.tell(ev.SlotsCame(self.clock, self.machine.launch, self.world.slots))

            self.when_awake(told)

    def _launch_of(self, number: int) -> Launch:
        return next(each.launch for each in self.world.agents if each.launch.number == number)

    def send(self, command: Any, to: Any = None) -> None:
        for rank in range(len(self.mailboxes)) if to is None else to:
            self.mailboxes[rank].put(command)

    def answer(self, answers: Any) -> None:
        for each in answers:
            self.send(each.command, (each.rank,))

    # Called by agents -----------------------------------------------------------------------------

    def register(self, agent: Agent) -> bool:
        if agent.launch.number != self.machine.launch:
            return False
        box = self.mailboxes[agent.rank]
        if box.agent not in ("", agent.name):
            box = self.mailboxes[agent.rank] = Mailbox()
        box.agent = agent.name
        address = f"{agent.name}:1"
        host = f"host{agent.rank}"
        one = Registration(agent.rank, agent.name, agent.launch.number, host, address, ENVIRONMENT)
        self.tell(ev.Registered(self.clock, one))
        return True

    def sync(self, agent: Agent, told: list[tuple[int, Any]], done: int) -> Any:
        """Take an agent's reports, each once; return what was heard, and the commands."""
        box = self.mailboxes[agent.rank]
        if agent.launch.number != self.machine.launch or box.agent != agent.name:
            return max((number for number, _ in told), default=0), [(1, commands.Close())]
        sender = Sender(agent.rank, agent.name, agent.launch.number)
        self.tell(ev.Heard(self.clock, sender))
        for number, report in told:
            if number <= box.heard:
                continue
            box.heard = number
            self._take(sender, report)
            if self.finish is not None:
                break
        box.commands = [each for each in box.commands if each[0] > done]
        return box.heard, list(box.commands)

    def _take(self, sender: Sender, report: Any) -> None:
        if isinstance(report, reports.Meet):
            told = self.meetings.came(sender.rank, report)
            where = self.meetings.waiting(sender.rank)
            self.tell(ev.TaskWaits(self.clock, sender.rank, report.generation, where))
            self.answer(told)
            if sender.rank in self.meetings.guests:
                launch = self.machine.launch
                self.tell(ev.WantsToJoin(self.clock, launch, sender.rank, report.generation))
            for each in told:
                waits = self.meetings.waiting(each.rank)
                self.tell(ev.TaskWaits(self.clock, each.rank, report.generation, waits))
            return
        if isinstance(report, reports.Succeeded):
            left = self.meetings.left(sender.rank, "has returned", report.generation)
            self.answer(left)
        self.tell(ev.Heard(self.clock, sender, report))


@dataclass
class Mailbox:
    """What waits for an agent, and what was heard of it."""

    agent: str = ""
    heard: int = 0
    commands: list[tuple[int, Any]] = field(default_factory=list)
    sent: int = 0

    def put(self, command: Any) -> None:
        self.sent += 1
        self.commands.append((self.sent, command))


class Launch:
    """The agents that the target starts together, and how their end is told."""

    def __init__(self, world: World, number: int, generation: int, size: int) -> None:
        self.world, self.number, self.size = world, number, size
        self.is_over = self._has_failed = self._is_cancelled = False
        self._generation = generation
        self._retries = itertools.count(1)
        self.agents = [Agent(world, self, rank, generation) for rank in range(size)]
        world.agents += self.agents

    def cancel(self) -> None:
        self._is_cancelled = True
        self.world.after(self.world.random.uniform(0, 2), self._kill_all)

    def _kill_all(self) -> None:
        for agent in self.agents:
            agent.end()

    def replace(self, rank: int) -> bool:
        """Start another agent for a rank."""
        if self.is_over or self._is_cancelled:
            return False
        if self.world.plan.launches != "plain stage":  # where Spark does by itself
            self._start_again(rank)
        return True

    def _start_again(self, rank: int) -> None:
        if not (self.is_over or self._is_cancelled):
            agent = Agent(self.world, self, rank, self._generation, next(self._retries))
            self.agents.append(agent)
            self.world.agents.append(agent)

    def ended(self, agent: Agent, *, died: bool) -> None:
        """Note that an agent has ended."""
        soon = self.world.random.uniform(0.05, 1.0)
        is_barrier = self.world.plan.launches == "barrier"
        if died and self.world.plan.launches == "plain stage" and not self._is_cancelled:
            # Spark starts the task again, and says nothing.
            self.world.after(soon, lambda: self._start_again(agent.rank))
            return
        if died:
            lost = ev.AgentLost, self.number, agent.rank, "its agent has died"
            self._tell_later(soon, *lost)
        if died and is_barrier and not self._has_failed:
            self._has_failed = True
            self.world.after(soon, self._kill_all)  # Spark ends all tasks of such a stage
        if not self.is_over and not any(each.is_alive for each in self.agents):
            self.is_over = True
            error = errors.TaskLost("the stage has failed") if self._has_failed else None
            self._tell_later(soon + 0.1, ev.LaunchEnded, self.number, error)

    def _tell_later(self, seconds: float, kind: Any, *about: Any) -> None:
        driver = self.world.driver
        tell = lambda: driver.tell(kind(driver.clock, *about))  # noqa: E731
        self.world.after(seconds, lambda: driver.when_awake(tell))


class Agent:
    """An agent: calls the driver again and again, and obeys it."""

    def __init__(
        self, world: World, launch: Launch, rank: int, generation: int, retry: int = 0
    ) -> None:
        self.world, self.launch, self.rank = world, launch, rank
        self.name = f"agent-{rank}-{launch.number}-{retry}"
        self.is_alive, self.generation = True, generation
        self.process: Process | None = None
        self._frozen_until = self._deaf_until = self._mute_until = self._slow_until = 0.0
        self._told: list[tuple[int, Any]] = []
        self._number = self._done = 0
        self._heard_at = world.now
        self._call = 0
        world.after(world.random.uniform(0.1, 4), self._register)

    # Calls ----------------------------------------------------------------------------------------

    def _delay(self) -> float:
        most = 3.0 if self.world.now < self._slow_until else 0.05
        return self.world.random.uniform(0.001, most)

    def _register(self) -> None:
        driver = self.world.driver
        if not self.is_alive:
            return
        if self.rank >= self.world.slots:
            self.world.after(LATE, self._register)
            return
        if self._is_frozen(self._register):
            return
        if self.world.now < max(self._mute_until, self._deaf_until) or driver.is_still:
            self.world.after(LATE, self._register)
            return
        if not driver.register(self):
            self.end()
            return
        self._heard_at = self.world.now
        self._sync()

    def _is_frozen(self, then: Callable[[], None]) -> bool:
        if self.world.now >= self._frozen_until:
            return False
        self.world.after(self._frozen_until - self.world.now + 0.001, then)
        return True

    def _sync(self) -> None:
        if not self.is_alive or self._is_frozen(self._sync):
            return
        if self.world.now - self._heard_at > DRIVER_SILENT:
            self.end()
            return
        if self.process is not None:
            self.process.look()
        self._call += 1
        call = self._call
        self.world.after(LATE + self._delay(), lambda: self._again(call))
        if self.world.now >= self._mute_until:
            told = list(self._told)
            self.world.after(self._delay(), lambda: self._arrives(call, told, self._done))

    def _again(self, call: int) -> None:
        if call == self._call:
            self._sync()

    def _arrives(self, call: int, told: list[tuple[int, Any]], done: int) -> None:
        driver = self.world.driver
        if driver.is_still:
            driver.when_awake(lambda: self._arrives(call, told, done))
            return
        answer = driver.sync(self, told, done)
        if self.world.now >= self._deaf_until and self.is_alive:
            self.world.after(self._delay(), lambda: self._answered(call, *answer))

    def _answered(self, call: int, heard: int, orders: list[tuple[int, Any]]) -> None:
        if call != self._call or not self.is_alive:
            return
        if self._is_frozen(lambda: self._answered(call, heard, orders)):
            return
        self._call += 1
        self._heard_at = self.world.now
        self._told = [each for each in self._told if each[0] > heard]
        for number, command in orders:
            if number > self._done and self.is_alive:
                self._done = number
                self._obey(command)
        self.world.after(SYNC, self._sync)

    def report(self, report: Any) -> None:
        self._number += 1
        self._told.append((self._number, report))

    # Commands -------------------------------------------------------------------------------------

    def _obey(self, command: Any) -> None:
        match command:
            case commands.Close():
                self.end()
            case commands.Start():
                self.generation = command.generation
                self.process = Process(self, command.view)
            case commands.Clear() if command.generation == self.generation:
                if self.process is not None:
                    self.process.end()
                self.process = None
                self.report(reports.Cleared(self.generation))
                self.generation += 1
            case commands.Replace() if command.generation == self.generation:
                if command.rank == self.rank:
                    if self.process is not None:
                        self.process.end()
                    self.process = Process(self, command.view)
                elif self.process is not None:
                    self.process.hear_of_view(command)
            case commands.Met() if command.generation == self.generation:
                if self.process is not None:
                    self.process.met(command)
            case commands.AskToSave() if command.generation == self.generation:
                if self.process is not None:
                    self.process.asked(command)
            case commands.Inspect() if self.process is not None:
                self.process.inspect()

    # Ends -----------------------------------------------------------------------------------------

    def strike(self, fault: Fault) -> None:
        until = self.world.now + fault.seconds
        self.world.say(f"rank {self.rank}: {fault.kind}")
        match fault.kind:
            case "agent killed":
                self.end(died=True)
            case "agent frozen":
                self._frozen_until = max(self._frozen_until, until)
            case "deaf":
                self._deaf_until = max(self._deaf_until, until)
            case "mute":
                self._mute_until = max(self._mute_until, until)
            case "cut":
                self._deaf_until = self._mute_until = max(self._deaf_until, until)
            case "slow":
                self._slow_until = max(self._slow_until, until)
            case "preempted":
                driver, launch = self.world.driver, self.launch.number
                leaving = lambda: driver.tell(  # noqa: E731
                    ev.AgentLeaving(driver.clock, launch, self.rank, "its executor is taken back")
                )
                driver.when_awake(leaving)
                self.world.after(fault.seconds + 5, lambda: self.end(died=True))
            case _ if self.process is not None:
                self.process.strike(fault)

    def end(self, *, died: bool = False) -> None:
        if not self.is_alive:
            return
        self.is_alive = False
        if self.process is not None:
            self.process.end()
        self.launch.ended(self, died=died)


class Process:
    """A training process: comes up, meets the others, and makes steps with them."""

    def __init__(self, agent: Agent, view: int) -> None:
        self.agent, self.world = agent, agent.world
        self.rank, self.generation = agent.rank, agent.generation
        self.joined, self.heard_view, self.is_new = -1, view, view > 0
        #: The newest view for which steps are left at their end.
        self.changes = 0
        self.is_alive, self.is_ready, self.is_reported = True, False, False
        self.frozen_until = 0.0
        self._frozen_since: float | None = None
        self._told_at = 0.0
        self.done = self.world.saved
        self.group: Group | None = None
        self._failure: TaskFailure | None = None
        self.stays = self.grows = False
        self.world.after(self.world.random.uniform(0.5, 6), self._is_up)

    @property
    def _plan(self) -> Plan:
        return self.world.plan

    @property
    def is_frozen(self) -> bool:
        return self.world.now < max(self.frozen_until, self.agent._frozen_until)

    def _is_up(self) -> None:
        if not self.is_alive or self._later(self._is_up):
            return
        if self.is_new:
            self._report(reports.Ready(generation=self.generation))
        self._introduce()

    def _later(self, then: Callable[[], None]) -> bool:
        """Return whether the process is frozen; it does this when it goes on."""
        if not self.is_frozen:
            return False
        until = max(self.frozen_until, self.agent._frozen_until)
        self.world.after(until - self.world.now + 0.001, then)
        return True

    def _report(self, report: Any) -> None:
        if self.is_alive:
            self.agent.report(report)

    def _introduce(self) -> None:
        self.joined = self.heard_view
        if self.joined and not (self.is_ready or self.is_new):
            self.is_ready = True  # it doesn't wait for the others before its first fit
            self._report(reports.Ready(generation=self.generation))
        if self.agent.launch.size == 1:
            self._join()
            return
        introduction = reports.Meet(
            reports.INTRODUCTION,
            "strategy",
            f"{self.joined}",
            self.joined,
            generation=self.generation,
        )
        self._report(introduction)

    def met(self, told: commands.Met) -> None:
        """Hear that all have come, or that they never will."""
        if not self.is_alive or self.group is not None or self._later(lambda: self.met(told)):
            return
        if any(each != f"{self.joined}" for each in told.values):
            raise Broken(f"rank {self.rank} is to meet ranks of another group: {told.values}")
        if told.problem:
            self._wait_for_view(f"BrokenBarrier: {told.problem}")
        elif self.heard_view > self.joined:  # connecting is given up
            self._introduce()
        else:
            self._join(len(told.values))

    def _join(self, size: int = 1) -> None:
        key = (self.agent.launch.number, self.generation, self.joined)
        group = self.world.groups.setdefault(key, Group(self.world, key, size))
        self.group = group
        if not self.is_ready:
            self.is_ready = True
            if not self.is_new:
                self._report(reports.Ready(generation=self.generation))
        group.join(self)

    def begins(self) -> None:
        """Note that the group has begun, with a state that all know."""
        self.is_new = False
        self._due(True)

    def _due(self, due: bool) -> None:
        together = self.agent.launch.size > 1
        self._told_at = self.world.now
        self._report(reports.StepsDue(due, together, generation=self.generation))

    def stepped(self, done: int) -> None:
        """Note that the group has made a step."""
        self.done = done
        if self.world.now - self._told_at > 5:
            self._due(True)
        if done >= self._plan.steps:
            self._due(False)
            self.is_reported = True
            self.world.finished.add(self.generation)
            self._report(reports.Succeeded(self.generation, {}))

    def lost_a_peer(self) -> None:
        """Notice that another rank is gone, in the middle of a step."""
        if not self.is_alive or self.is_reported or self._later(self.lost_a_peer):
            return
        self.group = None
        self._wait_for_view("PeerGone: connection closed by peer")

    def _wait_for_view(self, why: str) -> None:
        """Go on in the next group, or fail if there is none in time."""
        if self._plan.replacements and self.heard_view > self.joined:
            self._introduce()
            return
        limit = DEADLINES.heartbeat + 5 if self._plan.replacements else 0.0
        waiting = self.joined

        def give_up() -> None:
            if self.joined == waiting and self.group is None:
                self._fail("exception", why, consequence=True)

        self._waits = True
        self._due(False)
        self.world.after(limit, give_up)

    _waits = False

    def leaves(self) -> None:
        """Leave a step at its end: the group forms again."""
        self.group = None
        self._wait_for_view("GroupChanges: another rank takes part")

    def hear_of_view(self, told: commands.Replace) -> None:
        """Hear that the group forms again."""
        self.heard_view = max(self.heard_view, told.view)
        if told.rank < 0 or told.members:
            self.changes = self.heard_view
        if self.group is not None and not self.group.has_begun:
            self.group.members.pop(self.rank, None)  # it was waiting for the one that is lost
            self.group = None
            self._introduce()
        elif self._waits and self.is_alive and self.group is None:
            self._waits = False
            self._introduce()

    def asked(self, told: commands.AskToSave) -> None:
        """Make a checkpoint at the end of the step, if there are steps, or at that of an epoch."""
        self.grows |= told.at_end
        if self.group is not None and not self.is_reported and not told.at_end:
            self.group.saves, self.group.stays = True, told.stays

    def inspect(self) -> None:
        if not self.is_frozen:
            in_step = self.group is not None and not self.is_reported
            idle = self.world.now - self._told_at if in_step else None
            stack = reports.Stack(
                "stack", waiting=in_step, in_step=in_step, idle=idle, generation=self.generation
            )
            self._report(stack)

    def look(self) -> None:
        """Let the agent see whether the process has ended or is frozen."""
        if self._failure is not None and not self.is_reported:
            failure, self._failure = self._failure, None
            self.is_reported = True
            self.agent.report(reports.Failed(failure))
        if not self.is_alive or self.world.now >= self.frozen_until:
            self._frozen_since = None
        elif self._frozen_since is None:
            self._frozen_since = self.world.now
        elif self.world.now - self._frozen_since > DEADLINES.heartbeat and not self.is_reported:
            self._fail("stopped", "its process has been frozen")

    def strike(self, fault: Fault) -> None:
        match fault.kind:
            case "freeze":
                self.frozen_until = max(self.frozen_until, self.world.now + fault.seconds)
            case "exception":
                self._fail("exception", "the function raised ValueError: no")
            case "exit":
                self._fail("exit", "its process exited with code 3", exit_code=3)
            case "kill":
                self._fail("signal", "its process was killed by SIGKILL", signal="SIGKILL")

    def _fail(self, kind: Any, summary: str, **details: Any) -> None:
        if not self.is_alive or self.is_reported:
            return
        task, host = f"worker:{self.rank}", f"host{self.rank}"
        self._failure = TaskFailure(task, host, kind, summary, self.generation, **details)
        self.end()

    def end(self) -> None:
        self.is_alive = False
        if self.group is not None:
            self.group.left(self)


class Group:
    """Processes that make steps together."""

    def __init__(self, world: World, key: tuple[int, int, int], size: int) -> None:
        self.world, self.key, self.size = world, key, size
        self.members: dict[int, Process] = {}
        self.is_broken = self.has_begun = self.saves = self.stays = False

    def join(self, process: Process) -> None:
        self.members[process.rank] = process
        if self.is_broken:
            process.lost_a_peer()
        elif len(self.members) == self.size:
            self._begin()

    def _begin(self) -> None:
        # All take the state of the one that is furthest; a new process knows none.
        known = [each.done for each in self.members.values() if not each.is_new]
        if not known:
            raise Broken(f"the group {self.key} has nobody who knows the state of the training")
        self.done, self.has_begun = max(known), True
        for each in self.members.values():
            each.begins()
        self.world.say(f"the group {self.key} goes on at step {self.done}")
        self.world.after(STEP, self._step)

    def _step(self) -> None:
        if self.is_broken:
            return
        awake = [each for each in self.members.values() if not each.is_frozen]
        if len(awake) < len(self.members):
            self.world.after(STEP, self._step)  # they wait for the one that stands still
            return
        self._check()
        self.done += 1
        is_last = self.done >= self.world.plan.steps
        grows = any(each.grows for each in self.members.values())
        if grows and self.done % EPOCH == 0 and not is_last:
            self.saves = self.stays = True
        if self.done % SAVES == 0 or self.done % EPOCH == 0 or self.saves:
            self._save()
        if self.stays:
            return
        # A rank may end before it has seen the end of the step that others have seen.
        for each in list(self.members.values()):
            if self.world.random.random() > 0.01 or is_last:
                each.stepped(self.done)
        if is_last:
            return
        if any(each.changes > each.joined for each in self.members.values()):
            self.is_broken = True
            for each in self.members.values():
                each.leaves()
            return
        self.world.after(STEP, self._step)

    def _save(self) -> None:
        chief = self.members.get(0)
        if chief is None:
            return  # it is away
        if self._is_present(chief):
            self.world.save(self.done, chief.agent.launch.size)
            if self.saves:
                chief.agent.report(reports.Saved(generation=self.key[1]))
        self.saves = False

    def _is_present(self, process: Process) -> bool:
        driver = self.world.driver
        is_current = process.agent.launch.number == driver.machine.launch
        return is_current and process.agent.is_alive

    def _check(self) -> None:
        """Two groups of a launch never make steps at the same time."""
        if not all(map(self._is_present, self.members.values())):
            return  # given up: what it does counts for nothing
        if self.key < self.world.newest:
            raise Broken(f"the group {self.key} makes steps beside {self.world.newest}")
        self.world.newest = self.key

    def left(self, process: Process) -> None:
        """Note that a process has ended."""
        if self.is_broken or process.is_reported:
            return
        self.is_broken = True
        for each in self.members.values():
            if each is not process:
                delay = self.world.random.uniform(0.02, 0.6)
                self.world.after(delay, each.lost_a_peer)


def check(plan: Plan, finish: ev.Finish, world: World) -> None:
    """Check how a job ended against what happened to it."""
    machine = world.driver.machine
    assert machine.phase is Phase.CLOSED
    error = finish.error
    if error is None and not any(attempt.failure is None for attempt in machine.attempts):
        raise Broken("the job succeeded without a generation that did")
    if error is None and machine.generation not in world.finished:
        raise Broken("the job succeeded, but no rank has made all steps")
    if len(machine.replaced) > plan.replacements:
        raise Broken("more ranks were replaced than allowed")
    failed = [a.failure for a in machine.attempts if a.failure is not None]
    restarts = [each for each in failed if each.kind != "preempted"]
    if len(restarts) - (error is not None) > plan.restarts:
        raise Broken("the group was restarted more often than allowed")
    kinds = [fault.kind for fault in plan.faults if fault in world.struck]
    kinds += ["slots went"] * world.had_fewer
    if not kinds and error is not None:
        raise Broken(f"nothing went wrong, and the job failed: {error}")
    goes_on = {"kill"} if plan.launches == "barrier" else {"kill", "agent killed"}
    are_kills = set(kinds) <= goes_on and 0 < len(kinds) <= plan.replacements
    goes_on_in = {Phase.TRAINING} | ({Phase.STARTING} if set(kinds) <= {"kill"} else set())
    is_training = set(world.struck.values()) <= goes_on_in
    spaced = all(b.at - a.at > 20 for a, b in itertools.pairwise(plan.faults))
    fewest = min((slots for _, slots in plan.room), default=plan.workers)
    if are_kills and is_training and spaced and fewest > 1 and error is not None:
        raise Broken(f"who was killed wasn't replaced: {error}")
    named = {f"worker:{fault.rank}" for fault in plan.faults if fault.kind not in DRIVER}
    if world.had_fewer:
        named |= {f"worker:{rank}" for rank in range(min(each for _, each in plan.room), 6)}
    first = getattr(error, "failures", ())[:1]
    if first and first[0].task not in named and "driver stands still" not in kinds:
        raise Broken(f"{first[0].task} is blamed, where nothing went wrong: {error}")
    _check_size(plan, error, world)


def _check_size(plan: Plan, error: Any, world: World) -> None:
    """Check that a job has grown once it could, and hasn't waited for more than it needs."""
    machine = world.driver.machine
    grew_at, most = plan.room[-1] if plan.room else (0.0, plan.workers)
    quiet_since = max([grew_at, *(fault.at + fault.seconds for fault in plan.faults)])
    is_late = world.now > quiet_since + 3 * EPOCH * STEP + 20
    if error is None and is_late and len(machine.tasks) < most and not machine.away:
        raise Broken(f"the job ended with {len(machine.tasks)} workers, and had {most} slots")
    never_came = [each for each in getattr(error, "failures", ()) if "not register" in each.summary]
    there = [each for each in world.agents if each.launch.number == machine.launch]
    came = sum(each.rank < world.slots for each in there)
    if never_came and not plan.faults and came >= (plan.least or plan.workers):
        raise Broken(f"{came} agents have come, which are enough: {error}")


def simulate(plan: Plan) -> World:
    """Run a plan; raise what is wrong with it."""
    world = World(plan)
    check(plan, world.run(), world)
    return world
