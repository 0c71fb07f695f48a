"""What notebooks show of a job, as HTML. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gridflow._spec import markup
from gridflow._spec.cluster import TRAINING_ROLES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gridflow._coordinator.progress import JobReport, TaskProgress
    from gridflow._spec.cluster import Task
    from gridflow._wire.failures import Attempt, TaskFailure


def report_view(report: JobReport, name: str, tasks: Sequence[Task]) -> str:
    """Return the state of a job, each task's progress, and the losses so far.

    `name`: The job's.
    `tasks`: All of them: those that train are shown even if they haven't reported a step.
    """
    about = {"job": name, "state": report.state, "epochs": f"{report.epochs:,} complete"}
    if report.generation:
        about["generation"] = f"{report.generation} (restarts so far)"
    if report.away:
        about["away"] = ", ".join(report.away)
    if report.tensorboard_url:
        about["tensorboard"] = report.tensorboard_url
    metrics = dict.fromkeys(name for each in report.tasks.values() for name in each.logs)
    rows = (
        _progress(str(task), report.tasks.get(str(task)), metrics)
        for task in tasks
        if task.role in TRAINING_ROLES or str(task) in report.tasks
    )
    shown = markup.facts(about) + markup.table(["task", "phase", "epoch", "step", *metrics], rows)
    shown += failures_view(each for each in report.failures if each.generation < report.generation)
    return shown + (markup.history_view(report.history) if report.history else "")


def _progress(task: str, progress: TaskProgress | None, metrics: Iterable[str]) -> list[object]:
    if progress is None:
        return [task, "no step yet", "", "", *("" for _ in metrics)]
    place, steps = progress.place, progress.steps_per_epoch
    step = f"{place.step:,}" if steps is None else f"{place.step:,} of {steps:,}"
    values = (progress.logs.get(name, "") for name in metrics)
    return [task, progress.phase, place.epoch + 1, step, *values]


def failures_view(failures: Iterable[TaskFailure]) -> str:
    """Return what went wrong: a line for each failure, and behind it all that is known of it."""
    return "".join(
        markup.text(each.describe(), f"generation {each.generation}: {each.task}: {each.summary}")
        for each in failures
    )


def error_view(error: BaseException) -> str:
    """Return the error that a job ended with."""
    first, *_ = str(error).splitlines() or [""]
    return markup.text(str(error), f"{type(error).__name__}: {first}")


def attempts_view(attempts: Sequence[Attempt]) -> str:
    """Return a row for each generation, if there were several, and what ended them."""
    if not attempts[1:] and not any(each.replaced for each in attempts):
        return ""  # one says nothing that isn't known
    rows = (
        [
            each.generation,
            f"{each.seconds:.1f} s",
            "the beginning" if each.resumed_at is None else str(each.resumed_at),
            ", ".join(failure.task for failure in each.replaced),
            ", ".join(str(size) for _, size in each.sizes),
            "" if each.failure is None else each.failure.task,
        ]
        for each in attempts
    )
    columns = ["generation", "ran", "started from", "replaced", "workers went on", "ended by"]
    shown = markup.table(columns, rows)
    failures = [each for one in attempts for each in (*one.replaced, one.failure) if each]
    return shown + failures_view(failures)
