"""A job on one page or in a terminal, read from its folder: ``gridflow report`` and ``top``."""

from __future__ import annotations

import html
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gridflow._coordinator import bottleneck, folders, journal, stimuli
from gridflow._coordinator.progress import histories
from gridflow._coordinator.record import read_result
from gridflow._files.local import write_whole
from gridflow._spec import markup
from gridflow._spec.cluster import Task
from gridflow._spec.markup import learning_curves
from gridflow._spec.printable import plain, printable
from gridflow.errors import InvalidArgument

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator, Mapping, Sequence

#: What the time of a fit is split into, and the colours of the parts on light and dark ground.
PARTS: Final = {
    "computing": "#2a6f97",
    "rows": "#e8731a",
    "ranks": "#8a8a8a",
    "callbacks": "#8f5bb5",
    "checkpoints": "#c9a227",
    "validation": "#3a9d6a",
}
_LOG_LINES: Final = 40
_LOG_BYTES: Final = 16 << 10
_REFRESH_SECONDS: Final = 5
#: Points of a curve by steps.
_MOST_POINTS: Final = 1000
_CLEAR: Final = "\x1b[H\x1b[2J"
#: Smaller shares of the time aren't told on the page, or shown in a terminal.
_TOLD, _SHOWN = 0.005, 0.05
#: Rows per second are those of the last seconds.
_RECENT_SECONDS: Final = 10.0


@dataclass
class TaskStory:
    """What is known of a task: where it runs, its last report, its rows and losses by time."""

    host: str = ""
    last: dict[str, Any] = field(default_factory=dict)
    recent: list[tuple[float, int]] = field(default_factory=list)
    losses: list[tuple[float, float]] = field(default_factory=list)

    @property
    def spent(self) -> Mapping[str, float]:
        found: Mapping[str, float] = self.last.get("spent", {})
        return found

    @property
    def where(self) -> str:
        if not self.last:
            return ""
        _, epoch, step, steps = self.last["place"]
        of = "" if steps is None else f" of {steps:,}"
        return f"epoch {epoch + 1}, step {step:,}{of}"

    @property
    def rows_per_second(self) -> float:
        if len(self.recent) < 2:  # noqa: PLR2004 (a rate needs two)
            return 0.0
        (began, before), (ended, now) = self.recent[0], self.recent[-1]
        return (now - before) / max(ended - began, 1e-9)

    def shares(self) -> dict[str, float]:
        """Return how the time of its fits is split, from 0 to 1; empty if that isn't known yet."""
        if not self.spent:
            return {}
        total = self.spent["total"] or 1.0
        found = {name: max(0.0, self.spent.get(name, 0.0)) / total for name in PARTS}
        found["computing"] = max(0.0, 1 - sum(found.values()))
        return found


@dataclass
class JobStory:
    """What a job's folder tells of it.

    `events`: When they were, in seconds since its beginning, and what happened.
    `ends`: How it has ended: the content of ``result.json``; empty while it runs.
    """

    folder: Path
    strategy: str
    tasks: dict[str, TaskStory]
    state: str = "gathering"
    seconds: float = 0.0
    events: list[tuple[float, str]] = field(default_factory=list)
    epochs: dict[tuple[int, int], dict[str, float]] = field(default_factory=dict)
    ends: dict[str, Any] = field(default_factory=dict)
    runs: bool = False

    @property
    def bottleneck(self) -> str:
        found = bottleneck.find({task: seen.spent for task, seen in self.tasks.items()})
        return "" if found is None else found.sentence


def read(folder: Path) -> JobStory:
    """Return what a job's folder tells, also while the job runs.

    Raises `InvalidArgument`: It isn't the folder of a job.
    """
    first, *rest = journal.read(folder)
    tasks = [Task.parse(name) for name in first.get("tasks", ())]
    job = JobStory(
        folder, str(first.get("strategy", "")), {str(task): TaskStory() for task in tasks}
    )
    began = next((line["begin"] for line in rest if "begin" in line), 0.0)
    for line in rest:
        job.seconds = max(job.seconds, line.get("at", began) - began)
        if "event" in line:
            _event(job, line, tasks, began)
        elif "rank" in line:
            _progress(job.tasks[str(tasks[line["rank"]])], line, began)
        elif "epoch" in line:
            fit, epoch = line["epoch"]
            job.epochs[fit, epoch] = line["logs"]
    job.ends = read_result(folder) or {}
    if job.ends:
        job.state, job.seconds = job.ends["state"], job.ends["seconds"]
    else:
        job.runs = any(each.path == folder and each.in_use for each in folders.find(folder.parent))
        job.state = job.state if job.runs else "killed"
    return job


