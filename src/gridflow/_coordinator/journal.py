"""The journal in a job's folder: JSON lines of what happened in the job, as it happens.

The job's state machine writes what it is told and what it decides
(`gridflow._coordinator.stimuli`), the handler of reports how training goes. ``gridflow replay``,
``report`` and ``top`` read it.
"""

from __future__ import annotations

import json
import math
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from gridflow._coordinator.outlet import Outlet
from gridflow.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Mapping
    from io import FileIO
    from pathlib import Path

    from gridflow._coordinator.progress import TaskProgress
    from gridflow._spec.place import Place

NAME: Final = "journal.jsonl"
#: Of a job with thousands of restarts, only the beginning is kept.
_MOST_BYTES: Final = 64 << 20
#: Reports of progress after which each rank's are kept half as often.
_MANY_REPORTS: Final = 20_000
_MOST_WAITING: Final = 4 << 20
_PATIENCE, _LONGEST = 5.0, 10.0


class Journal:
    """Writes a journal in a thread of its own. A disk that refuses costs lines, not the job."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        self._file: FileIO | None = None
        self._size = 0
        self._written_at: dict[int, float] = {}
        self._reports, self._pause = 0, 0.0
        self._outlet = Outlet(
            "gridflow-journal",
            limit=_MOST_WAITING,
            patience=_PATIENCE,
            longest=_LONGEST,
            on_gap=lambda _, lines: self._write(json.dumps({"missing": lines}) + "\n"),
        )

    def put(self, line: Mapping[str, Any]) -> None:
        text = json.dumps(line, separators=(",", ":")) + "\n"
        self._outlet.put(None, partial(self._write, text), len(text), 1)

    def progress(self, at: float, rank: int, report: TaskProgress) -> None:
        """Write a report of progress; of a long job not each one."""
        is_step = report.phase == "train"
        if is_step and at - self._written_at.get(rank, -math.inf) < self._pause:
            return
        self._written_at[rank] = at
        self._reports += 1
        if self._reports >= _MANY_REPORTS:
            self._reports, self._pause = 0, max(1.0, 2 * self._pause)
        self.put(
            {
                "at": at,
                "rank": rank,
                "phase": report.phase,
                "place": [*report.place, report.steps_per_epoch],
                "rows": report.rows,
                "logs": report.logs,
                "spent": report.seconds,
            }
        )

    def epoch(self, at: float, fit: int, epoch: int, logs: Mapping[str, float]) -> None:
        """Write the results of an epoch."""
        self.put({"at": at, "epoch": [fit, epoch], "logs": dict(logs)})

    def evaluation(self, at: float, place: Place, logs: Mapping[str, float]) -> None:
        """Write what the evaluator found for a checkpoint."""
        self.put({"at": at, "evaluation": list(place), "logs": dict(logs)})

    def close(self) -> None:
        """Write what is left."""
        if self._outlet.close() and self._file is not None:
            self._file.close()

    def _write(self, text: str) -> None:
        """Write lines, in the outlet's thread."""
        if self._size > _MOST_BYTES:
            return
        try:
            if self._file is None:
                self._file = self._path.open("wb", buffering=0)
            self._file.write(text.encode("utf-8", "backslashreplace"))
        except OSError:  # a full disk: the console tells of it
            self._size = _MOST_BYTES
        self._size += len(text)
        self._outlet.moved()


def read(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of a folder's journal, without one that is being written.

    Raises `InvalidArgument`: There is none, or it can't be read.
    """
    path = folder / NAME
    try:
        whole, _, _ = path.read_text(encoding="utf-8").rpartition("\n")
        found = [json.loads(line) for line in whole.split("\n")]
    except OSError as error:
        raise InvalidArgument(
            f"there is no journal of a job in {str(folder)!r}: {error.strerror}. 'gridflow jobs' "
            "lists the folders of jobs."
        ) from error
    except ValueError as error:
        raise InvalidArgument(f"{path} isn't the journal of a job: {error}") from error
    if not all(isinstance(line, dict) for line in found):
        raise InvalidArgument(f"{path} isn't the journal of a job: it holds something else.")
    return found
