"""The identity of a training process, its connection to the agent, and files that it leaves."""

from __future__ import annotations

import base64
import functools
import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gridflow._keras.agreement import Agreement
from gridflow._keras.due import Spent
from gridflow._keras.runtime import Profiler
from gridflow._spec import backends, strategies
from gridflow._spec.cluster import EVALUATOR, TRAINING_ROLES, ClusterSpec, Task
from gridflow._spec.option_checks import seconds
from gridflow._spec.printable import printable
from gridflow._wire import commands, reports, values
from gridflow._wire.commands import Inspect
from gridflow.errors import BarrierTimeout, BrokenBarrier, GridflowError

if TYPE_CHECKING:
    from collections.abc import Callable

    from gridflow._feed.plan.epochs import EpochCounter
    from gridflow._feed.store import SpoolReader
    from gridflow._keras.regrouping import Regrouping
    from gridflow._spec.job import JobSpec
    from gridflow._training.inbox import Inbox
    from gridflow._wire.channel import Channel
    from gridflow._wire.child import Setup


class TaskProcess:
    """What training code needs to know about its process.

    Attributes shared with the context are described there.

    `setup`: What the agent sent.
    `spec`: What the driver sent: the job's options.
    `training`: The options that say how to train.
    `facts`: Properties of the requested strategy.
    `agreement`: What all ranks do alike in their fits.
    `spent`: Where the time of its fits goes.
    `profiler`: Looks closer at some of their steps.
    """

    def __init__(self, setup: Setup, channel: Channel, inbox: Inbox) -> None:
        self.setup, self.channel, self.inbox = setup, channel, inbox
        self.spec = setup.spec
        self.training = self.spec.training
        self.task = Task.parse(setup.task)
        self.cluster_spec = ClusterSpec(setup.addresses)
        rank = self.cluster_spec.rank(self.task)
        self.rank: int = -1 if rank is None else rank
        self.num_workers = len(self.cluster_spec.ranks)
        self.generation: int = setup.generation
        self.facts = strategies.of(self.training.strategy)
        self.epoch_counters: list[EpochCounter] = []
        compares = self.training.distribution.local_steps is None
        self.agreement = Agreement(compares=compares)
        self.spent = Spent(
            {
                "ranks": self.agreement.waited,
                "source": functools.partial(_of_sources, "source"),
                "coming": functools.partial(_of_sources, "coming"),
            }
        )
        backend = backends.of(self.training.backend)
        self.profiler = Profiler(backend, self.task, Path(setup.tensorboard))
        inbox.listen(Inspect, lambda told: self.profiler.ask(*told.profile))
        #: How fits go on after a rank was lost; None: they don't.
        self.regrouping: Regrouping | None = None
        self.meetings = MeetingClient(
            self.task, self.members, self.spec, channel, inbox, is_new=setup.view > 0
        )

    @property
    def is_chief(self) -> bool:
        """Whether this is the task that writes files which only one task should write.

        The first rank of those that take part: where it is away, the next one does its duties.
        """
        chief = 0 if self.regrouping is None else self.regrouping.ranks[0]
        return self.rank == chief

    @property
    def chief_changes(self) -> bool:
        """Whether another rank may become the chief, as workers come and go."""
        return self.trains and self.spec.least is not None

    @property
    def is_evaluator(self) -> bool:
        """Whether this task evaluates the training instead of taking part in it."""
        return self.task.role == EVALUATOR

    @property
    def trains(self) -> bool:
        """Whether this task takes part in the training."""
        return self.task.role in TRAINING_ROLES

    @property
    def members(self) -> int:
        """The number of ranks that run the function; 0 if this task doesn't run it."""
        ranks = [task.role in self.facts.runs_function for task in self.cluster_spec.ranks]
        return sum(ranks) if self.trains else 0

    @property
    def trains_together(self) -> bool:
        """Whether several ranks train one model, in equal steps."""
        return self.facts.exchanges_gradients and self.num_workers > 1

    def spool(self, dataset: str, *, growing: bool = False) -> SpoolReader:
        """Return a reader of this rank's rows, complete or still growing."""
        from gridflow._feed.store import SpoolReader

        return SpoolReader(Path(self.setup.spool), dataset, growing=growing)


def _of_sources(what: str) -> float:
    """Return what sources of rows spent time on, without importing them before others."""
    source = sys.modules.get("gridflow._feed.dataset.source")
    return 0.0 if source is None else float(source.spent(what))


# Barriers and exchanged values between ranks, through the driver.
#
# They work with every strategy and backend, independent of imports and of collective operations in
# progress, and an absent rank is known by name.

#: Extra seconds for the driver to say which rank is missing.
_ANSWER_SECONDS: Final = 10.0