def _event(job: JobStory, line: dict[str, Any], tasks: Sequence[Task], began: float) -> None:
    at = line["at"] - began
    if line["event"] == "Registered":
        job.tasks[str(tasks[line["agent"]["rank"]])].host = line["agent"]["host"]
    said = [each.removeprefix("say: ") for each in line["does"] if each.startswith("say: ")]
    if "phase" in line:
        job.state = line["phase"]
        job.events.append((at, f"{stimuli.story(stimuli.decode(line), tasks)} → {line['phase']}"))
    job.events += [(at, each) for each in said]


def _progress(seen: TaskStory, line: dict[str, Any], began: float) -> None:
    if line["phase"] == "train":
        recent = [one for one in seen.recent if line["at"] - one[0] <= _RECENT_SECONDS]
        seen.recent = [*(recent or seen.recent[-1:]), (line["at"], line["rows"])]
        loss = line["logs"].get("loss")
        if loss is not None:
            seen.losses.append((line["at"] - began, loss))
    seen.last = line if line["spent"] else {**line, "spent": seen.spent}


# The page -----------------------------------------------------------------------------------------

_STYLE: Final = """
:root { color-scheme: light dark; --line: #8886; --soft: #8882 }
html { background: Canvas; color: CanvasText }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72em; margin: 2em auto; padding: 0 1em }
table { border-collapse: collapse; margin: 1em 0; width: 100% }
th, td { padding: .25em .7em; border-bottom: 1px solid var(--line); text-align: left }
td { font-variant-numeric: tabular-nums }
.wide { overflow-x: auto }
.split { display: flex; height: 1em; min-width: 10em; background: var(--soft) }
.key { display: inline-block; width: .8em; height: .8em; margin: 0 .3em 0 1em }
.said { border-left: 4px solid #e8731a; padding-left: .8em }
pre { overflow-x: auto; background: var(--soft); padding: .6em }
"""


def page(job: JobStory) -> str:
    """Return a job as one HTML file that loads nothing; while the job runs it is reloaded."""
    name = html.escape(plain(job.folder.name))
    refresh = f"<meta http-equiv='refresh' content='{_REFRESH_SECONDS}'>" if job.runs else ""
    about = {"state": job.state, "time": f"{job.seconds:,.0f} s", "strategy": job.strategy}
    about |= {"folder": str(job.folder)}
    if job.ends.get("error"):
        about["error"] = f"{job.ends['error']['kind']}, exit code {job.ends['exit_code']}"
    parts = [
        f"<h1>Job {name}</h1>",
        markup.facts(about),
        f"<p class='said'>{html.escape(plain(job.bottleneck))}</p>" if job.bottleneck else "",
        _error(job),
        "<h2>Tasks</h2>",
        _tasks(job),
        "<h2>Training</h2>",
        *_curves(job),
        "<h2>Events</h2>",
        _events(job.events),
        "<h2>Logs</h2>",
        *(_log(job, task) for task in job.tasks),
    ]
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        f"<meta name='viewport' content='width=device-width'>{refresh}"
        f"<title>gridflow: {name}</title><style>{_STYLE}</style></head>"
        f"<body><main>{''.join(parts)}</main></body></html>\n"
    )


def _error(job: JobStory) -> str:
    error = job.ends.get("error")
    return markup.text(error["message"], "Why it failed") if error else ""


def _tasks(job: JobStory) -> str:
    head = "".join(f"<th scope='col'>{name}</th>" for name in _COLUMNS)
    rows = "".join(
        f"<tr><th scope='row'>{task}</th>{''.join(f'<td>{html.escape(c)}</td>' for c in cells)}"
        f"<td>{_split(seen.shares())}</td></tr>"
        for task, (seen, *cells) in _cells(job)
    )
    keys = "".join(
        f"<span><span class='key' style='background:{colour}'></span>{part}</span>"
        for part, colour in PARTS.items()
    )
    return (
        f"<div class='wide' tabindex='0' role='region' aria-label='Tasks'><table>"
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div><p>{keys}</p>"
    )


_COLUMNS: Final = ("task", "host", "phase", "place", "rows", "rows/s", "time")


def _cells(job: JobStory) -> Iterator[tuple[str, tuple[Any, ...]]]:
    for task, seen in job.tasks.items():
        rows = f"{seen.last.get('rows', 0):,}" if seen.last else ""
        rate = f"{seen.rows_per_second:,.0f}" if seen.rows_per_second else ""
        phase = seen.last.get("phase", "no step yet")
        yield task, (seen, seen.host, phase, seen.where, rows, rate)


