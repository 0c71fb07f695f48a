"""The records in a job's folder: ``result.json`` and ``outcome.json``.

``result.json`` is for other programs; ``docs/outcomes.md`` describes it. ``outcome.json`` is
gridflow's own: thanks to it, a run with an id that has succeeded isn't trained again.
"""

from __future__ import annotations

import importlib.metadata
import json
import math
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from gridflow._feed.ledger import Ledger
from gridflow._files.local import open_own, read_json, write_whole
from gridflow._spec.cluster import Task
from gridflow._spec.exits import exit_code
from gridflow._spec.place import Place
from gridflow._wire.failures import Attempt, TaskFailure
from gridflow.errors import GridflowError, JobCancelled, UnsafePath

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from gridflow._coordinator.job import PreparedJob
    from gridflow._coordinator.progress import TaskProgress

RESULT: Final = "result.json"
OUTCOME: Final = "outcome.json"
#: Version of both files. Adding a field keeps it; removing or redefining one makes it 2.
VERSION: Final = 1
SUCCEEDED: Final = "succeeded"


#: The kind of the header of a rank that was away at the end: it has no value.
AWAY: Final = "away"


@dataclass(frozen=True)
class Outcome:
    """The results of a job that succeeded."""

    results: tuple[dict[str, Any], ...]
    history: dict[tuple[int, int], dict[str, float]]
    ledger: Ledger
    attempts: tuple[Attempt, ...]
    log_paths: dict[Task, Path]
    tensorboard_url: str | None
    evaluation: dict[Place, dict[str, float]]
    not_finite: str | None = None
    warnings: tuple[str, ...] = ()
    #: Files of results that the disk refused, by rank and name.
    in_memory: Mapping[int, Mapping[str, bytes]] = field(default_factory=dict)


@dataclass(frozen=True)
class Ending:
    """How a job ended.

    `began`: Seconds since 1970.
    `history`: mapping of (fit, epoch) to losses and metrics.
    `last_step`: Of the chief.
    `not_finite`: What was NaN or infinite when training ended.
    `warnings`: What went wrong without failing the job.
    """

    began: float
    ended: float
    error: BaseException | None
    attempts: Sequence[Attempt]
    history: Mapping[tuple[int, int], Mapping[str, float]]
    last_step: TaskProgress | None
    not_finite: str | None = None
    warnings: Sequence[str] = ()


def describe(job: PreparedJob, ending: Ending) -> dict[str, Any]:
    """Return the content of ``result.json``."""
    error, training = ending.error, job.spec.training
    history = dict(ending.history)
    return {
        "version": VERSION,
        "gridflow": importlib.metadata.version("gridflow"),
        "job": job.id,
        "run_id": job.run_id,
        "state": state_of(error),
        "exit_code": exit_code(error),
        "error": None if error is None else _error(error),
        "began": _moment(ending.began),
        "ended": _moment(ending.ended),
        "seconds": round(ending.ended - ending.began, 3),
        "strategy": training.strategy,
        "backend": training.backend,
        "tasks": [str(task) for task in job.spec.tasks],
        "attempts": [_attempt(attempt) for attempt in ending.attempts],
        "preemptions": sum(attempt.is_preempted for attempt in ending.attempts),
        "epochs": len(history),
        "place": _place(ending.last_step),
        "history": _finite(history[max(history)]) if history else {},
        "not_finite": ending.not_finite,
        "warnings": list(ending.warnings),
    }


def state_of(error: BaseException | None) -> str:
    """Return the state of a job that has ended with an error, or with None."""
    if error is None:
        return SUCCEEDED
    return "cancelled" if isinstance(error, JobCancelled) else "failed"


def _error(error: BaseException) -> dict[str, Any]:
    failures: tuple[TaskFailure, ...] = getattr(error, "failures", ())
    first = failures[0].to_dict() if failures else None
    if first is not None:  # the message has them
        del first["traceback"], first["log_tail"]
    return {"kind": type(error).__name__, "message": str(error), "first": first}