class MeetingClient:
    """The meetings of this process.

    `task`: Which process it is.
    `members`: Number of ranks that run the function; 0 if this task doesn't run it.
    `is_new`: Whether this process takes the place of one that has died.
    """

    def __init__(
        self,
        task: Task,
        members: int,
        spec: JobSpec,
        channel: Channel,
        inbox: Inbox,
        *,
        is_new: bool = False,
    ) -> None:
        self._task, self._members, self._spec, self._channel = task, members, spec, channel
        self._is_new = is_new
        self._changed = threading.Condition()
        self._held: dict[int, commands.Met] = {}
        self._number = 0
        #: Whether the process is waiting in a meeting.
        self.is_waiting = False
        inbox.listen(commands.Met, self._take)
        inbox.meets = lambda: self.is_waiting

    def hold(
        self, operation: str, value: Any, timeout: float | None, *, is_heard: bool = True
    ) -> list[Any]:
        """Wait for the ranks; return each rank's value, or only the chief's.

        `is_heard`: Whether this rank has a value: in a broadcast, the chief alone does.
        Raises `BrokenBarrier`: A rank will never join, or called another operation.
        Raises `BarrierTimeout`: A rank didn't join in time.
        """
        if not self._members:
            raise GridflowError(
                f"ctx.{operation}() is only for tasks that run the training function; this is "
                f"{self._task}."
            )
        limit = self._spec.deadlines.step or None
        if timeout is not None:
            limit = seconds("timeout", timeout)
        most = min(values.MOST_BYTES, values.MOST_TOGETHER // self._members)
        packed = values.pack(value, most if operation == "all_gather" else values.MOST_BYTES)
        if self._members == 1:
            return [values.unpack(packed)]
        self._number += 1
        told = self._wait(operation, packed if is_heard else b"", limit)
        return [values.unpack(base64.b64decode(each)) for each in told.values]

    def introduce(self, value: Any, view: int) -> Callable[[], list[Any]]:
        """Send a value to all ranks of a group that forms.

        Returns a function that waits for the ranks, and returns their values.
        Raises `BrokenBarrier`: Raised by the callable: a rank will never join.
        Raises `BarrierTimeout`: Raised by the callable: a rank didn't join within
            ``start_timeout``.
        """
        packed = values.pack(value)
        with self._changed:
            self._held.pop(reports.INTRODUCTION, None)
        self._send(reports.INTRODUCTION, "strategy", packed, view)

        def wait() -> list[Any]:
            # One that others go on without waits until they let it in.
            waits = view and self._is_new and self._spec.least is not None
            limit = None if waits else self._spec.start_timeout
            told = self._await("strategy", reports.INTRODUCTION, limit)
            return [values.unpack(base64.b64decode(each)) for each in told.values]

        return wait

    def _send(self, number: int, operation: str, packed: bytes, view: int = 0) -> None:
        meet = reports.Meet(number, operation, base64.b64encode(packed).decode(), view)
        self._channel.send(meet)

    def _wait(self, operation: str, packed: bytes, limit: float | None) -> commands.Met:
        self._send(self._number, operation, packed)
        return self._await(operation, self._number, limit)

    def _await(self, operation: str, number: int, limit: float | None) -> commands.Met:
        is_late = False
        self.is_waiting = True
        try:
            told = self._told(number, limit)
            if told is None:
                is_late = True
                self._channel.send(reports.MeetingGivenUp(number))
                told = self._told(number, _ANSWER_SECONDS)
        finally:
            self.is_waiting = False
        if told is not None and not told.problem:
            return told
        problem = "the driver doesn't answer" if told is None else told.problem
        words = f"ctx.{operation}(), the {_ordinal(number)} meeting of this rank"
        if is_late:
            raise BarrierTimeout(f"{words}, was not held in {limit:g} seconds: {problem}.")
        raise BrokenBarrier(f"{words}, can't be held: {problem}.")

    def _told(self, number: int, limit: float | None) -> commands.Met | None:
        with self._changed:
            self._changed.wait_for(lambda: number in self._held, limit)
            return self._held.pop(number, None)

    def _take(self, told: commands.Met) -> None:
        with self._changed:
            self._held[told.number] = told
            self._changed.notify_all()


def _ordinal(number: int) -> str:
    endings = {1: "st", 2: "nd", 3: "rd"}
    teens = range(11, 14)
    return f"{number}{'th' if number % 100 in teens else endings.get(number % 10, 'th')}"


#: Subfolder of the task's folder for gridflow's own files.
OWN_FOLDER: Final = ".gridflow"
_MOST_NAMES: Final = 5
_MOST_FILES: Final = 10_000
_STEP: Final = 1024


def describe(folder: Path, script: str | None = None) -> str:
    """Return a line that names the user's files in a folder and says how to keep them, or "".

    Hidden files, Python's caches and the copy of the running script don't count.
    """
    places = (each for each in sorted(folder.iterdir()) if str(each) != script)
    found = [each for each in places if not each.name.startswith((".", "__"))]
    sized = [(each, *_size(each)) for each in found]
    left = [(each, files, size) for each, files, size in sized if files]
    if not left:
        return ""
    names = ", ".join(_words(*each) for each in left[:_MOST_NAMES])
    more = f" and {len(left) - _MOST_NAMES} more" if len(left) > _MOST_NAMES else ""
    return (
        f"gridflow: deleted with this task's folder: {printable(names)}{more}. To keep such files, "
        "write them to a full path of storage that outlives the task, or return them."
    )


def _size(path: Path) -> tuple[int, int]:
    """Return the number of files and their total size in bytes."""
    if path.is_symlink() or not path.is_dir():
        return 1, path.lstat().st_size
    files = size = 0
    for parent, _, names in os.walk(path):
        for name in names:
            files += 1
            size += Path(parent, name).lstat().st_size
        if files > _MOST_FILES:
            break
    return files, size


def _words(path: Path, files: int, size: int) -> str:
    is_folder = path.is_dir() and not path.is_symlink()
    count = f"{files:,} file{'s' if files > 1 else ''}, " if is_folder else ""
    return f"{path.name}{'/' if is_folder else ''} ({count}{_bytes(size)})"


def _bytes(size: float) -> str:
    for unit in ("bytes", "KiB", "MiB"):
        if size < _STEP:
            return f"{size:,.0f} {unit}"
        size /= _STEP
    return f"{size:,.1f} GiB"
