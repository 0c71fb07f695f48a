"""The job's state machine: ``handle(event) -> instructions``, without I/O, clock or threads.

::

    GATHERING --all registered--> STARTING --all ready--> TRAINING --all done--> CLOSING --> CLOSED
        |                            |                     |   +-- EVALUATING --^   ^
        +----------- failure --------+---------------------+                        |
                     |                                                              |
                 COLLECTING --no restart left---------------------------------------+
                     |
                 CLEARING --agents alive--> STARTING (next generation)
                     |
                 RELAUNCHING --agents gone--> GATHERING (next generation, next launch)

Where workers come and go, a launch may have fewer tasks than the job: as many as have come in
time, if those are enough. Once the cluster has slots for more, the group makes a checkpoint at the
end of an epoch, and the next launch has them. Neither is a failure.

`gridflow._coordinator.phases` has the table of transitions and deadlines.

When an agent's executor is about to be preempted (`AgentLeaving`), the group makes a checkpoint and
goes straight to RELAUNCHING, as long as the policy allows it. Otherwise, or if no checkpoint can be
made, or if the others can do without it, the agent goes on until it is gone, which then isn't a
failure of the program either.

The first failure opens COLLECTING: the root cause often arrives second, because a survivor's lost
connection is noticed before the death that caused it. `choose_cause` then picks the cause.

"All done" means the tasks that are awaited (`gridflow._spec.job`): servers are ended, not
awaited. In EVALUATING, an evaluator may evaluate the last checkpoint; however that ends, the
training has succeeded by then. A process that the others don't depend on is replaced while they
go on. Those of a group go on as soon as a rank that is lost has a new process, which its agent
starts, or a new agent, which the launch does; or at once, if as many are left as they need: the
rank is away then, until its new process asks to take part again.
"""

from __future__ import annotations

import importlib.metadata
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from gridflow._coordinator import events as ev
from gridflow._coordinator.deadlines import RETURNED, Alarms, Ask, LostAgents, StepWatch
from gridflow._coordinator.environments import environment_failures
from gridflow._coordinator.member import Member
from gridflow._coordinator.phases import COLLECT_SECONDS, STAGES, Phase
from gridflow._coordinator.policies import (
    MaxRestarts,
    RestartPolicy,
    choose_cause,
    to_error,
)
from gridflow._spec.cluster import EVALUATOR, TRAINING_ROLES
from gridflow._spec.exits import KINDS
from gridflow._spec.option_checks import START_TIMEOUT
from gridflow._wire import commands, reports
from gridflow._wire.failures import (
    LONGEST_SUMMARY,
    PREEMPTED,
    Attempt,
    FailureKind,
    TaskFailure,
)
from gridflow.errors import DataError, RunTimeout, TaskLost

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gridflow._spec.job import Part
    from gridflow._spec.option_groups import Deadlines
    from gridflow._wire.headers import Registration
    from gridflow.errors import GridflowError

#: Silence after which an agent that its launch left behind counts as dead: a live one calls at
#: least once a second, and ends its training process when told to.
GONE_SECONDS: Final = 5.0
#: The same after an agent was seen to die: what it leaves behind must notice that.
DIED_SECONDS: Final = 2.0
#: What a failure of a launch, which isn't a task's, has for a task's name.
SPARK: Final = "Spark"
_OF_LAUNCHES: Final[Mapping[FailureKind, type[GridflowError]]] = {
    "lost": TaskLost,
    "data": DataError,
}
#: For how many times the heartbeat's deadline the others of a group wait for a silent agent.
_SILENT_FOR: Final = 2
#: The phases in which a task may be lost while the others go on.
_REPLACEABLE_IN: Final = frozenset({Phase.STARTING, Phase.TRAINING})
#: How often per generation a task's process is replaced; more means that something else is wrong.
MOST_REPLACEMENTS: Final = 5


