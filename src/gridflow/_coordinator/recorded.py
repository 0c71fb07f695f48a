"""Stands in for a run that has already succeeded under the same id."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from gridflow._coordinator import record
from gridflow._coordinator.console import Console
from gridflow._coordinator.phases import Phase
from gridflow._coordinator.progress import JobReport, last_history
from gridflow._feed.push.sender import Destination
from gridflow._wire.identity import Identity
from gridflow.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gridflow._coordinator.record import Outcome
    from gridflow._spec.cluster import Task
    from gridflow._spec.job import JobSpec


def find(job_dir: Path, spec: JobSpec) -> RecordedRun | None:
    """Return the run that has succeeded in a folder, or None.

    Raises `GridflowError`: It has succeeded, but its result can't be read.
    """
    result = record.read_result(job_dir)
    if result is None or result.get("state") != record.SUCCEEDED:
        return None
    return RecordedRun(job_dir, spec, record.read_outcome(job_dir), str(result.get("ended")))


class NoStreams:
    """Takes no rows: the run is over."""

    rows_pushed = 0

    def destination(self, stream: str) -> Destination:
        """Return a destination without receivers, as after the end of a stream."""
        return Destination(stream, "", (), Identity(b"", b"", b""))

    def is_awaited(self, stream: str) -> bool:  # noqa: ARG002  (as of a running job)
        """Return that no task waits."""
        return False

    def silent_tasks(self, stream: str) -> list[str]:  # noqa: ARG002  (as above)
        return []

    def part_streams(self) -> str | None:
        return None

    def end_section(self, label: str, give_up: Callable[[], bool]) -> bool:  # noqa: ARG002
        """Return that nothing was trained on."""
        return False

    def end_streams(self) -> None:
        """Do nothing."""


class RecordedRun:
    """What a `JobHandle` needs of a run, answered from its record.

    `spec`: The distributor's options.
    `ended`: When it succeeded.
    """

    state = Phase.CLOSED.value
    is_recorded = True

    def __init__(self, job_dir: Path, spec: JobSpec, outcome: Outcome, ended: str) -> None:
        self.spec = spec
        self.streams = NoStreams()
        self._job_dir, self._outcome, self._ended = job_dir, outcome, ended

    def run(self) -> Outcome:
        """Report that nothing is trained again, and return the run's outcome."""
        with contextlib.closing(Console((), None, progress=False)) as console:
            console.say(
                f"run {self._job_dir.name!r} has already succeeded, at {self._ended}: its result "
                "is returned, and nothing is trained again"
            )
        return self._outcome

    def cancel(self) -> None:
        """Do nothing: it has ended."""

    def report(self) -> JobReport:
        attempts = self._outcome.attempts
        return JobReport(
            state=self.state,
            generation=attempts[-1].generation if attempts else 0,
            tasks={},
            epochs=len(self._outcome.history),
            history=last_history(self._outcome.history),
            failures=tuple(each.failure for each in attempts if each.failure),
            replaced=tuple(failure for each in attempts for failure in each.replaced),
            sizes=attempts[-1].sizes if attempts else (),
            tensorboard_url=None,
        )

    def stacks(self, timeout: float, give_up: Callable[[], bool]) -> dict[str, str | None]:  # noqa: ARG002 (as of a running job)
        """Return none: it has ended."""
        return {}

    def profile(self, first: int, last: int) -> Path:  # noqa: ARG002 (as of a running job)
        """Refuse.

        Raises `InvalidArgument`: Always.
        """
        raise InvalidArgument("the job has ended, in an earlier process.")

    @property
    def log_paths(self) -> dict[Task, Path]:
        """The file of each task's output."""
        return self._outcome.log_paths

    def has_been(self, state: str, timeout: float | None, give_up: Callable[[], bool]) -> bool:  # noqa: ARG002  (as of a running job)
        """Return True: it is over."""
        return True

    def wake(self) -> None:
        """Do nothing: nobody waits."""
