"""The job's loop in the driver: feeds events to the state machine and executes its instructions."""

from __future__ import annotations

import contextlib
import math
import queue
import threading
import time
import warnings
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from gridflow._agent.environment import describe
from gridflow._coordinator import bottleneck, record
from gridflow._coordinator import events as ev
from gridflow._coordinator.console import Console
from gridflow._coordinator.event_files import EventFiles
from gridflow._coordinator.folders import ELSEWHERE
from gridflow._coordinator.journal import Journal
from gridflow._coordinator.observing import JobEnd, Observed
from gridflow._coordinator.phases import Phase
from gridflow._coordinator.progress import JobReport, last_history
from gridflow._coordinator.record import AWAY, Ending, Outcome
from gridflow._coordinator.rpc_handler import RpcHandler
from gridflow._coordinator.stimuli import RecordedMachine
from gridflow._features.checkpoints.remote import store_of
from gridflow._features.streams.control import StreamControl
from gridflow._files.local import write_whole, writing_to
from gridflow._spec import backends, profiles, strategies
from gridflow._spec.cluster import TRAINING_ROLES
from gridflow._spec.option_groups import DataServiceUse
from gridflow._wire import commands
from gridflow._wire.clock import Clock
from gridflow._wire.identity import Identity, make_identities
from gridflow._wire.payload import AgentPayload
from gridflow._wire.server import CoordinatorServer, listen
from gridflow.errors import ClientUnreachable, InvalidArgument, JobCancelled, StartTimeout

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gridflow._coordinator.bottleneck import Bottleneck
    from gridflow._coordinator.job import PreparedJob
    from gridflow._coordinator.observing import Observer
    from gridflow._coordinator.progress import TaskProgress
    from gridflow._features.checkpoints.store import CommittedCheckpoint
    from gridflow._launch.base import Launch, Launcher
    from gridflow._spec.cluster import Task
    from gridflow._spec.place import Place
    from gridflow._wire.failures import Attempt
    from gridflow.errors import GridflowError

_TICK_SECONDS: Final = 0.1
#: A loop that has checked nothing for so long stood still.
_STANDSTILL_SECONDS: Final = 1.0
#: The result's header of a task that ran no function (a worker of parameter servers).
_NO_VALUE: Final[dict[str, Any]] = {"kind": "none", "files": []}
#: That of a rank without which the others have finished.
_AWAY: Final[dict[str, Any]] = {"kind": AWAY, "files": []}
#: After this time, the user is told what keeps agents from starting.
_OBSTACLE_SECONDS: Final = 5.0
#: What held a shorter training back is of no interest.
_WORTH_SAYING_SECONDS: Final = 30.0


