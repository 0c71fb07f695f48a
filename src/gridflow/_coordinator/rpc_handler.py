"""Where the agents' messages arrive and their commands wait.

The server's threads call it, and the job's loop takes events from it. What concerns the state of a
job becomes an event for the state machine. All else goes to whom it concerns: files (`JobFiles`),
the job's record (`JobNotes`), and the features (`gridflow._features`), whose acts it carries out.
"""

from __future__ import annotations

import queue
import threading
import traceback
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from gridflow._coordinator import events as ev
from gridflow._coordinator.deadlines import RETURNED
from gridflow._coordinator.job_files import JobFiles
from gridflow._coordinator.meetings import Meetings
from gridflow._coordinator.notes import JobNotes
from gridflow._features.acts import Count, Differ, Forget, SendAll, SendTo, Unfit
from gridflow._features.rows.driver import LaunchRows
from gridflow._features.streams.driver import LaunchStreams
from gridflow._files.local import refusal
from gridflow._spec.cluster import EVALUATOR, TRAINING_ROLES
from gridflow._wire import commands, headers, reports
from gridflow._wire.clock import Clock
from gridflow._wire.headers import AN_AGENT
from gridflow._wire.messages import parse
from gridflow.errors import GridflowError, WireError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from gridflow._coordinator.console import Console
    from gridflow._coordinator.journal import Journal
    from gridflow._coordinator.meetings import Answer
    from gridflow._coordinator.observing import Observed
    from gridflow._features.acts import Act
    from gridflow._features.checkpoints.store import CheckpointStore
    from gridflow._spec.job import Part
    from gridflow._wire.commands import Command
    from gridflow._wire.headers import Sender
    from gridflow._wire.messages import Report
    from gridflow._wire.transfer import Spared


_JOINED: Final = "has joined its TensorFlow server"


@dataclass
class _Mailbox:
    """The messages to and from one rank's agent in the current launch."""

    agent: str = ""
    executor: str = ""
    host: str = ""
    heard: int = 0
    commands: list[dict[str, Any]] = field(default_factory=list)
    sent: int = 0