class JobMachine:
    """The state of one job.

    `parts`: What each task does, by rank; those that train come first.
    `policy`: Whether a failure is followed by another generation.
    `needs`: Packages that every task must have.
    `environment`: The driver's versions. Default: only gridflow's.
    `max_replacements`: How many ranks of the group may be replaced while the others go on.
    `replaces_agents`: Whether they also may if their agent is gone.
    `least`: With how many ranks the group goes on while others are replaced. Default: all. Where it
        is given, all parts train, and a launch may have fewer tasks: the first ones.
    `size`: How many the first launch has. Default: all.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        deadlines: Deadlines,
        policy: RestartPolicy | None = None,
        *,
        start_timeout: float = START_TIMEOUT,
        needs: Sequence[str] = ("tensorflow",),
        environment: Mapping[str, str] | None = None,
        max_replacements: int = 0,
        replaces_agents: bool = False,
        least: int | None = None,
        size: int | None = None,
    ) -> None:
        self._all_parts, self._size = tuple(parts), size or len(parts)
        self.deadlines, self.start_timeout = deadlines, start_timeout
        self.policy = policy or MaxRestarts(0)
        self.needs = needs
        self.environment = environment or {"gridflow": importlib.metadata.version("gridflow")}
        self.phase = Phase.GATHERING
        self.generation = 0
        self.launch = 0
        self.attempts: list[Attempt] = []
        self.failures: list[TaskFailure] = []
        self.max_replacements, self._replaces_agents = max_replacements, replaces_agents
        self._use(self._size)
        self._least, self._is_elastic = least or len(self._group), least is not None
        #: How many tasks the cluster can run at once for the launch, and could at most, if known.
        self._slots = self._most_slots = 0
        #: When the last event was, and sizes of the group in this generation.
        self._at = 0.0
        self._is_resized = self._size < len(parts)
        self._sizes = self._first_sizes
        #: Why ranks of the group were replaced, in all generations.
        self.replaced: list[TaskFailure] = []
        #: Whether the group moves once it has made the checkpoint that it was asked for.
        self._saves_to_move: bool | None = None
        #: The rank that was asked to let the group stop, so that there can be more workers.
        self._asked_to_grow: int | None = None
        self._become([Member() for _ in self.tasks])
        self._since, self._deadline = 0.0, 0.0
        self._generation_began = 0.0
        self._run_deadline: float | None = None
        self._launch_alive = False
        self._outlived = False
        self._cancelled = False
        self._error: GridflowError | None = None
        self._interrupted = False
        self._standstill: ev.DriverStoodStill | None = None

    def _use(self, size: int) -> None:
        """Let a launch have so many tasks."""
        self.parts = self._all_parts[:size]
        self.tasks = tuple(part.task for part in self.parts)
        trains = tuple(r for r, part in enumerate(self.parts) if part.task.role in TRAINING_ROLES)
        self._chief = trains[0] if trains else 0
        self._group = trains if self.max_replacements and len(trains) > 1 else ()
        self._awaited = tuple(rank for rank, part in enumerate(self.parts) if part.is_awaited)
        self._evaluators = tuple(
            rank for rank, part in enumerate(self.parts) if part.task.role == EVALUATOR
        )

    def begin(self, at: float) -> list[ev.Instruction]:
        """Return the first instructions."""
        if self.deadlines.run is not None:
            self._run_deadline = at + self.deadlines.run
        self._put_off_deadline(at)
        return self._begin_launch(at)

    def handle(self, event: ev.Event) -> list[ev.Instruction]:
        """Handle an event; return what to do."""
        if self.phase is Phase.CLOSED:
            return []
        self._at = event.at
        match event:
            case ev.Heard():
                return self._heard(event)
            case ev.DriverStoodStill():
                if event.seconds >= self.deadlines.heartbeat:
                    self._standstill = event
                return []
            case ev.Interrupted():
                return self._interrupt(event.at)
            case ev.LaunchEnded():
                return self._launch_ended(event)
            case ev.Registered():
                return self._registered(event.at, event.agent)
            case (
                ev.AgentLost()
                | ev.AgentLeaving()
                | ev.NotReplaced()
                | ev.WantsToJoin()
                | ev.SlotsCame()
            ):
                return self._goes_or_comes(event)
            case ev.TaskWaits() if event.generation == self.generation:
                doing = event.function and f"waits in {event.function}"
                self._steps.absent(event.rank, doing)
            case ev.RowsUnfit() if not self._ending and not self.failures:
                return self._close(event.at, DataError(event.reason))
            case ev.DriverFailed() if not self._ending:
                return self._close(event.at, event.error)
        return self._go_on(event.at)

    def _go_on(self, at: float) -> list[ev.Instruction]:
        return self._advance(at) or self._check_deadlines(at)

    # What an agent says of itself and of its task ------------------------------------------------

    def _heard(self, event: ev.Heard) -> list[ev.Instruction]:
        at, sender, report = event.at, event.sender, event.report
        if sender.launch != self.launch:
            return []
        member = self._members[sender.rank]
        match report:
            case None:
                if member.agent == sender.agent:
                    member.last_heard = at
                    if sender.rank in self._coming and not member.died:
                        return self._came_back(at, sender.rank)
                return []  # by far the most frequent: consequences can wait for the next tick
            case reports.ExecutorFrozen(detail):
                # Also when the job is ending: until then its task keeps its slot.
                replace_it = ev.ReplaceExecutor(self.launch, sender.rank)
                lost = self._agent_lost(at, sender.rank, detail, died=False)
                return [replace_it, *lost]
            case reports.Gone():
                member.gone |= member.agent == sender.agent
                return self._go_on(at)
        if report.generation != self.generation:
            if isinstance(report, reports.Failed) and report.generation > self.generation:
                member.failed_early = report.failure
            return []
        return self._task_says(at, sender.rank, report)

    def _task_says(self, at: float, rank: int, report: ev.OfTask) -> list[ev.Instruction]:
        member = self._members[rank]
        match report:
            case reports.StepsDue():
                member.last_step, member.armed = at, report.due
                member.together = report.together
                self._steps.stepped(rank)
                if report.due and member.ready and rank not in self._away:
                    self._unhealed.pop(rank, None)
                    self._joining.discard(rank)
                    for each in self._away:  # the others have got over it
                        self._unhealed.pop(each, None)
                    return self._let_in() or self._ask_to_grow()
                return []
            case reports.Saved():
                if self.phase is not Phase.TRAINING:
                    return []
                return self._move(at) if self._saves_to_move else self._grow(at)
            case reports.Failed(failure):
                return self._task_failed(at, rank, failure)
            case reports.Ready():
                member.ready, member.up_by = True, None
                self._unready.discard(rank)
            case reports.Succeeded() | reports.Joined():
                member.succeeded, member.armed = True, False
                self._unfinished.discard(rank)
                if isinstance(report, reports.Succeeded):
                    self._steps.absent(rank, RETURNED)
            case reports.Cleared():
                member.cleared = True
            case reports.Stack():
                member.stack, member.waiting = report.stack, report.waiting
                member.in_step = report.in_step
                if report.idle is not None:
                    member.last_step = max(member.last_step, at - report.idle)
                return []  # what was reported after it may be here, too
        return self._go_on(at)

    def _registered(self, at: float, agent: Registration) -> list[ev.Instruction]:
        if agent.launch != self.launch:
            return []
        member = self._members[agent.rank]
        if member.agent and member.agent != agent.agent and self.phase is not Phase.RELAUNCHING:
            todo = []
            if not member.lost:
                # Spark restarted the task by itself: the previous agent is gone.
                detail = "its agent was replaced when Spark retried the task"
                todo = self._agent_lost(at, agent.rank, detail, has_new=True)
            if agent.rank in self._coming and self.phase is Phase.TRAINING:
                todo += self._take_place(at, agent)
            return todo
        member.agent, member.host, member.address = agent.agent, agent.host, agent.address
        member.environment = agent.environment
        member.last_heard = at
        self._unregistered.discard(agent.rank)
        self._lost_agents.watch(agent.rank)
        return self._advance(at)

    # How agents and launches end -----------------------------------------------------------------

    def _goes_or_comes(
        self,
        event: ev.AgentLost | ev.AgentLeaving | ev.NotReplaced | ev.WantsToJoin | ev.SlotsCame,
    ) -> list[ev.Instruction]:
        if event.launch != self.launch:
            return []
        if isinstance(event, ev.SlotsCame):
            return self._slots_came(event)
        if isinstance(event, ev.WantsToJoin):
            if event.generation == self.generation and self.phase in _REPLACEABLE_IN:
                self._ready_to_join.add(event.rank)
            return self._let_in()
        if isinstance(event, ev.NotReplaced):
            return self._not_replaced(event)
        if isinstance(event, ev.AgentLost):
            return self._agent_lost(event.at, event.rank, event.detail)
        return self._agent_leaving(event.at, event.rank, event.detail)

    def _agent_lost(
        self, at: float, rank: int, detail: str, *, died: bool = True, has_new: bool = False
    ) -> list[ev.Instruction]:
        """Note that an agent is gone.

        `has_new`: Whether there is another one in its place already.
        """
        member = self._members[rank]
        if self._ending or (member.lost and rank not in self._coming):
            return []
        if member.lost and (member.died or not died):  # the new one didn't even register
            return self._fail(at, self._loss(at, rank, detail))
        is_new, member.lost, member.died = not member.lost, True, died
        if died:
            member.last_heard = at
        # One that is only silent may come back.
        patience = self.start_timeout if died else _SILENT_FOR * self.deadlines.heartbeat
        todo: list[ev.Instruction] = []
        if is_new:
            loss = self._loss(at, rank, detail)
            replaces = self._replaces_agents and self.phase is Phase.TRAINING
            if not (replaces and self._can_go_on(rank, loss)):
                return self._fail(at, loss)
            self._coming.add(rank)
            todo = self._regroup(rank, loss)
        member.ready, member.up_by = False, at + patience
        self._replacements.watch(rank)
        return [*todo, ev.ReplaceAgent(self.launch, rank)] if died and not has_new else todo

    def _came_back(self, at: float, rank: int) -> list[ev.Instruction]:
        """Let an agent that was only silent take its own place, with a new process."""
        member = self._members[rank]
        self._coming.discard(rank)
        member.lost, member.up_by = False, at + self.start_timeout
        self._lost_agents.watch(rank)
        return [ev.Send(self._replacing(rank), (rank,))]

    def _take_place(self, at: float, agent: Registration) -> list[ev.Instruction]:
        """Let a new agent go on in the place of one that is lost."""
        rank, host = agent.rank, agent.host
        self._coming.discard(rank)
        self._members[rank] = Member(
            agent.agent, host, agent.address, agent.environment, last_heard=at
        )
        self._members[rank].up_by = at + self.start_timeout
        self._replacements.watch(rank)
        self._lost_agents.watch(rank)
        failures = environment_failures(
            {self.tasks[rank]: (host, agent.environment)},
            self.generation,
            needs=self.needs,
            driver=self.environment,
        )
        if failures:
            return self._fail(at, failures[0])
        addresses = tuple(member.address for member in self._members)
        return [ev.StartRank(self.generation, rank, addresses, self._view)]

    def _not_replaced(self, event: ev.NotReplaced) -> list[ev.Instruction]:
        if event.rank in self._away:
            return [ev.Say(f"{self.tasks[event.rank]} stays away: {event.reason}")]
        loss = self._unhealed.pop(event.rank, None)
        if loss is None or self._ending:
            return []
        self._coming.discard(event.rank)
        self.replaced.remove(loss)
        return self._fail(event.at, replace(loss, summary=f"{loss.summary}. {event.reason}"))

    def _agent_leaving(self, at: float, rank: int, detail: str) -> list[ev.Instruction]:
        member = self._members[rank]
        if member.leaving or member.lost or self._ending:
            return []
        member.leaving = detail
        if self.phase in {Phase.GATHERING, Phase.STARTING} and self._may_move():
            return self._move(at)
        if self.phase is not Phase.TRAINING or self._saves_to_move is not None:
            return []
        if self._can_do_without(rank):
            return [ev.Say(f"{self.tasks[rank]}: {detail}. The others go on when it is gone")]
        moves = self._saves_to_move = self._may_move()
        self._asked_to_grow = None
        then = "moves" if moves else "continues while it can (max_preemptions allows no move)"
        words = f"{self.tasks[rank]}: {detail}. The group makes a checkpoint and {then}"
        # It tells the other ranks with its step, so that all save after the same one.
        chief = next((each for each in self._group if each not in self._away), self._chief)
        return [ev.Say(words), ev.Send(commands.AskToSave(self.generation, moves), (chief,))]

    def _can_do_without(self, rank: int) -> bool:
        """Return whether the others go on at once without a rank whose executor is preempted."""
        leaving = {each for each in self._group if self._members[each].leaving}
        left = len(self._group) - len({*self._away, *leaving, rank})
        return (
            self._replaces_agents
            and rank in self._group
            and left >= self._least  # never where all of them are needed
            and len(self.replaced) < self.max_replacements
        )

    def _may_move(self) -> bool:
        return self.policy.restart([*self._causes(), self._preemption()])

    def _preemption(self) -> TaskFailure:
        rank = next(rank for rank, member in enumerate(self._members) if member.leaving)
        return self._failure(rank, PREEMPTED, self._members[rank].leaving)

    def _move(self, at: float) -> list[ev.Instruction]:
        """Leave the executors before they are preempted."""
        self._note_attempt(at, self._preemption())
        return self._next_generation(at)

    def _task_failed(self, at: float, rank: int, failure: TaskFailure) -> list[ev.Instruction]:
        if self._ending or rank in self._coming:
            return []
        member = self._members[rank]
        member.armed = False
        if not failure.host:  # the driver noticed it, not the task
            failure = replace(failure, host=member.host)
        if member.leaving and KINDS[failure.kind].is_executors:
            words = f"{member.leaving}. {failure.summary}"
            failure = replace(failure, kind=PREEMPTED, summary=words)
        if self._can_replace(rank, failure):
            return self._replace(at, rank, failure)
        return self._fail(at, failure)

    def _launch_ended(self, event: ev.LaunchEnded) -> list[ev.Instruction]:
        if event.launch != self.launch:
            return []
        self._launch_alive, self._outlived = False, event.outlived
        if self.phase is Phase.CLOSING:
            return self._leave(event.at)
        if self.phase is Phase.EVALUATING:
            return self._close(event.at, None)
        if self.phase is Phase.RELAUNCHING:
            return self._gather(event.at)
        known = any(not failure.consequence for failure in self.failures)
        never_started = self.phase is Phase.GATHERING
        if event.error is not None and (
            never_started or (isinstance(event.error, DataError) and not known)
        ):
            return self._launch_failed(event.at, event.error)
        for member in self._members:
            member.lost = True
        if known:
            return self._advance(event.at)
        detail = f"all agents ended early: {event.error or 'without an error'}"
        leaving = (rank for rank, member in enumerate(self._members) if member.leaving)
        loss = self._loss(event.at, next(leaving, self._lost_agents.longest_silent), detail)
        if event.error is not None:
            loss = replace(loss, spark_errors=event.error.spark_errors)
        return self._fail(event.at, loss)

    def _launch_failed(self, at: float, error: GridflowError) -> list[ev.Instruction]:
        """Launch again, or end with the launcher's own error, which says best why."""
        kinds = (kind for kind, raised in _OF_LAUNCHES.items() if isinstance(error, raised))
        kind = next(kinds, None)
        if kind is None:
            return self._close(at, error)
        summary = str(error).partition("\n")[0][:LONGEST_SUMMARY]
        failure = TaskFailure(
            SPARK, "", kind, summary, self.generation, spark_errors=error.spark_errors
        )
        if not self.policy.restart([*self._causes(), failure]):
            return self._close(at, error)
        self._note_attempt(at, failure)
        return self._next_generation(at)

    # The way forward -----------------------------------------------------------------------------

    def _advance(self, at: float) -> list[ev.Instruction]:
        match self.phase:
            case Phase.GATHERING if not self._unregistered:
                return self._start(at)
            case Phase.STARTING if self._unready <= self._away:
                self._enter(Phase.TRAINING, at)
                return self._advance(at)
            case Phase.TRAINING if self._unfinished.isdisjoint(self._awaited) or self._are_done:
                return self._trained(at)
            case Phase.EVALUATING if self._unfinished.isdisjoint(self._evaluators):
                return self._close(at, None)
            case Phase.COLLECTING:
                return self._collect(at)
            case Phase.CLEARING if all(m.cleared or m.lost for m in self._members):
                return self._next_generation(at)
        return []

    def _enter(self, phase: Phase, at: float) -> None:
        """Enter a phase, and set its deadline."""
        if phase not in STAGES[self.phase].leads_to:
            raise AssertionError(f"no transition from {self.phase.value} to {phase.value}")
        self.phase, self._since = phase, at
        self._put_off_deadline(at)

    def _put_off_deadline(self, at: float) -> None:
        self._deadline = at + STAGES[self.phase].lasts(self.deadlines, self.start_timeout)

    def _gather(self, at: float) -> list[ev.Instruction]:
        self._enter(Phase.GATHERING, at)
        return self._begin_launch(at)

    def _begin_launch(self, at: float) -> list[ev.Instruction]:
        self.launch += 1
        self._use(self._size)
        self._slots = self._most_slots = 0
        self._become([Member() for _ in self.tasks])
        self._generation_began = at
        self._launch_alive, self._cancelled, self._outlived = True, False, False
        return [ev.BeginLaunch(self.launch)]

    def _start(self, at: float) -> list[ev.Instruction]:
        members = zip(self.tasks, self._members, strict=True)
        failures = environment_failures(
            {task: (member.host, member.environment) for task, member in members},
            self.generation,
            needs=self.needs,
            driver=self.environment,
        )
        if failures:
            self._note_attempt(at, failures[0])
            return self._close(at, to_error(failures))
        self._enter(Phase.STARTING, at)
        addresses = tuple(member.address for member in self._members)
        return [ev.StartGeneration(self.generation, addresses)]

    def _next_generation(self, at: float) -> list[ev.Instruction]:
        self.generation += 1
        self.failures = []
        self._generation_began = at
        if self._launch_alive and not any(m.lost or m.leaving for m in self._members):
            early = [(rank, m.failed_early) for rank, m in enumerate(self._members)]
            self._become(
                [
                    Member(m.agent, m.host, m.address, m.environment, last_heard=m.last_heard)
                    for m in self._members
                ]
            )
            todo = self._start(at)
            for rank, failure in early:
                todo += self._task_failed(at, rank, failure) if failure else []
            return todo
        return self._relaunch(at)

    def _relaunch(self, at: float) -> list[ev.Instruction]:
        self._enter(Phase.RELAUNCHING, at)
        if not self._launch_alive:
            return self._gather(at)
        return [ev.Send(commands.Close()), ev.CancelLaunch(self.launch)]

    # Another number of workers -------------------------------------------------------------------

    def _slots_came(self, event: ev.SlotsCame) -> list[ev.Instruction]:
        self._slots = event.slots
        if self.phase is Phase.GATHERING and event.slots > self._most_slots:
            self._put_off_deadline(event.at)
        self._most_slots = max(event.slots, self._most_slots)
        return self._ask_to_grow() or self._go_on(event.at)

    def _ask_to_grow(self) -> list[ev.Instruction]:
        """Ask the group to stop at the end of its epoch, if there are slots for more workers."""
        size = min(self._slots, len(self._all_parts))
        if self._asked_to_grow is not None or size <= len(self.parts) or not self._is_elastic:
            return []
        is_whole = not (self.away or self._coming or self._unhealed)
        if self.phase is not Phase.TRAINING or self._saves_to_move is not None or not is_whole:
            return []
        self._asked_to_grow = self._chief
        words = f"there is room for {size} workers: the job goes on with them after this epoch"
        asked = commands.AskToSave(self.generation, stays=True, at_end=True)
        return [ev.Say(words), ev.Send(asked, (self._chief,))]

    def _grow(self, at: float) -> list[ev.Instruction]:
        """Start again with more workers: the group has made its checkpoint, and waits."""
        if self._asked_to_grow is None:
            return []
        size = max(len(self.parts), min(self._slots, len(self._all_parts)))
        return self._resize(at, size, f"the job goes on with {size} workers")

    def _resize(self, at: float, size: int, words: str) -> list[ev.Instruction]:
        """Launch another number of tasks, which isn't a failure."""
        self._size, self._is_resized = size, True
        self._note_attempt(at, None)
        self.generation += 1
        self.failures = []
        return [ev.Say(words), *self._relaunch(at)]

    def _trained(self, at: float) -> list[ev.Instruction]:
        self._note_attempt(at, None)
        if self._unfinished.isdisjoint(self._evaluators):
            return self._close(at, None)
        self._enter(Phase.EVALUATING, at)
        return [ev.Send(commands.EndEvaluation(), self._evaluators)]

    def _become(self, members: list[Member]) -> None:
        """Begin a launch or a generation with these members.

        Counters are kept from here on, so that the cost of an event doesn't grow with the group.
        """
        self._members, self._saves_to_move = members, None
        everyone = range(len(members))
        self._unregistered = {rank for rank in everyone if not members[rank].agent}
        self._unready, self._unfinished = set(everyone), set(everyone)
        self._lost_agents = LostAgents(members, self.deadlines)
        names = [str(task) for task in self.tasks]
        self._steps = StepWatch(members, self._awaited, names, self.deadlines)
        self._replacements = Alarms(lambda rank: members[rank].up_by)
        self._asked_to_grow = None
        #: The number of the group that trains, and by rank the failures that it hasn't got over:
        #: the rank's new process has made no step yet.
        self._view = 0
        self._unhealed: dict[int, TaskFailure] = {}
        #: Ranks of the group that have lost their agents and have no new ones yet.
        self._coming: set[int] = set()
        #: Ranks without which the others go on for now, those of them that are ready to take part
        #: again, and those that are let in but haven't made a step.
        self._away: set[int] = set()
        self._ready_to_join: set[int] = set()
        self._joining: set[int] = set()

    # Failure -------------------------------------------------------------------------------------

    def _can_replace(self, rank: int, failure: TaskFailure) -> bool:
        member = self._members[rank]
        if member.lost:
            return False
        is_replaced = KINDS[failure.kind].is_replaced
        if rank in self._group:
            is_replaced = is_replaced or failure.kind == PREEMPTED
            return is_replaced and self._can_go_on(rank, failure)
        is_replaced = is_replaced and self.phase in _REPLACEABLE_IN and self.parts[rank].is_replaced
        return is_replaced and member.replacements < MOST_REPLACEMENTS

    def _can_go_on(self, rank: int, failure: TaskFailure) -> bool:
        """Return whether the group goes on once a rank has a new process, or a new agent."""
        if self.phase not in _REPLACEABLE_IN or rank not in self._group:
            return False
        if len(self.replaced) >= self.max_replacements or self._saves_to_move:
            return False
        # What a program does to itself twice, it will do again.
        is_programs = failure.signal != "SIGKILL" and failure.kind not in {"lost", PREEMPTED}
        if is_programs and any(_are_alike(failure, each) for each in self.replaced):
            return False
        if failure.kind == PREEMPTED and not self._can_do_without(rank):
            return False
        for each in self._group:
            other = self._members[each]
            if each != rank and (other.succeeded or (other.lost and each not in self._coming)):
                return False
        # One must be left that knows the state of the training.
        return len({*self._unhealed, *self.away, rank}) < len(self._group)

    def _replace(self, at: float, rank: int, failure: TaskFailure) -> list[ev.Instruction]:
        member = self._members[rank]
        member.replacements += 1
        member.ready, member.up_by = False, at + self.start_timeout
        self._replacements.watch(rank)
        if self.phase is Phase.STARTING:
            self._unready.add(rank)
            self._put_off_deadline(at)
        if rank in self._group:
            return self._regroup(rank, failure)
        words = f"{failure.task}: {failure.summary}. It is restarted; the others go on."
        return [ev.Say(words), ev.Send(commands.Replace(self.generation, rank), (rank,))]

    def _regroup(self, rank: int, failure: TaskFailure) -> list[ev.Instruction]:
        """Let a group form again, with a new process of a rank or without it for now."""
        self.replaced.append(failure)
        was_away, is_coming = rank in self._away, rank in self._coming
        self._ready_to_join.discard(rank)
        self._joining.discard(rank)
        if rank == self._asked_to_grow:
            self._asked_to_grow = None
        left = len(self._group) - len({*self._away, rank})
        words = "It is restarted; the others go on."
        if left >= self._least:
            self._away.add(rank)
            words = f"{left} of {len(self._group)} workers go on until it is back."
        elif is_coming:
            words = "The others wait for an agent in its place."
        words = f"{failure.task}: {failure.summary}. {words}"
        said = ev.Say(f"{words} {len(self.replaced)} of max_replacements={self.max_replacements}.")
        if was_away:
            return [said] if is_coming else [said, ev.Send(self._replacing(rank), (rank,))]
        self._unhealed[rank] = failure
        for each in self._group:
            self._members[each].armed = False  # until it makes steps in the new group
        return [said, self._form(rank)]

    def _let_in(self) -> list[ev.Instruction]:
        """Let ranks that were away take part again, from the end of a step of the others."""
        if not self._ready_to_join:
            return []
        others = (self._members[each] for each in self._group if each not in self._away)
        if not all(each.armed for each in others):
            return []
        came = self._ready_to_join & self._away
        self._ready_to_join = set()
        self._away -= came
        self._joining |= came
        of_all = f"{len(self._group) - len(self._away)} of {len(self._group)} workers"
        names = " and ".join(str(self.tasks[rank]) for rank in sorted(came))
        return [ev.Say(f"Back: {names}; {of_all}"), self._form(-1)] if came else []

    def _form(self, rank: int) -> ev.Send:
        """Return what all ranks with agents hear: a new view, and who is restarted for it."""
        self._view += 1
        size = len(self._group) - len(self._away)
        if size < len(self._group) or self._sizes:
            self._sizes.append((self._at - self._generation_began, size))
        told = tuple(each for each in self._group if each not in self._coming)
        return ev.Send(self._replacing(rank), told)

    def _replacing(self, rank: int) -> commands.Replace:
        members = tuple(each for each in self._group if each not in self._away and self._away)
        return commands.Replace(self.generation, rank, self._view, members)

    @property
    def _first_sizes(self) -> list[tuple[float, int]]:
        return [(0.0, self._size)] if self._is_resized else []

    @property
    def sizes(self) -> tuple[tuple[float, int], ...]:
        """With how many ranks the group has gone on, and when, in this generation."""
        return tuple(self._sizes)

    @property
    def away(self) -> set[int]:
        """The ranks of the group without which it went on, and that have made no step since."""
        return self._away | self._joining

    @property
    def _are_done(self) -> bool:
        """Whether all have finished except those that are away."""
        there = set(self._awaited) - self.away
        return bool(there and self.away) and self._unfinished.isdisjoint(there)

    def _fail(self, at: float, failure: TaskFailure) -> list[ev.Instruction]:
        if self.phase is Phase.EVALUATING:
            words = f"{failure.task}, after training had succeeded: {failure.summary}"
            return [ev.Say(words), *self._close(at, None)]
        # What others report of a group that didn't get over a failure is a consequence of it.
        self.failures += self._unhealed.values()
        self._unhealed, self._coming = {}, set()
        self._away, self._ready_to_join, self._joining = set(), set(), set()
        self.failures.append(failure)
        if self.phase is Phase.CLEARING:
            return self._advance(at)
        if self.phase is not Phase.COLLECTING:
            self._enter(Phase.COLLECTING, at)
        return self._collect(at)

    def _collect(self, at: float) -> list[ev.Instruction]:
        """Wait for the root cause, then decide."""
        known = {failure.task for failure in self.failures}
        everyone = all(
            str(task) in known or member.succeeded or member.lost
            for task, member in zip(self.tasks, self._members, strict=True)
        )
        causes = [failure for failure in self.failures if not failure.consequence]
        until = self._since + COLLECT_SECONDS if causes else self._deadline
        is_clear = bool(causes) and (everyone or self._needs_no_more(causes))
        if at < until and not is_clear:
            return self._notice_silent(at)
        self.failures = choose_cause(self.failures)
        self._note_attempt(at, self.failures[0])
        if not self.policy.restart(self._causes()):
            return self._close(at, to_error(tuple(self.failures)))
        self._enter(Phase.CLEARING, at)
        return [ev.Send(commands.Clear(self.generation, restart=True)), *self._advance(at)]

    def _needs_no_more(self, causes: Sequence[TaskFailure]) -> bool:
        """Return whether a restart follows, whatever else is reported.

        A peer's failure never ends a process by SIGKILL: that is out of memory, or a person.
        """
        killed = any(failure.signal == "SIGKILL" for failure in causes)
        first = choose_cause(causes)[0]
        return killed and self.policy.restart([*self._causes(), first])

    def _causes(self) -> list[TaskFailure]:
        """Return the failures that ended the generations so far."""
        return [attempt.failure for attempt in self.attempts if attempt.failure is not None]

    def _notice_silent(self, at: float) -> list[ev.Instruction]:
        rank = self._lost_agents.next_lost(at)
        if rank is None:
            return []
        return self._agent_lost(at, rank, self._lost_agents.reason, died=False)

    def _check_deadlines(self, at: float) -> list[ev.Instruction]:
        if self._run_deadline is not None and at > self._run_deadline and not self._ending:
            return self._run_timed_out(at)
        match self.phase:
            case Phase.GATHERING | Phase.STARTING if at > self._deadline:
                return self._start_timed_out(at)
            case Phase.GATHERING | Phase.STARTING:
                return self._notice_silent(at)
            case Phase.TRAINING:
                return self._notice_silent(at) or self._check_up(at) or self._check_steps(at)
            case Phase.EVALUATING:
                return self._check_evaluation(at)
            case Phase.CLEARING if at > self._deadline:
                for member in self._members:
                    member.lost = member.lost or not member.cleared
                return self._advance(at)
            case Phase.CLEARING:
                self._lost_agents.give_up_on_silent(at)
                return self._advance(at)
            case Phase.RELAUNCHING if at > self._deadline:
                words = f"its agent didn't end within {self.deadlines.shutdown:g} seconds"
                none = [self._failure(self._chief, "lost", words)]
                return self._close(at, to_error(tuple(self._last_failures() or none)))
            case Phase.CLOSING:
                return self._check_closing(at)
        return []

    def _check_closing(self, at: float) -> list[ev.Instruction]:
        if not self._launch_alive:
            return self._leave(at)
        if at <= self._deadline:
            return []
        if self._cancelled:
            return self._finish(at)
        self._cancelled = True
        self._put_off_deadline(at)
        return [ev.CancelLaunch(self.launch)]

    def _check_evaluation(self, at: float) -> list[ev.Instruction]:
        if at <= self._deadline:
            return self._notice_silent(at)
        limit = self.deadlines.shutdown
        words = f"the evaluator did not finish within {limit:g} seconds (Deadlines.shutdown)"
        return [ev.Say(words), *self._close(at, None)]

    def _check_up(self, at: float) -> list[ev.Instruction]:
        """Check whether the processes that replace dead ones have started."""
        for rank in self._replacements.due(at):
            limit = self.start_timeout
            self._members[rank].up_by = None
            if rank in self._coming and rank in self._away:
                continue  # it may come later
            if rank in self._coming:
                return self._fail(at, self._loss(at, rank, "no agent came in its place"))
            text = f"was restarted and did not come up within {limit:g} seconds"
            return self._fail(at, self._failure(rank, "start", f"{text} (start_timeout)"))
        return []

    def _check_steps(self, at: float) -> list[ev.Instruction]:
        found = self._steps.check(at)
        if found is None:
            return []
        if isinstance(found, Ask):
            return [ev.Send(commands.Inspect(self.generation))]
        failure = self._failure(found.rank, "steps", found.summary)
        stacks = {str(self.tasks[rank]): stack for rank, stack in found.stacks.items()}
        return self._fail(at, replace(failure, traceback=found.stacks[found.rank], stacks=stacks))

    def _run_timed_out(self, at: float) -> list[ev.Instruction]:
        words = f"the job did not finish within {self.deadlines.run:g} seconds (Deadlines.run)"
        if self.phase is Phase.EVALUATING:
            return [ev.Say(f"{words}, but its training has succeeded"), *self._close(at, None)]
        if not self.attempts or self.attempts[-1].generation != self.generation:
            self._note_attempt(at, None)
        return self._close(at, RunTimeout(words))

    def _start_timed_out(self, at: float) -> list[ev.Instruction]:
        limit = self.start_timeout
        if self.phase is Phase.GATHERING:
            missing = [r for r, member in enumerate(self._members) if not member.agent]
            came = len(self._members) - len(missing)
            if self._is_elastic and came >= self._least:
                within = f"within {limit:g} seconds (start_timeout)"
                words = f"{came} of {len(self._members)} workers have come {within}"
                return self._resize(at, came, f"{words}: the job goes on with these")
            text = f"did not register within {limit:g} seconds (start_timeout)"
        else:
            missing = [r for r, member in enumerate(self._members) if not member.ready]
            missing.sort(key=self._steps.is_absent)  # who only waits for others isn't the cause
            text = f"did not come up within {limit:g} seconds (start_timeout)"
        failures = [self._failure(rank, "start", text) for rank in missing]
        self.failures.extend(failures)
        self._note_attempt(at, failures[0])
        return self._close(at, to_error(tuple(failures)))

    # The end -----------------------------------------------------------------------------------

    def _interrupt(self, at: float) -> list[ev.Instruction]:
        self._interrupted = True
        if self.phase is Phase.CLOSING:
            self._cancelled = True
            return [ev.CancelLaunch(self.launch)]
        if not self.attempts or self.attempts[-1].generation != self.generation:
            self._note_attempt(at, None)
        return self._close(at, None)

    def _close(self, at: float, error: GridflowError | None) -> list[ev.Instruction]:
        self._enter(Phase.CLOSING, at)
        self._error = error
        close = ev.Send(commands.Close())
        if not self._launch_alive:
            return [close, *self._leave(at)]
        whole = all(member.agent and not member.lost for member in self._members)
        if not whole:  # some can't be told, or may still arrive: end them from outside
            self._cancelled = True
            return [close, ev.CancelLaunch(self.launch)]
        return [close]

    def _leave(self, at: float) -> list[ev.Instruction]:
        """Finish once no agent that may still have a training process is left."""
        waits = self._outlived and at <= self._deadline
        if waits and any(self._may_live(member, at) for member in self._members):
            return []
        return self._finish(at)

    def _may_live(self, member: Member, at: float) -> bool:
        patience = DIED_SECONDS if member.died else GONE_SECONDS
        return bool(member.agent) and not member.gone and at - member.last_heard <= patience

    def _finish(self, at: float) -> list[ev.Instruction]:
        self._enter(Phase.CLOSED, at)
        return [ev.Finish(self._error, self._interrupted)]

    @property
    def _ending(self) -> bool:
        return self.phase in {Phase.RELAUNCHING, Phase.CLOSING, Phase.CLOSED}

    def _last_failures(self) -> list[TaskFailure]:
        return [a.failure for a in self.attempts[-1:] if a.failure is not None]

    def _note_attempt(self, at: float, failure: TaskFailure | None) -> None:
        lasted = at - self._generation_began
        replaced = tuple(each for each in self.replaced if each.generation == self.generation)
        sizes, self._sizes = tuple(self._sizes), self._first_sizes
        self.attempts.append(Attempt(self.generation, lasted, failure, None, replaced, sizes))

    def _loss(self, at: float, rank: int, detail: str) -> TaskFailure:
        """Return the failure for a lost agent, whether or not its loss was announced."""
        detail += self._lost_agents.excuse(at, self._standstill)
        leaving = self._members[rank].leaving
        if leaving:
            failure = self._failure(rank, PREEMPTED, f"{leaving}. Now {detail}")
            return replace(
                failure, hint="Restarts(max_preemptions=) limits how often the group moves."
            )
        return self._failure(rank, "lost", detail)

    def _failure(self, rank: int, kind: FailureKind, summary: str) -> TaskFailure:
        host = self._members[rank].host
        return TaskFailure(str(self.tasks[rank]), host, kind, summary, self.generation)


def _are_alike(one: TaskFailure, other: TaskFailure) -> bool:
    """Return whether a task has failed in the same way twice."""
    ways = [(each.task, each.kind, each.exit_code, each.signal) for each in (one, other)]
    return ways[0] == ways[1]