class JobRun:
    """Run one job to its end."""

    is_recorded = False

    def __init__(self, job: PreparedJob, launcher: Launcher) -> None:
        self.job, self._launcher = job, launcher
        spec, training = job.spec, job.spec.training
        self.spec = spec
        with writing_to(f"the job's folder {job.job_dir}", ELSEWHERE):
            self._console = Console(
                spec.tasks, job.job_dir / "logs", logs=job.logs, progress=job.show_progress
            )
        try:
            self._checkpoints = store_of(
                job.checkpoint_dir,
                job.checkpoint_mirror,
                job.size or spec.num_workers,
                job.id,
                self._console.say,
            )
        except BaseException:
            self._console.close()
            raise
        self._checkpoints.keeps_epochs = spec.least is not None
        # Half of the time that agents may be silent counts as a standstill of the driver.
        self._clock = Clock(min(_STANDSTILL_SECONDS, spec.deadlines.heartbeat / 2))
        self._journal = Journal(job.job_dir)
        self._observed = Observed(self._observers(), self._console.say, self._console.drawn)
        self._desk = RpcHandler(
            spec.parts,
            job.job_dir,
            self._checkpoints,
            self._console,
            self._journal,
            self._observed,
            job.left_out,
            self._clock,
            replaces=spec.max_replacements > 0,
        )
        #: For those who push rows.
        self.streams = StreamControl(self._desk, self._checkpoints)
        self._recorded = RecordedMachine(
            self._journal,
            spec.parts,
            training.strategy,
            spec.deadlines,
            job.restart,
            needs=backends.needed(training.backend, training.strategy),
            environment=describe(),
            start_timeout=spec.start_timeout,
            max_replacements=spec.max_replacements,
            least=spec.least,
            size=job.size,
            replaces_agents=getattr(launcher, "replaces_agents", False),  # others' may not say
        )
        self._machine = self._recorded.machine
        self._latest: CommittedCheckpoint | None = None
        self._resumed: dict[int, Place] = {}
        #: How many tasks the last generation had that was started.
        self._trained_by: int | None = None
        self._finish: ev.Finish | None = None
        self._obstacle = ""
        self._were_away: set[int] = set()
        self._look_at = 0.0
        self._launches: dict[int, Launch] = {}
        self._moved = threading.Condition()
        self._been: list[str] = [Phase.GATHERING.value]

    def run(self) -> Outcome:
        """Block until the job and everything that it started has ended; record how it ended.

        Raises `GridflowError`: What the job failed with.
        Raises `JobCancelled`: After `cancel`, and an orderly shutdown.
        """
        began = time.time()
        self._observed.tell("begin", self.job.start())
        try:
            try:
                # Left by a failed run with the same id.
                (self.job.job_dir / record.RESULT).unlink(missing_ok=True)
                outcome = self._run()
            except BaseException as error:
                self._note_end(began, error)
                if not isinstance(error, ClientUnreachable):  # then it goes on beside rank 0
                    self._observed.tell("end", self._job_end(began, error))
                raise
            self._settle(began, outcome)
            self._observed.tell("end", self._job_end(began, None, self.job.result(outcome)))
            return replace(outcome, warnings=self._console.warnings)
        finally:
            self.close()

    def close(self) -> None:
        """Release the checkpoints' folder; then close logs and output. Warn of what went wrong."""
        self._clean_up("can't release checkpoint_dir=", self._checkpoints.close)
        self._clean_up("can't wait for observers", self._observed.close)
        self._clean_up("can't close the journal", self._journal.close)
        self._clean_up("can't close the logs", self._console.close)
        for words in self._console.warnings:
            with contextlib.suppress(Warning):  # if the user turns warnings into errors
                warnings.warn(f"job {self.job.id}: {words}", RuntimeWarning, stacklevel=2)

    def _observers(self) -> tuple[Observer, ...]:
        place, say = self.job.tensorboard_mirror, self._console.say
        if place is None:
            return self.job.observers
        limit = self.spec.deadlines.shutdown
        return (
            *self.job.observers,
            EventFiles(self.job.job_dir / "tensorboard", place, say, limit),
        )

    def _job_end(self, began: float, error: BaseException | None, result: Any = None) -> JobEnd:
        state = record.state_of(error)
        report = replace(self.report(), state=state)
        return JobEnd(state, error, time.time() - began, report, result)

    def _settle(self, began: float, outcome: Outcome) -> None:
        """Finish after success; the result counts, even if some of this fails.

        The checkpoints are deleted last, so that a killed driver finds them or the result. Those
        of a training that ended with NaN stay: they have the last weights that are of use.
        """
        is_known = not outcome.in_memory
        if is_known and self.job.run_id is not None:
            is_known = self._clean_up(
                "can't keep the result for another start with this run_id",
                lambda: record.write_outcome(self.job.job_dir, outcome),
            )
        # With result.json alone, such a start would neither train nor have a result.
        if is_known or self.job.run_id is None:
            is_known = self._note_end(began, None)
        if outcome.not_finite is not None:
            place = self.job.checkpoint_mirror
            folder = place.complete(place.path) if place is not None else self._checkpoints.folder
            self._console.say(
                f"training ended with {outcome.not_finite}. The last checkpoints with finite "
                f"values, if there are any, stay in {folder}"
            )
        elif is_known or self.job.run_id is None:
            self._clean_up(
                "the job has succeeded, but can't delete its checkpoints",
                self._checkpoints.clear,
            )

    def _note_end(self, began: float, error: BaseException | None) -> bool:
        """Write ``result.json``; return whether that was possible."""
        job, desk = self.job, self._desk
        ending = Ending(
            began,
            time.time(),
            error,
            self._attempts(),
            desk.notes.history,
            desk.notes.last_step,
            self._not_finite(),
            self._console.warnings,
        )
        return self._clean_up(
            f"can't write {record.RESULT}",
            lambda: record.write(job.job_dir, record.RESULT, record.describe(job, ending)),
        )

    def _clean_up(self, problem: str, step: Callable[[], object]) -> bool:
        """Do a step of the job's end. A failure is reported, but doesn't fail the job."""
        try:
            step()
        except Exception as error:  # noqa: BLE001 (stores and launchers raise errors of all kinds)
            self._console.warn(problem, f"{problem}: {error}")
            return False
        return True

    def _run(self) -> Outcome:
        job = self.job
        if job.notice:
            self._console.say(job.notice)
        function, modules = job.job_dir / "function", job.job_dir / "modules"
        try:
            self._latest = self._latest_checkpoint()  # raises before anything is launched
            ours, agents = make_identities()
            self.streams.identity = agents
            with writing_to(f"the job's folder {job.job_dir}", ELSEWHERE):
                write_whole(function, job.program)
                write_whole(modules, job.modules)
            server = listen(job.network, ours, self._desk)
            try:
                self._loop(self._payload(agents, server.port))
            finally:
                stop = partial(_shut_down, server, job.spec.deadlines.shutdown)
                self._clean_up("can't stop the coordinator", stop)
        finally:
            for launch in self._launches.values():
                self._clean_up("can't close a launch", launch.close)
            self._clean_up("can't close the launcher", self._launcher.close)
            for path in (function, modules):
                self._clean_up("can't delete a file", partial(path.unlink, missing_ok=True))
        return self._outcome()

    # From other threads --------------------------------------------------------------------------

    def cancel(self) -> None:
        """End the job in order; the second call doesn't wait for its agents."""
        self._console.say("cancelled: ending all tasks")
        self._desk.events.put(ev.Interrupted(self._clock.now()))

    @property
    def state(self) -> str:
        """Where the job stands (`gridflow._coordinator.phases.Phase`)."""
        return self._been[-1]

    def report(self) -> JobReport:
        """Return the job's progress."""
        known, history = self._progress(), dict(self._desk.notes.history)
        return JobReport(
            state=self.state,
            generation=self._machine.generation,
            tasks=known,
            epochs=len(history),
            history=last_history(history),
            failures=tuple(a.failure for a in tuple(self._machine.attempts) if a.failure),
            replaced=tuple(self._machine.replaced),
            away=tuple(str(self.job.spec.tasks[rank]) for rank in sorted(self._machine.away)),
            sizes=self._machine.sizes,
            tensorboard_url=self._desk.notes.tensorboard_url,
            data_service=self._data_service_uses(),
            bottleneck="" if (found := self._bottleneck()) is None else found.sentence,
        )

    def _progress(self) -> dict[str, TaskProgress]:
        known = dict(self._desk.notes.progress)
        return {str(self.job.spec.tasks[rank]): known[rank] for rank in sorted(known)}

    def _bottleneck(self) -> Bottleneck | None:
        return bottleneck.find({task: each.seconds for task, each in self._progress().items()})

    def _data_service_uses(self) -> dict[str, DataServiceUse]:
        found: dict[str, list[DataServiceUse]] = {}
        for (rank, _), told in sorted(dict(self._desk.notes.data_served).items()):
            use = DataServiceUse(told.waited, told.elapsed, told.elements)
            found.setdefault(str(self.job.spec.tasks[rank]), []).append(use)
        return {task: DataServiceUse.total(uses) for task, uses in found.items()}

    def stacks(self, timeout: float, give_up: Callable[[], bool]) -> dict[str, str | None]:
        """Ask all processes for their stacks; None for one that doesn't answer in time."""
        tasks, answers = self._machine.tasks, self._desk.notes.stacks
        answers.clear()
        self._desk.send(commands.Inspect(self._machine.generation))
        end = time.monotonic() + timeout
        while len(answers) < len(tasks) and time.monotonic() < end and not give_up():
            time.sleep(_TICK_SECONDS)
        known = dict(answers)
        return {
            str(task): known[rank].describe() if rank in known else None
            for rank, task in enumerate(tasks)
        }

    def profile(self, first: int, last: int) -> Path:
        """Ask all processes to profile steps; return where that will lie.

        Raises `InvalidArgument`: This job has no such steps, or its backend no such profiler.
        """
        training = self.job.spec.training
        facts = strategies.of(training.strategy)
        if backends.of(training.backend).profiler is None or facts.has_servers:
            raise InvalidArgument(
                "steps of fit are profiled with TensorFlow's or JAX's profiler; this job has "
                f"strategy={training.strategy!r} and backend={training.backend!r}. Call a profiler "
                "in the function."
            )
        self._desk.send(commands.Inspect(self._machine.generation, (first, last)))
        return self.job.job_dir / "tensorboard" / profiles.folder_of(first, last)

    @property
    def log_paths(self) -> dict[Task, Path]:
        """The file of each task's output."""
        return self._console.paths

    def has_been(self, state: str, timeout: float | None, give_up: Callable[[], bool]) -> bool:
        """Wait until the job has reached a state, `give_up` returns True, or time is up."""
        end = None if timeout is None else time.monotonic() + timeout
        with self._moved:
            # In slices: an unlimited wait would block Ctrl-C in the main thread.
            while not (state in self._been or give_up()):
                left = _TICK_SECONDS if end is None else min(end - time.monotonic(), _TICK_SECONDS)
                if left <= 0:
                    break
                self._moved.wait(left)
            return state in self._been

    def wake(self) -> None:
        """Wake those who wait in `has_been`."""
        with self._moved:
            self._moved.notify_all()

    def _note_move(self) -> None:
        phase = self._machine.phase.value
        if phase != self._been[-1]:
            with self._moved:
                self._been.append(phase)
                self._moved.notify_all()
            self._observed.tell("state", phase)
        if self._machine.phase is not Phase.TRAINING:
            self._were_away = set()
            return
        before, self._were_away = self._were_away, self._machine.away
        for state, ranks in (
            ("away", self._were_away - before),
            ("back", before - self._were_away),
        ):
            for rank in sorted(ranks):
                self._desk.tell_of(rank, state)

    # The listener of launches, called from their threads -----------------------------------------

    def agent_lost(self, launch: int, rank: int, detail: str) -> None:
        """Pass it on as an event."""
        self._desk.events.put(ev.AgentLost(self._clock.now(), launch, rank, detail))

    def executor_lost(self, launch: int, executor: str) -> None:
        """Pass it on as events."""
        self._desk.executor_lost(launch, executor)

    def agent_leaving(self, launch: int, rank: int, detail: str) -> None:
        """Pass it on as an event."""
        self._desk.events.put(ev.AgentLeaving(self._clock.now(), launch, rank, detail))

    def slots_came(self, launch: int, slots: int) -> None:
        """Pass it on as an event."""
        self._desk.events.put(ev.SlotsCame(self._clock.now(), launch, slots))

    def could_use(self, launch: int) -> int:
        """Return how many more tasks a launch could have."""
        machine = self._machine
        could = self.spec.least is not None and machine.phase is Phase.TRAINING
        is_its = could and launch == machine.launch
        return len(self.spec.tasks) - len(machine.tasks) if is_its else 0

    def has_agents(self, launch: int) -> bool:
        """Return whether any agent of a launch has registered."""
        return self._desk.has_agents(launch)

    def executors(self, launch: int) -> dict[int, str]:
        """Return the executors of its agents by rank, if known."""
        return self._desk.executors(launch)

    def launch_ended(
        self, launch: int, error: GridflowError | None, *, outlived: bool = False
    ) -> None:
        """Pass it on as an event."""
        self._desk.events.put(ev.LaunchEnded(self._clock.now(), launch, error, outlived))

    # ---------------------------------------------------------------------------------------------

    def _loop(self, payload: AgentPayload) -> None:
        last_tick = self._clock.now()
        self._clock.take_standstill()  # pauses before the job don't count
        todo = self._recorded.begin(last_tick)
        while self._finish is None:
            for instruction in todo:
                self._carry_out(instruction, payload)
            event = self._next_event()
            self._note_standstill(event.at)
            todo = self._recorded.handle(event)
            if not isinstance(event, ev.Tick) and event.at - last_tick > _TICK_SECONDS:
                # However busy the agents are, deadlines are checked: as of this event, since
                # later ones are still to be handled.
                last_tick = event.at
                todo = todo + self._recorded.handle(ev.Tick(last_tick))
            if isinstance(event, ev.Tick):
                self._look_for_obstacles(event.at)
            if (lost := self._checkpoints.lost) is not None:
                todo = todo + self._recorded.handle(ev.DriverFailed(event.at, lost))
            self._note_move()

    def _note_standstill(self, at: float) -> None:
        """Report that the driver stood still, if its agents could seem lost because of it."""
        seconds = self._clock.take_standstill()
        if not seconds:
            return
        self._recorded.handle(ev.DriverStoodStill(at, seconds))
        limit = self.job.spec.deadlines.heartbeat
        # Before any heartbeat is due, the loop may have waited for the launch itself.
        if seconds >= limit and self._machine.phase is not Phase.GATHERING:
            self._console.say(
                f"the driver stood still for {seconds:.0f} seconds: it was stopped or suspended, "
                "or C code held Python's GIL. Deadlines don't count that time."
            )

    def _look_for_obstacles(self, at: float) -> None:
        """Report once what keeps agents from starting; keep the last answer for the error."""
        if self._machine.phase is not Phase.GATHERING or at < self._look_at:
            return
        self._look_at = at + _OBSTACLE_SECONDS
        found = self._launches[self._machine.launch].obstacle()
        if found and not self._obstacle:
            self._console.say(f"waiting: {found}")
        self._obstacle = found

    def _next_event(self) -> ev.Event:
        try:
            return self._desk.events.get(timeout=_TICK_SECONDS)
        except queue.Empty:
            return ev.Tick(self._clock.now())

    def _carry_out(self, instruction: ev.Instruction, payload: AgentPayload) -> None:
        match instruction:
            case ev.BeginLaunch(launch):
                self._launches[launch] = self._begin(launch, payload)
            case ev.CancelLaunch(launch):
                self._launches[launch].cancel()
            case ev.ReplaceExecutor(launch, rank):
                executor = self._desk.executors(launch).get(rank)
                if executor is not None:
                    self._launcher.replace_executor(executor)
            case ev.ReplaceAgent(launch, rank):
                why = self._desk.why_not_again(rank)
                if not why and not self._launches[launch].replace(rank):
                    why = "Its launch has ended"
                self._refuse_to_replace(rank, why)
            case ev.StartRank():
                self._start_again(instruction)
            case ev.StartGeneration():
                self._start(instruction)
            case ev.Send(command, ranks):
                self._desk.send(command, ranks)
            case ev.Say(text):
                self._console.say(text)
            case ev.Finish():
                for task, use in self._data_service_uses().items():
                    self._console.say(f"{task} {use}")
                found = self._bottleneck()
                if found is not None and found.seconds >= _WORTH_SAYING_SECONDS:
                    self._console.say(f"where the time went: {found.sentence}")
                self._finish = instruction

    def _begin(self, launch: int, payload: AgentPayload) -> Launch:
        size = len(self._machine.tasks)
        self._desk.new_launch(launch, self._machine.generation, size)
        self._obstacle, self._look_at = "", self._clock.now() + _OBSTACLE_SECONDS
        spec = payload.spec if size == len(payload.spec.tasks) else payload.spec.with_workers(size)
        now = replace(payload, launch=launch, generation=self._machine.generation, spec=spec)
        return self._launcher.launch(now, self.job.data, self)

    def _start(self, begun: ev.StartGeneration) -> None:
        self._checkpoints.begin(begun.generation)  # none comes after the look at the newest
        if begun.generation > 0:  # until then none was made, and the first look read all of it
            # Within an epoch, another number of workers would skip rows, and repeat others.
            is_other = self._trained_by not in {None, len(begun.addresses)}
            self._latest = self._latest_checkpoint(between_epochs=is_other)
        latest = self._latest
        if latest is not None:
            self._resumed[begun.generation] = latest.place
        if begun.generation > 0 or latest:
            where = latest.place if latest else "the beginning"
            ended = [each.failure for each in self._machine.attempts[-1:] if each.failure]
            why = f"{ended[0].task}: {ended[0].summary}. " if ended else ""
            if ended:
                self._observed.tell("restart", ended[0])
            self._console.say(f"{why}Generation {begun.generation} starts from {where}")
        if latest:
            self._compare_workers(len(begun.addresses))
        self._trained_by = self._checkpoints.num_workers = len(begun.addresses)
        resume = latest.name if latest else None
        place = latest.place if latest else None
        self._desk.start(commands.Start(begun.generation, begun.addresses, resume, place))

    def _start_again(self, begun: ev.StartRank) -> None:
        """Let a new agent go on where the others of its group are."""
        why = self._desk.why_not_again(begun.rank)
        self._refuse_to_replace(begun.rank, why)
        if why:
            return
        # Its process has the state of the others; the function sees that it goes on.
        latest = None if self._latest is None else self._latest_checkpoint()
        command = commands.Start(
            begun.generation,
            begun.addresses,
            latest.name if latest else None,
            latest.place if latest else None,
            begun.view,
        )
        self._desk.start_again(begun.rank, command)

    def _refuse_to_replace(self, rank: int, why: str) -> None:
        if why:
            refused = ev.NotReplaced(self._clock.now(), self._machine.launch, rank, why)
            self._desk.events.put(refused)

    def _latest_checkpoint(self, *, between_epochs: bool = False) -> CommittedCheckpoint | None:
        latest, unreadable = self._checkpoints.latest(between_epochs=between_epochs)
        for words in unreadable:
            self._console.say(f"{words}: using the one before it")
        return latest

    def _compare_workers(self, now: int) -> None:
        """Report a checkpoint of another number of workers."""
        before = self._checkpoints.workers
        if before not in {None, now}:
            self._console.say(
                f"resuming with {now} workers from a checkpoint of {before}: steps now have "
                "different rows, so results differ from a run with the same number of workers"
            )

    def _payload(self, identity: Identity, port: int) -> AgentPayload:
        job = self.job
        return AgentPayload(
            job=job.id,
            launch=1,
            generation=0,
            spec=job.spec,
            coordinator=job.network.address(port),
            identity=identity,
            datasets=tuple(job.data),
            has_modules=bool(job.modules),
            is_watched=bool(job.observers),
        )

    def _attempts(self) -> tuple[Attempt, ...]:
        return tuple(
            replace(attempt, resumed_at=self._resumed.get(attempt.generation))
            for attempt in self._machine.attempts
        )

    def _outcome(self) -> Outcome:
        if self._finish is None:
            raise AssertionError("the loop ended without a Finish")
        error = self._finish.error
        if isinstance(error, StartTimeout) and self._obstacle:
            raise StartTimeout(f"{error}\n{self._obstacle}", error.failures)
        if error is not None:
            raise error
        if self._finish.interrupted:
            ends = {Phase.CLOSING.value, Phase.CLOSED.value}
            last = next(phase for phase in reversed(self._been) if phase not in ends)
            raise JobCancelled(f"job {self.job.id} was cancelled in state {last}.")
        return Outcome(
            results=tuple(
                self._desk.results.get(place, _AWAY if place in self._machine.away else _NO_VALUE)
                for place, task in enumerate(self._machine.tasks)
                if task.role in TRAINING_ROLES
            ),
            history=self._desk.notes.history,
            ledger=self._desk.notes.ledger,
            attempts=self._attempts(),
            log_paths=self._console.paths,
            tensorboard_url=self._desk.notes.tensorboard_url,
            evaluation=self._desk.notes.evaluation,
            not_finite=self._not_finite(),
            warnings=self._console.warnings,
            in_memory=self._desk.in_memory,
        )

    def _not_finite(self) -> str | None:
        """Return what was NaN or infinite when training ended."""
        told, history = self._desk.notes.not_finite, self._desk.notes.history
        if told is not None:
            return f"NaN or infinity in variable {told.variable!r} at {told.place}"
        fit, epoch = max(history, default=(0, 0))
        loss = history.get((fit, epoch), {}).get("loss", 0.0)
        return None if math.isfinite(loss) else f"a loss of {loss} in epoch {epoch}"


def _shut_down(server: CoordinatorServer, timeout: float) -> None:
    """Stop the server; gRPC waits for calls in progress, which a frozen peer may never end."""
    thread = threading.Thread(target=server.shutdown, name="gridflow-shutdown", daemon=True)
    thread.start()
    thread.join(timeout)