class RpcHandler:
    """The handler of the coordinator's server.

    `parts`: What each task does, by rank.
    `job_dir`: The driver's folder of logs, results, TensorBoard files and the function.
    `left_out` (mapping of dataset to mapping of column to reason): Columns that the launcher knows
        not to be fed.
    `clock`: The clock of the events' times.
    `replaces`: Whether ranks of a group may be replaced while the others go on.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        job_dir: Path,
        checkpoints: CheckpointStore,
        console: Console,
        journal: Journal,
        observed: Observed,
        left_out: Mapping[str, Mapping[str, str]] | None = None,
        clock: Clock | None = None,
        *,
        replaces: bool = False,
    ) -> None:
        self._clock = clock or Clock()
        self.events: queue.SimpleQueue[ev.Event] = queue.SimpleQueue()
        self.results: dict[int, dict[str, Any]] = {}
        self.job_dir = job_dir
        self._tasks = tuple(part.task for part in parts)
        self._evaluators = tuple(
            place for place, part in enumerate(parts) if part.task.role == EVALUATOR
        )
        self._fed = tuple(place for place, part in enumerate(parts) if part.is_fed)
        self._pushed = tuple(place for place, part in enumerate(parts) if part.is_pushed)
        self._checkpoints = checkpoints
        self._console, self._observed = console, observed
        self.notes = JobNotes(self._tasks, console, journal, observed, self._clock)
        self._files = JobFiles(job_dir, checkpoints)
        self._lock = threading.Lock()
        self._launch, self._generation, self._never_fed = 0, 0, left_out or {}
        self._rows = LaunchRows(self._fed, self._never_fed)
        self._streams = LaunchStreams(self._pushed)
        self._mailboxes = [_Mailbox() for _ in parts]
        self._members = tuple(
            place
            for place, part in enumerate(parts)
            if part.runs_function and part.task.role in TRAINING_ROLES
        )
        self._replaces = replaces
        self._meetings = self._new_meetings(0)

    # For the job's loop --------------------------------------------------------------------------

    def new_launch(self, launch: int, generation: int, size: int) -> None:
        """Forget the agents of the previous launch; the next generation begins with it.

        `size`: How many tasks it has: the first ones.
        """
        with self._lock:
            self._launch, self._generation = launch, generation
            if size != len(self._mailboxes):
                self.notes.ledger.divide_anew()
            self._mailboxes = [_Mailbox() for _ in range(size)]
            self.notes.new_launch(size)
            fed = tuple(place for place in self._fed if place < size)
            self._rows = LaunchRows(fed, self._never_fed)
            self._streams = LaunchStreams(self._pushed, was=self._streams)

    def has_agents(self, launch: int) -> bool:
        """Return whether an agent of a launch has registered."""
        with self._lock:
            return launch == self._launch and any(box.agent for box in self._mailboxes)

    def executors(self, launch: int) -> dict[int, str]:
        """Return the executors of a launch's agents by rank, if known."""
        with self._lock:
            boxes = self._mailboxes if launch == self._launch else []
            return {rank: box.executor for rank, box in enumerate(boxes) if box.executor}

    def executor_lost(self, launch: int, executor: str) -> None:
        """Note that the agents on an executor are gone, unless others have their places."""
        with self._lock:  # no other agent registers meanwhile
            for rank, box in enumerate(self._mailboxes if launch == self._launch else ()):
                if box.executor == executor:
                    detail = f"its executor {executor} is gone"
                    self.events.put(ev.AgentLost(self._clock.now(), launch, rank, detail))

    def start(self, command: commands.Start) -> None:
        """Start a generation on every agent."""
        with self._lock:
            self._generation = command.generation
            self._meetings = self._new_meetings(command.generation)
            self.notes.begin_generation()
            self._broadcast(command)
            for one in self._streams.begin_generation(command.generation):
                self._broadcast(one)

    def start_again(self, rank: int, command: commands.Start) -> None:
        """Let a new agent take its place in a generation."""
        with self._lock:
            self._rows.come_again(rank)
            self._send(rank, command)

    def why_not_again(self, rank: int) -> str:
        """Return why a rank's rows can't come to a new agent; empty if they can."""
        with self._lock:
            if self._streams.is_used:
                return "Rows were pushed to it, so the group can't go on without it"
            return self._rows.why_not_again(rank)

    def receivers(self, stream: str) -> tuple[str, ...] | None:
        """Return where to send a stream's rows, by rank; None while some rank isn't ready.

        Empty once the stream has ended.
        """
        with self._lock:
            return self._streams.receivers(stream)

    def silent_tasks(self, stream: str) -> list[str]:
        """Return the tasks that don't take a stream's rows yet."""
        with self._lock:
            return [str(self._tasks[place]) for place in self._streams.silent(stream)]

    def tasks_without_rows(self, stream: str) -> list[str]:
        """Return the fed tasks that haven't received a row of a stream."""
        counts = self.notes.ledger.counts
        return [
            str(self._tasks[place])
            for place in self._pushed
            if not ((stream, place) in counts and counts[stream, place].rows)
        ]

    def part_streams(self) -> None:
        """Make checkpoints only at the ends of sections."""
        with self._lock:
            for command in self._streams.part():
                self._broadcast(command)

    def end_section(self, label: str) -> None:
        """End a section: train on the rows so far, then make a checkpoint with the label."""
        with self._lock:
            for command in self._streams.end_section(label):
                self._broadcast(command)

    def has_section(self, label: str) -> bool:
        """Return whether a checkpoint with this label covers the section."""
        if self._checkpoints.label == label:
            return True
        with self._lock:
            return self._streams.is_trained

    def end_streams(self) -> None:
        """Let no more rows be pushed."""
        with self._lock:
            for command in self._streams.end():
                self._broadcast(command)

    def send(self, command: Command, ranks: Iterable[int] | None = None) -> None:
        """Queue a command for the agents of some ranks; None: for every agent."""
        with self._lock:
            if isinstance(command, commands.Replace) and command.view:
                self._meet(self._meetings.replaced(command))
            for rank in range(len(self._mailboxes)) if ranks is None else ranks:
                self._send(rank, command)

    def _broadcast(self, command: Command) -> None:
        for rank in range(len(self._mailboxes)):
            self._send(rank, command)

    def _send(self, rank: int, command: Command) -> None:
        box = self._mailboxes[rank]
        box.sent += 1
        box.commands.append({**commands.COMMANDS.encode(command), "id": box.sent})

    # Called by the server's threads --------------------------------------------------------------

    def register(self, message: dict[str, Any]) -> dict[str, Any]:
        """Register an agent; one of an earlier launch is told to end."""
        one = parse(AN_AGENT, "a registration", message, headers.Registration)
        with self._lock:
            if one.launch != self._launch or one.rank >= len(self._mailboxes):
                return {"accepted": False, "generation": self._generation}
            box = self._mailboxes[one.rank]
            if box.agent not in ("", one.agent):
                box = self._mailboxes[one.rank] = _Mailbox()
            box.agent, box.executor, box.host = one.agent, one.executor, one.host
            self.tell_of(one.rank, "registered")
            self.events.put(ev.Registered(self._clock.now(), one))
            return {"accepted": True, "generation": self._generation}

    def sync(self, message: dict[str, Any]) -> dict[str, Any]:
        """Handle reports (each once, however often it is sent); return the waiting commands."""
        one = parse(AN_AGENT, "reports", message, headers.Exchange)
        numbers = one.numbers
        # Reports are handled completely before the lock is released: once a new launch has begun,
        # reports of the previous launch's agents must not count for it.
        with self._lock:
            if not self._is_present(one):
                ends = [{"id": 1, "kind": "close"}]
                return {"heard": max(numbers, default=0), "commands": ends}
            box, has_room = self._mailboxes[one.rank], self._console.has_room
            self.events.put(ev.Heard(self._clock.now(), one))
            if one.load:
                self._observed.load(box.host, one.load, self._clock.now())
            for number, report in zip(numbers, one.reports, strict=True):
                if number <= box.heard:
                    continue
                if report.get("kind") == reports.Log.kind and not has_room:
                    break  # not acknowledged, so it and those after it are sent again
                box.heard = number
                self._take(one, report)
            box.commands = [c for c in box.commands if c["id"] > one.done]
            return {"heard": box.heard, "commands": list(box.commands)}

    def _is_present(self, sender: Sender) -> bool:
        """Return whether an agent is its rank's current one; with the lock held."""
        if sender.launch != self._launch or sender.rank >= len(self._mailboxes):
            return False
        return self._mailboxes[sender.rank].agent == sender.agent

    def receive_file(self, header: dict[str, Any]) -> Path:
        """Return the path to write a file to until it is complete."""
        upload = headers.UPLOADS.decode(header)
        self._refuse_strangers(upload)
        if isinstance(upload, headers.LoanFile) and not self._rows.is_lent(upload.name):
            raise WireError(f"no rank was asked to lend rows of {upload.name!r}.")
        return self._files.incoming(upload)

    def file_received(
        self, header: dict[str, Any], path: Path, spared: Spared | None = None
    ) -> None:
        """Commit a complete file, unless its sender was given up meanwhile."""
        upload = headers.UPLOADS.decode(header)
        if isinstance(upload, headers.CheckpointFile):
            self._refuse_strangers(upload)
            self._committed(self._checkpoints.commit(path, upload.place, upload.label), upload)
            return
        # Not under the lock of reports: disks may be slow.
        with self._files.lock:
            self._refuse_strangers(upload)
            refused = self._files.keep(upload, path, spared)
        if refused is not None:
            task = self._tasks[upload.rank]
            self._console.warn(
                ("result", task),
                f"{refusal(self._job_folder, refused)}. What {task} returned is kept in this "
                "process's memory: it is in the result, but not in that folder",
            )
        if isinstance(upload, headers.LoanFile):
            with self._lock:
                if self._is_present(upload):
                    self._carry_out(self._rows.arrived(upload.name))

    def offer(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return where an agent may write a checkpoint itself; empty: it has to send it."""
        made = parse(AN_AGENT, "a checkpoint", message, headers.CheckpointFile)
        self._refuse_strangers(made)
        at = self._checkpoints.offer(made.generation, made.rank, made.place, made.label)
        return {"at": at}

    def stored(self, message: dict[str, Any]) -> dict[str, Any]:
        """Commit a checkpoint that an agent has written to the place that it was offered."""
        made = parse(AN_AGENT, "a checkpoint", message, headers.StoredCheckpoint)
        self._refuse_strangers(made)
        self._committed(
            self._checkpoints.commit_stored(made.at, made.size, made.place, made.label), made
        )
        return {}

    def locate(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return where an agent may read a checkpoint itself; empty: it has to fetch it."""
        wanted = parse(AN_AGENT, "a wish", message, headers.Download)
        return asdict(self._checkpoints.locate(wanted.name))

    def _committed(self, name: str, made: headers.CheckpointFile) -> None:
        self._observed.tell("checkpoint", made.place)
        self.send(commands.Fetch(name, made.place), self._evaluators)
        with self._lock:
            self.notes.saved(made.place)
            for rank in self._pushed if self._streams.is_used else ():
                self._send(rank, commands.Committed(made.generation, made.place))

    def disk_refused(self, header: dict[str, Any], error: OSError) -> str:
        """Return what to tell the sender of a file that can't be written; warn the user."""
        upload = headers.UPLOADS.decode(header)
        if isinstance(upload, headers.CheckpointFile):
            words = refusal(self._checkpoint_folder, error)
            newest = self._checkpoints.newest
            kept = "no checkpoint is" if newest is None else f"the newest is that of {newest}"
            self._console.warn(
                "checkpoints",
                f"{words}. The checkpoint of {upload.place} was not stored; {kept} there",
            )
            return words
        words = refusal(self._job_folder, error)
        if isinstance(upload, headers.EventFile):
            self._console.warn("events", f"{words}. Event files for TensorBoard are incomplete")
        return words

    @property
    def in_memory(self) -> dict[int, dict[str, bytes]]:
        """The files of results that the disk refused, by rank and name."""
        return self._files.in_memory

    @property
    def _job_folder(self) -> str:
        return f"the job's folder {self.job_dir}"

    @property
    def _checkpoint_folder(self) -> str:
        folder = self._checkpoints.folder
        is_own = folder.is_relative_to(self.job_dir)
        return self._job_folder if is_own else f"checkpoint_dir={str(folder)!r}"

    def _refuse_strangers(self, sender: Sender) -> None:
        with self._lock:
            if not self._is_present(sender):
                raise GridflowError("this agent was given up, so its files are refused.")

    def find_file(self, header: dict[str, Any]) -> Path:
        """Return the file of the function, its modules, a checkpoint or a loan."""
        return self._files.find(parse(AN_AGENT, "a wish", header, headers.Download))

    # With the lock held ------------------------------------------------------------

    def _take(self, sender: Sender, data: dict[str, Any]) -> None:
        """Handle a report; failing to do so ends the job, but later reports are still handled."""
        try:
            fields = {name: value for name, value in data.items() if name != "seq"}
            self._report(sender, reports.REPORTS.decode(fields))
        except Exception as error:  # noqa: BLE001 (a report is counted as heard: none may be lost)
            words = "".join(traceback.format_exception(error))
            problem = GridflowError(
                f"the driver failed to handle the report {data.get('kind')!r} of "
                f"{self._tasks[sender.rank]}: {type(error).__name__}: {error}\n{words}"
            )
            self.events.put(ev.DriverFailed(self._clock.now(), problem))

    def _report(self, sender: Sender, report: Report) -> None:
        rank = sender.rank
        if isinstance(report, ev.OfTask | ev.OfAgent):
            self.events.put(ev.Heard(self._clock.now(), sender, report))
        match report:
            case reports.Ready():
                self.tell_of(rank, "ready")
            case reports.Succeeded():
                self.tell_of(rank, "returned")
                self.results[rank] = report.result
                self._meet(self._meetings.left(rank, RETURNED, report.generation))
            case reports.Joined():
                self._meet(self._meetings.left(rank, _JOINED, report.generation))
            case _ if isinstance(report, reports.AMONG_RANKS):
                self._among_ranks(sender, report)
            case _:
                self.notes.hear(rank, report, self._meetings.chief)
                for feature in (self._rows, self._streams):
                    self._carry_out(feature.hear(rank, report))

    def tell_of(self, rank: int, state: str) -> None:
        """Tell observers of a task."""
        self._observed.tell("task", str(self._tasks[rank]), state, self._mailboxes[rank].host)

    def _new_meetings(self, generation: int) -> Meetings:
        names = [str(task) for task in self._tasks]
        members = tuple(place for place in self._members if place < len(self._mailboxes))
        return Meetings(generation, members, names, keeps=self._replaces)

    def _among_ranks(self, sender: Sender, report: Report) -> None:
        """Handle a report about something that ranks do together."""
        rank = sender.rank
        match report:
            case reports.Meet():
                told = self._meetings.came(rank, report)
                if rank in self._meetings.guests:
                    now, generation = self._clock.now(), report.generation
                    self.events.put(ev.WantsToJoin(now, self._launch, rank, generation))
                self._say_waiting(rank, report.generation)
                self._meet(told)
            case reports.MeetingGivenUp():
                self._meet(self._meetings.given_up(rank, report.number, report.generation))

    def _meet(self, told: Iterable[Answer]) -> None:
        """Send ranks the outcome of a meeting."""
        for answer in told:
            self._send(answer.rank, answer.command)
            self._say_waiting(answer.rank, answer.command.generation)

    def _say_waiting(self, rank: int, generation: int) -> None:
        where = self._meetings.waiting(rank)
        self.events.put(ev.TaskWaits(self._clock.now(), rank, generation, where))

    def _carry_out(self, acts: list[Act]) -> None:
        """Do what a feature has decided."""
        for act in acts:
            match act:
                case SendTo():
                    self._send(act.rank, act.command)
                case SendAll():
                    self._broadcast(act.command)
                case Count():
                    self.notes.ledger.set_counts(act.dataset, act.rank, act.counts)
                case Differ():
                    now = self._clock.now()
                    self.events.put(ev.NotReplaced(now, self._launch, act.rank, act.reason))
                case Forget():
                    self._files.loan(act.dataset).unlink(missing_ok=True)
                case Unfit():
                    self.events.put(ev.RowsUnfit(self._clock.now(), act.reason))
