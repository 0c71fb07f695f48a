"""What a job's state machine was told and what it answered, in the job's journal; and a replay.

The machine is pure, so this is all that a job's decisions depended on. Signs of life and ticks of
the clock without consequences are summed up: a line says when each rank was heard last, and how
many ticks there were.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gridflow import errors
from gridflow._coordinator import events as ev
from gridflow._coordinator import journal
from gridflow._coordinator.machine import JobMachine
from gridflow._spec.cluster import Task
from gridflow._spec.job import parts_of
from gridflow._spec.option_groups import Deadlines
from gridflow._spec.printable import printable
from gridflow._wire import reports
from gridflow._wire.headers import Registration, Sender

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator, Sequence

    from gridflow._coordinator.journal import Journal
    from gridflow._coordinator.policies import RestartPolicy
    from gridflow._spec.job import Part
    from gridflow._wire.failures import TaskFailure

#: What an agent says all the time; only the last of each rank counts.
_USUAL: Final = (type(None), reports.StepsDue)


class RecordedMachine:
    """A job's machine, of which everything that it is told is written down.

    `journal`: Of the job.
    `options`: As for `JobMachine`.
    """

    def __init__(
        self,
        journal: Journal,
        parts: Sequence[Part],
        strategy: str,
        deadlines: Deadlines,
        policy: RestartPolicy,
        **options: Any,
    ) -> None:
        self._decided: list[bool] = []
        self.machine = JobMachine(parts, deadlines, _Overheard(policy, self._decided), **options)
        self._journal = journal
        self._usual: dict[tuple[int, str], dict[str, Any]] = {}
        #: When the first and the last came, and how many.
        self._ticks: tuple[float, float, int] | None = None
        self._about = {
            "tasks": [str(part.task) for part in parts],
            "strategy": strategy,
            "deadlines": dataclasses.asdict(deadlines),
            "options": options,
        }

    def begin(self, at: float) -> list[ev.Instruction]:
        """Return the first instructions."""
        todo = self.machine.begin(at)
        self._journal.put(self._about)
        self._journal.put({"begin": at, "does": _texts(todo)})
        return todo

    def handle(self, event: ev.Event) -> list[ev.Instruction]:
        """Handle an event; return what to do."""
        before = self.machine.phase
        todo = self.machine.handle(event)
        is_moved = self.machine.phase is not before
        if not todo and not is_moved:
            if isinstance(event, ev.Tick):
                first, _, count = self._ticks or (event.at, event.at, 0)
                self._ticks = first, event.at, count + 1
                return todo
            if isinstance(event, ev.Heard) and isinstance(event.report, _USUAL):
                self._usual[event.sender.rank, type(event.report).__name__] = encode(event)
                return todo
        self._flush()
        line = {**encode(event), "does": _texts(todo)}
        if is_moved:
            line["phase"] = self.machine.phase.value
        if self._decided:
            line["decided"] = list(self._decided)
            self._decided.clear()
        self._journal.put(line)
        return todo

    def _flush(self) -> None:
        if self._usual or self._ticks:
            self._journal.put({"usual": list(self._usual.values()), "ticks": self._ticks})
            self._usual, self._ticks = {}, None


class _Overheard:
    """A policy whose decisions are written down."""

    def __init__(self, policy: RestartPolicy, decided: list[bool]) -> None:
        self._policy, self._decided = policy, decided

    def restart(self, causes: Sequence[TaskFailure]) -> bool:
        self._decided.append(bool(self._policy.restart(causes)))
        return self._decided[-1]


class _AsThen:
    """A policy that decides as it was written down."""

    def __init__(self) -> None:
        self.decided: deque[bool] = deque()

    def restart(self, causes: Sequence[TaskFailure]) -> bool:  # noqa: ARG002
        return self.decided.popleft() if self.decided else False


# Events as data -----------------------------------------------------------------------------------


def encode(event: ev.Event) -> dict[str, Any]:
    """Return an event as data."""
    found: dict[str, Any] = {"event": type(event).__name__}
    for field in dataclasses.fields(event):
        value = getattr(event, field.name)
        if isinstance(value, errors.GridflowError):
            about = {"type": type(value).__name__, "text": str(value)}
            value = about | {"spark_errors": list(value.spark_errors)}
        elif field.name == "report" and value is not None:
            value = reports.REPORTS.encode(value)
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            value = dataclasses.asdict(value)
        found[field.name] = value
    return found


def decode(data: dict[str, Any]) -> ev.Event:
    """Return the event of `encode`."""
    fields = {name: data[name] for name in data if name not in {"event", "does", "phase"}}
    fields.pop("decided", None)
    if fields.get("error") is not None:
        fields["error"] = _error(fields["error"])
    if fields.get("report") is not None:
        fields["report"] = reports.REPORTS.decode(fields["report"])
    for name, kind in (("agent", Registration), ("sender", Sender)):
        if isinstance(fields.get(name), dict):
            known = {each.name for each in dataclasses.fields(kind)}
            fields[name] = kind(**{key: v for key, v in fields[name].items() if key in known})
    event: ev.Event = getattr(ev, data["event"])(**fields)
    return event


def _error(data: dict[str, Any]) -> errors.GridflowError:
    kind = getattr(errors, data["type"], errors.GridflowError)
    found: errors.GridflowError = kind(data["text"])
    found.spark_errors = tuple(data.get("spark_errors", ()))
    return found


def _texts(todo: Iterable[ev.Instruction]) -> list[str]:
    return [_text(each) for each in todo]


def _text(instruction: ev.Instruction) -> str:
    match instruction:
        case ev.Send(command, ranks):
            whom = "all" if ranks is None else "ranks " + ", ".join(map(str, ranks))
            return f"send {command.kind} to {whom}"
        case ev.Say(text):
            return f"say: {text}"
        case ev.StartGeneration(generation, _):
            return f"start generation {generation}"
        case ev.BeginLaunch(launch):
            return f"begin launch {launch}"
        case ev.CancelLaunch(launch):
            return f"cancel launch {launch}"
        case ev.ReplaceExecutor(_, rank):
            return f"replace the executor of rank {rank}"
        case ev.ReplaceAgent(_, rank):
            return f"replace the agent of rank {rank}"
        case ev.StartRank(_, rank):
            return f"start rank {rank}"
        case ev.Finish(error, interrupted):
            why = "interrupted" if interrupted else "success"
            return f"finish: {why if error is None else type(error).__name__}"
        case _:
            return type(instruction).__name__


# The replay ---------------------------------------------------------------------------------------


def replay(folder: Path) -> Iterator[str]:
    """Run the log of a job's folder through the machine of this version; yield it as a story.

    Where the machine answers otherwise than then, the story says so.

    Raises `InvalidArgument`: There is no such log, or it can't be read.
    """
    first, *rest = journal.read(folder)
    try:
        tasks = [Task.parse(name) for name in first["tasks"]]
        policy = _AsThen()
        machine = JobMachine(
            parts_of(tasks, first["strategy"]),
            Deadlines(**first["deadlines"]),
            policy,
            **first["options"],
        )
    except (ValueError, KeyError, TypeError) as error:
        raise errors.InvalidArgument(
            f"the journal in {str(folder)!r} wasn't written by this version: {error!r}"
        ) from error
    yield f"{len(tasks)} tasks ({', '.join(map(str, tasks))}), strategy {first['strategy']}"
    began = 0.0
    for line in rest:
        if "missing" in line:
            yield f"{line['missing']} events are missing here: the disk was too slow"
            continue
        if "usual" in line:
            _repeat(machine, line)
        if not {"begin", "event"} & line.keys():
            continue
        policy.decided.extend(line.get("decided", ()))
        if "begin" in line:
            began, todo, what = line["begin"], machine.begin(line["begin"]), "the job begins"
        else:
            event = decode(line)
            todo, what = machine.handle(event), story(event, tasks)
        phase = f" → {line['phase']}" if "phase" in line else ""
        yield f"{line.get('at', began) - began:8.1f} s  {printable(what)}{phase}"
        answers = _texts(todo)
        for answer in line["does"]:
            yield f"{'':11} {printable(answer)}"
        if answers != line["does"]:
            yield f"{'':11} (this version of gridflow would: {'; '.join(answers) or 'do nothing'})"


def _repeat(machine: JobMachine, line: dict[str, Any]) -> None:
    for each in sorted(line["usual"], key=lambda each: each["at"]):
        machine.handle(decode(each))
    if line["ticks"]:
        first, last, count = line["ticks"]
        step = (last - first) / max(1, count - 1)
        for number in range(count):
            machine.handle(ev.Tick(first + number * step))


_PLAIN: Final = {
    ev.Interrupted: "the job is cancelled",
    ev.WantsToJoin: "{task} wants to take part again",
}


def story(event: ev.Event, tasks: Sequence[Task]) -> str:
    """Return what happened, in words."""
    task = _task_of(event, tasks)
    match event:
        case ev.Registered(_, agent):
            words = f"{task} registers, on {agent.host}"
        case ev.Heard(_, _, reports.Failed(failure)):
            follows = " (a consequence)" if failure.consequence else ""
            words = f"{task} fails, {failure.kind}: {failure.summary}{follows}"
        case ev.Heard(_, _, report):
            said = "is heard" if report is None else f"says {report.kind}"
            words = f"{task} {said}"
        case ev.AgentLost(_, launch, _, detail):
            words = f"{task} is lost in launch {launch}: {detail}"
        case ev.AgentLeaving(_, launch, _, detail):
            words = f"{task} will be lost in launch {launch}: {detail}"
        case ev.TaskWaits(_, _, _, function):
            where = f"waits in {function}" if function else "waits no longer"
            words = f"{task} {where}"
        case ev.LaunchEnded(_, launch, error):
            words = f"launch {launch} has ended" + ("" if error is None else f": {error}")
        case ev.DriverStoodStill(_, seconds):
            words = f"the driver has stood still for {seconds:.1f} s"
        case ev.RowsUnfit(_, reason):
            words = f"rows can't be fed: {reason}"
        case ev.NotReplaced(_, _, _, reason):
            words = f"{task} isn't replaced: {reason}"
        case ev.DriverFailed(_, error):
            words = f"the driver fails: {error}"
        case ev.SlotsCame(_, launch, slots):
            words = f"there are {slots} slots for launch {launch}"
        case _:
            words = _PLAIN.get(type(event), "time passes").format(task=task)
    return words


def _task_of(event: ev.Event, tasks: Sequence[Task]) -> str:
    """Return the task that an event is about; empty if it is about none."""
    about = getattr(event, "sender", getattr(event, "agent", event))
    rank = getattr(about, "rank", None)
    return "" if rank is None else str(tasks[rank])


def command(arguments: argparse.Namespace) -> int:
    """Print the story of a job (``gridflow replay``)."""
    for line in replay(Path(arguments.folder)):
        print(line)  # noqa: T201
    return 0