def _split(shares: Mapping[str, float]) -> str:
    """Return a bar, whose parts are told to those who don't see it."""
    if not shares:
        return ""
    told = ", ".join(f"{name} {share:.0%}" for name, share in shares.items() if share >= _TOLD)
    bars = "".join(
        f"<span style='width:{share:.2%};background:{PARTS[name]}'></span>"
        for name, share in shares.items()
    )
    return f"<div class='split' role='img' aria-label='{told}' title='{told}'>{bars}</div>"


def _curves(job: JobStory) -> Iterator[str]:
    if not job.epochs and not any(seen.losses for seen in job.tasks.values()):
        yield "<p>No step has been reported.</p>"
    for number, history in enumerate(histories(job.epochs)):
        of = f" of fit {number + 1}" if len({fit for fit, _ in job.epochs}) > 1 else ""
        yield f"<h3>Epochs{of}</h3>{learning_curves(history)}"
        yield f"<details><summary>Numbers{of}</summary>{markup.numbers(history)}</details>"
    losses = next((seen.losses for seen in job.tasks.values() if seen.losses), [])
    if losses:
        stride = -(-len(losses) // _MOST_POINTS)
        values = [loss for _, loss in losses[::stride]]
        yield f"<h3>Loss by time</h3>{learning_curves({'loss': values}, of='report')}"


def _events(events: Iterable[tuple[float, str]]) -> str:
    rows = "".join(
        f"<tr><td>{at:,.1f} s</td><td>{html.escape(plain(what))}</td></tr>" for at, what in events
    )
    head = "<thead><tr><th scope='col'>after</th><th scope='col'>what happened</th></tr></thead>"
    return f"<table>{head}<tbody>{rows}</tbody></table>"


def _log(job: JobStory, task: str) -> str:
    path = job.folder / "logs" / f"{task.replace(':', '-')}.log"
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _LOG_BYTES))
            lines = file.read().decode("utf-8", "replace").splitlines()[-_LOG_LINES:]
    except OSError:
        return ""
    return markup.text("\n".join(lines), f"{task}: the last {len(lines)} lines") if lines else ""


# The terminal -------------------------------------------------------------------------------------


def text(job: JobStory) -> str:
    """Return a job as lines for a terminal."""
    rows = [_COLUMNS]
    for task, (seen, *cells) in _cells(job):
        split = "  ".join(
            f"{name} {share:.0%}" for name, share in seen.shares().items() if share >= _SHOWN
        )
        rows.append((task, *cells, split))
    widths = [max(len(row[at]) for row in rows) for at in range(len(_COLUMNS))]
    lines = [f"{job.folder.name}: {job.state} after {job.seconds:,.0f} s", ""]
    for row in rows:
        padded = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        lines.append("  ".join(padded).rstrip())
    if job.bottleneck:
        lines += ["", job.bottleneck]
    if job.events:
        lines += ["", *(f"{at:8.1f} s  {what}" for at, what in job.events[-5:])]
    return printable("\n".join(lines)) + "\n"


# The command line ---------------------------------------------------------------------------------


def _folder(given: str | None) -> Path:
    if given is not None:
        return Path(given).absolute()
    found = folders.find(folders.default_folder())
    if not found:
        raise InvalidArgument(
            "there is no job in the temporary folder; name the folder of one: 'gridflow jobs' "
            "lists them."
        )
    return found[0].path


def _watched(folder: Path, seconds: float, *, once: bool) -> Iterator[JobStory]:
    """Yield a job, and again until it has ended."""
    while True:
        job = read(folder)
        yield job
        if once or not job.runs:
            return
        time.sleep(seconds)


def command(arguments: argparse.Namespace) -> int:
    """Run ``gridflow report``: write a page, and again as long as the job runs if that is asked."""
    folder = _folder(arguments.folder)
    path = Path(arguments.output) if arguments.output else folder / "report.html"
    for number, job in enumerate(_watched(folder, _REFRESH_SECONDS, once=not arguments.follow)):
        write_whole(path, page(job))
        if not number:
            sys.stdout.write(f"{path}\n")
            sys.stdout.flush()
    return 0


def top(arguments: argparse.Namespace) -> int:
    """Run ``gridflow top``: show a job until it has ended; without a terminal, once."""
    is_shown = sys.stdout.isatty()
    for job in _watched(_folder(arguments.folder), arguments.seconds, once=not is_shown):
        sys.stdout.write((_CLEAR if is_shown else "") + text(job))
        sys.stdout.flush()
    return 0
