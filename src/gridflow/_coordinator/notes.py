"""What the ranks tell for the record of their job: progress, losses, evaluations, rows, stacks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gridflow._coordinator.progress import TaskProgress
from gridflow._feed.ledger import DatasetCounts, Ledger
from gridflow._wire import reports

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gridflow._coordinator.console import Console
    from gridflow._coordinator.journal import Journal
    from gridflow._coordinator.observing import Observed
    from gridflow._spec.cluster import Task
    from gridflow._spec.place import Place
    from gridflow._wire.clock import Clock
    from gridflow._wire.messages import Report


class JobNotes:
    """What was told so far; console, journal and observers hear it at once."""

    def __init__(
        self,
        tasks: Sequence[Task],
        console: Console,
        journal: Journal,
        observed: Observed,
        clock: Clock,
    ) -> None:
        self._tasks, self._clock = tasks, clock
        self._console, self._journal, self._observed = console, journal, observed
        self.ledger = Ledger()
        self.history: dict[tuple[int, int], dict[str, float]] = {}
        self.evaluation: dict[Place, dict[str, float]] = {}
        #: Where training stopped to be finite, unless it has made a checkpoint since.
        self.not_finite: reports.NotFinite | None = None
        self.tensorboard_url: str | None = None
        #: The last stack, by rank.
        self.stacks: dict[int, reports.Stack] = {}
        #: The last progress report, by rank.
        self.progress: dict[int, TaskProgress] = {}
        #: How the rows of its agent came, by rank.
        self._inflow: dict[int, dict[str, float]] = {}
        #: What was read through a data service, by rank and its number there.
        self.data_served: dict[tuple[int, int], reports.DataServed] = {}
        #: The last training step of the chief.
        self.last_step: TaskProgress | None = None

    def new_launch(self, size: int) -> None:
        """Forget tasks that the next launch doesn't have."""
        self.progress = {rank: told for rank, told in self.progress.items() if rank < size}

    def begin_generation(self) -> None:
        """Forget what concerns only a generation."""
        self.not_finite = None
        self.data_served.clear()

    def saved(self, place: Place) -> None:
        """Note that there is a checkpoint, which is finite."""
        if self.not_finite is not None and self.not_finite.place < place:
            self.not_finite = None

    def hear(self, rank: int, report: Report, chief: int) -> None:
        """Note a report, if it is for the record."""
        match report:
            case reports.Spooled(inflow=inflow) if inflow:
                self._inflow[rank] = inflow
            case reports.Log():
                self._console.log(self._tasks[rank], report.lines)
            case reports.Progress():
                self._note_progress(rank, report)
            case reports.EpochEnded() if rank == chief:
                self._note_epoch(report)
            case reports.EpochFed():
                self.ledger.add(report.record)
            case reports.Pulled():
                counts = DatasetCounts(**report.counts)
                self.ledger.set_counts(report.dataset, report.rank, counts)
            case reports.DataServed():
                self.data_served[rank, report.number] = report
            case reports.Evaluated():
                self.evaluation[report.place] = report.logs
                self._console.evaluation(report.place, report.logs)
                self._journal.evaluation(self._clock.now(), report.place, report.logs)
            case reports.NotFinite():
                if self.not_finite is None:
                    self._console.say(
                        f"{self._tasks[rank]}: variable {report.variable!r} isn't finite (NaN or "
                        f"infinity) at {report.place}: checkpoints are kept as they were before"
                    )
                self.not_finite = self.not_finite or report
            case reports.Stack():
                self.stacks[rank] = report
            case reports.BoardServed():
                self.tensorboard_url = report.url
                self._console.say(f"TensorBoard: {report.url}")

    def _note_progress(self, rank: int, report: reports.Progress) -> None:
        rows = report.rows + (self.progress[rank].rows if rank in self.progress else 0)
        progress = TaskProgress.of(report, rows, self._inflow.get(rank, {}))
        self.progress[rank] = progress
        if rank == 0 and report.phase == "train":
            self.last_step = progress
        self._journal.progress(self._clock.now(), rank, progress)
        self._observed.progress(str(self._tasks[rank]), progress)

    def _note_epoch(self, report: reports.EpochEnded) -> None:
        place = report.fit, report.epoch
        known = self.history.get(place, {})
        self.history[place] = report.logs
        self._journal.epoch(self._clock.now(), report.fit, report.epoch, report.logs)
        self._observed.epoch(report.fit, report.epoch, report.logs)
        # It is reported again if callbacks have added something.
        new = {name: v for name, v in report.logs.items() if known.get(name) != v}
        if not report.restored:
            self._console.epoch(report.epoch, new or report.logs)
