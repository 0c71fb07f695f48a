"""What holds a training back, in a sentence. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    Seconds = Mapping[str, float]

#: A smaller share of the time holds no training back.
_SHARE: Final = 0.15
#: Seconds of a step that aren't told apart from calling TensorFlow.
_NOISE: Final = 0.0005
#: Steps and seconds from which on shares say something.
_STEPS, _SECONDS = 10, 1.0
#: A step that takes so many seconds is mostly fixed costs; one of few rows also if it takes more.
_TINY, _TINY_OF_FEW, _FEW_ROWS = 0.005, 0.03, 16
#: What is at work for such a part of the time that batches are waited for is the cause.
_AT_WORK: Final = 0.5
#: A rank whose steps compute so many times as long as others' is slow.
_SLOWER: Final = 1.3
#: Whoever waits so many times as long as the rank that waits least waits for that.
_WAITS_MORE: Final = 2.0

_SPENT: Final = {
    "rows": "waits for rows",
    "callbacks": "is in callbacks",
    "checkpoints": "makes checkpoints",
    "validation": "validates",
}


@dataclass(frozen=True)
class Bottleneck:
    """What holds a training back.

    `task`: The task that the others wait for, or the only one.
    `cause`: ``arriving`` (rows, before the first step), ``rows``, ``callbacks``, ``checkpoints``,
        ``validation``, ``slow`` (its host), ``fixed`` (costs of steps of few rows) or
        ``computing``.
    `share`: Of its time, from 0 to 1.
    `seconds`: How long it has been measured.
    """

    task: str
    cause: str
    share: float
    seconds: float
    sentence: str


def find(spent: Mapping[str, Seconds]) -> Bottleneck | None:
    """Return what holds a training back; None if it is too early to say.

    `spent`: See `gridflow._keras.due.Spent.report`.
    """
    known = {
        task: each
        for task, each in spent.items()
        if each.get("steps", 0) >= _STEPS and each["total"] >= _SECONDS
    }
    if not known:
        return None
    task = min(known, key=lambda each: _waits(known[each]))
    mine = known[task]
    total, steps, arriving = mine["total"], mine["steps"], mine["arriving"]
    if arriving >= max(_SECONDS, total):
        words = (
            f"{task} waited {arriving:.0f} s for its rows before the first step, and trained for "
            f"{total:.0f} s: {_late(mine)}. ctx.dataset(start='early') trains on some while others "
            "are still to come"
        )
        return Bottleneck(task, "arriving", arriving / (total + arriving), total + arriving, words)
    others = _others(known, task)
    cause = max(_SPENT, key=lambda kind: mine[kind])
    share = mine[cause] / total
    if share >= _SHARE and mine[cause] / steps >= _NOISE:
        words = f"{task} {_SPENT[cause]} {share:.0%} of the time{others}: {_remedy(cause, mine)}"
        return Bottleneck(task, cause, share, total, words)
    share = _computes(mine) / total
    words = f"{task} computes {share:.0%} of the time{others}"
    times = _times_slower(known, task) if others else 1.0
    if times >= _SLOWER:
        words += f": its steps take {times:.1f} times as long. Is its host slower, or busy?"
        return Bottleneck(task, "slow", share, total, words)
    few = 0 < mine["rows_a_step"] <= _FEW_ROWS
    if total / steps < (_TINY_OF_FEW if few else _TINY):
        of = f" of {mine['rows_a_step']:.0f} rows" if mine["rows_a_step"] else ""
        words = (
            f"a step{of} takes {1000 * total / steps:.1f} ms, most of which would be the same for "
            "more rows: try a larger batch_size, or compile(steps_per_execution=)"
        )
        return Bottleneck(task, "fixed", share, total, words)
    return Bottleneck(task, "computing", share, total, words)


def _waits(seconds: Seconds) -> float:
    """Return the share of its time that a task waits for others."""
    return seconds["ranks"] / seconds["total"]


def _computes(seconds: Seconds) -> float:
    return seconds["total"] - seconds["ranks"] - sum(seconds[kind] for kind in _SPENT)


def _others(known: Mapping[str, Seconds], task: str) -> str:
    """Return which others wait for a task, if that takes long."""
    least = max(_SHARE, _WAITS_MORE * _waits(known[task]))
    there = {
        other: _waits(each)
        for other, each in known.items()
        if _waits(each) >= least and each["ranks"] / each["steps"] >= _NOISE
    }
    if not there:
        return ""
    who = next(iter(there)) + " waits" if len(there) == 1 else f"{len(there)} others wait"
    return f", and {who} for it {max(there.values()):.0%}"


def _times_slower(known: Mapping[str, Seconds], task: str) -> float:
    fastest = min(_computes(each) / each["steps"] for name, each in known.items() if name != task)
    return _computes(known[task]) / known[task]["steps"] / max(fastest, 1e-9)


def _remedy(cause: str, mine: Seconds) -> str:
    match cause:
        case "rows" if mine.get("coming", 0.0) >= _AT_WORK * mine["rows"]:
            return f"they are still to come; {_late(mine)}"
        case "rows" if mine["source"] >= _AT_WORK * mine["rows"]:
            return (
                "reading them takes that long. A local, faster disk or fewer columns help, and "
                "ctx.dataset(prefetch=) where only some batches are late"
            )
        case "rows":
            return (
                "what the program does with them takes that long (map=, functions of tf.data, a "
                "generator). num_parallel_calls=tf.data.AUTOTUNE and prefetch() do it beside the "
                "steps"
            )
        case "callbacks" if mine["batch_callbacks"] >= _AT_WORK * mine["callbacks"]:
            return "those of each batch. Let them do less, or only at the end of an epoch"
        case "callbacks":
            return "those at the ends of epochs. Let them do less, or make epochs longer"
        case "checkpoints":
            return "a larger checkpoint_every= makes fewer of them"
        case _:
            return "a larger validation_freq= or fewer rows make it shorter"


def _late(mine: Seconds) -> str:
    """Return why rows come late, as far as that is known, and what helps."""
    inflow, faster = mine.get("inflow", 0.0), "more executors or partitions compute them faster"
    if not inflow:
        return faster
    rate = f"{mine['inflow_bytes'] / inflow / 1e6:,.1f} MB/s"
    share = mine["upstream"] / inflow
    if share >= _AT_WORK:
        return (
            f"computing them took {share:.0%} of the time in which they came, at {rate}; {faster}, "
            "and a cached DataFrame the next time"
        )
    return (
        f"storing them took {1 - share:.0%} of the time in which they came, at {rate}; a faster "
        "disk for Spool(dir=) and fewer columns help"
    )