def _attempt(attempt: Attempt) -> dict[str, Any]:
    return {
        "generation": attempt.generation,
        "seconds": round(attempt.seconds, 3),
        "resumed_at": attempt.resumed_at and attempt.resumed_at.to_dict(),
        "failure": attempt.failure and f"{attempt.failure.task}: {attempt.failure.summary}",
        "replaced": [f"{failure.task}: {failure.summary}" for failure in attempt.replaced],
        "sizes": [list(each) for each in attempt.sizes],
    }


def _place(step: TaskProgress | None) -> dict[str, Any] | None:
    if step is None:
        return None
    return {**step.place.to_dict(), "steps_per_epoch": step.steps_per_epoch}


def _finite(logs: Mapping[str, float]) -> dict[str, float | None]:
    """Replace NaN and infinity, which JSON lacks."""
    return {name: value if math.isfinite(value) else None for name, value in logs.items()}


def _moment(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")


def write(folder: Path, name: str, content: Mapping[str, Any]) -> None:
    """Write a file atomically.

    Raises `OSError`: The disk is full, or permission is missing.
    """
    write_whole(folder / name, json.dumps(content, indent=2) + "\n")


def read_result(folder: Path) -> dict[str, Any] | None:
    """Return a job's ``result.json``; None if it is missing or unreadable."""
    content = read_json(folder / RESULT)
    return content if isinstance(content, dict) else None


def write_outcome(folder: Path, outcome: Outcome) -> None:
    """Store the outcome of a job that succeeded, beside its values."""
    content = {
        "version": VERSION,
        "results": outcome.results,
        "history": [[*place, logs] for place, logs in outcome.history.items()],
        "ledger": outcome.ledger.to_dict(),
        "attempts": [asdict(attempt) for attempt in outcome.attempts],
        "logs": {str(task): path.name for task, path in outcome.log_paths.items()},
        "evaluation": [[*place, logs] for place, logs in outcome.evaluation.items()],
        "not_finite": outcome.not_finite,
        "warnings": list(outcome.warnings),
    }
    write(folder, OUTCOME, content)


def read_outcome(folder: Path) -> Outcome:
    """Read what `write_outcome` wrote.

    Raises `GridflowError`: It can't be read, or a later gridflow wrote it.
    """
    path = folder / OUTCOME
    try:
        with open_own(path) as file:
            content = json.loads(file.read())
        _check_version(content["version"])
        return Outcome(
            results=tuple(content["results"]),
            history={(fit, epoch): logs for fit, epoch, logs in content["history"]},
            ledger=Ledger.from_dict(content["ledger"]),
            attempts=tuple(map(_read_attempt, content["attempts"])),
            log_paths={
                Task.parse(task): folder / "logs" / name for task, name in content["logs"].items()
            },
            tensorboard_url=None,
            evaluation={Place(*place): logs for *place, logs in content["evaluation"]},
            not_finite=content.get("not_finite"),
            warnings=tuple(content.get("warnings", ())),
        )
    except UnsafePath:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise GridflowError(
            f"the run in {folder} has succeeded, but its result can't be read "
            f"({type(error).__name__}: {error}). Delete the folder to train again."
        ) from error


def _check_version(version: Any) -> None:
    if version != VERSION:
        raise ValueError(f"it has version {version}, but this gridflow reads version {VERSION}")


def _read_attempt(fields: dict[str, Any]) -> Attempt:
    failure, place = fields["failure"], fields["resumed_at"]
    return Attempt(
        fields["generation"],
        fields["seconds"],
        None if failure is None else TaskFailure.from_dict(failure),
        None if place is None else Place(*place),
        tuple(map(TaskFailure.from_dict, fields.get("replaced", ()))),
        tuple((seconds, size) for seconds, size in fields.get("sizes", ())),
    )
