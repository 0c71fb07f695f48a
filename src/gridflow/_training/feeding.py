"""Rows for the training function: ``ctx.dataset`` and what goes with it."""

from __future__ import annotations

import functools
import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from gridflow._spec.option_checks import choose, whole_number
from gridflow._training.modes.base import DatasetRequest
from gridflow._wire.child import RowsAwaited
from gridflow._wire.commands import Arrived, Counts
from gridflow._wire.reports import EpochFed
from gridflow.errors import GridflowError, SchemaError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from gridflow._feed.plan.epochs import Tail
    from gridflow._feed.plan.grants import Standing
    from gridflow._feed.selection import Columns
    from gridflow._training.inbox import Inbox
    from gridflow._training.runtime import TaskRuntime
    from gridflow._wire.channel import Channel

#: Numbers the folders of `adapt_dataset`.
_adapted = itertools.count(1)


def dataset(runtime: TaskRuntime, request: DatasetRequest, start: Start) -> Any:
    """See `TrainingContext.dataset`."""
    choose("start", start, STARTS)
    if start == "early":
        return _early(runtime, request)
    name = request.name
    with runtime.spent.awaiting_rows():
        rows, own_rows = _rows(runtime, name), _own_rows(runtime, name)
    _check_columns(runtime, name, *request.columns.values())
    return runtime.mode.dataset(replace(request, rows=rows, own_rows=own_rows))


def _early(runtime: TaskRuntime, request: DatasetRequest) -> Any:
    """Return a dataset as soon as each rank has some of its rows."""
    from gridflow._feed.dataset.distributed import distribute
    from gridflow._feed.plan.epochs import EpochCounter
    from gridflow._feed.plan.grants import ArrivingGrant

    name, batch_size, tail = request.name, request.batch_size, request.tail
    strategy = runtime.mode.early_strategy()
    check(batch_size, tail)
    with runtime.spent.awaiting_rows():
        wait_for_some(runtime.inbox, runtime.channel, name)

    @functools.cache
    def settled() -> None:
        _check_columns(runtime, name, *request.columns.values())

    def wait_for(condition: Callable[[], bool], seconds: float | None) -> bool:
        if not condition():
            runtime.hurry()
        return runtime.inbox.wait_for(condition, seconds)

    counter = EpochCounter()
    runtime.epoch_counters.append(counter)  # shuffled or not: the first epoch is another one
    grant = ArrivingGrant(
        functools.partial(look, runtime.inbox, name),
        wait_for,
        batch_size=batch_size,
        tail=tail,
        settled=settled,
        on_begun=runtime.hurry,
    )
    return distribute(
        strategy,
        runtime.spool(name, growing=True),
        grant=grant,
        **request.columns,
        **request.shuffling(runtime),
        batch_size=batch_size,
        tail=tail,
        prefetch=request.ahead,
        rank=runtime.rank,
        own_rows=functools.partial(_own_rows, runtime, name),
        counter=counter,
        on_epoch=lambda record: runtime.channel.send(EpochFed(record)),
        function=request.function,
    )


def adapt_dataset(
    runtime: TaskRuntime, name: str, *, features: Columns, batch_size: int, rows: int | None
) -> Any:
    """See `TrainingContext.adapt_dataset`."""
    from gridflow._feed import allgather
    from gridflow._feed.selection import select

    counts, facts, mode = _rows(runtime, name), runtime.facts, runtime.mode
    if facts.hands_out_steps:
        raise GridflowError(
            f"ctx.adapt_dataset() isn't available with strategy={facts.name!r}, because its chief "
            "has no rows. Adapt the layers in the driver and pass them to the function."
        )
    share = _own_rows(runtime, name)[runtime.rank]
    together = runtime.trains_together
    _check_columns(runtime, name, features)
    if rows is not None:
        ranks = len(counts) if together else 1
        share = min(share, -(-whole_number("rows", rows, 1) // ranks))
    reader = runtime.spool(name)
    columns = select(reader.specs, features, dataset=name).columns
    gather = mode.gather if together else _of_this_rank
    folder = runtime.work_dir / f"adapt-{next(_adapted)}"
    request = DatasetRequest(
        name,
        batch_size,
        features,
        rows=counts,
        own_rows=counts,
        gathered=allgather.write(reader, columns, share, folder, gather),
    )
    return mode.dataset(request)


def steps_per_epoch(runtime: TaskRuntime, name: str, batch_size: int, tail: Tail) -> int:
    """See `TrainingContext.steps_per_epoch`."""
    from gridflow._feed.plan import epochs

    rows = _rows(runtime, name)
    if runtime.facts.hands_out_steps:  # those of all workers together
        own = _own_rows(runtime, name)
        size = whole_number("batch_size", batch_size, 1)
        return sum(-(-each // size) for each in own)
    return epochs.steps_for(rows, batch_size, tail)


def _rows(runtime: TaskRuntime, name: str) -> Sequence[int]:
    if runtime.inbox.latest(Counts) is None:
        runtime.hurry()
    rows: dict[str, list[int]] = runtime.inbox.wait(Counts).rows
    refuse_unknown(name, rows)
    return rows[name]


def _own_rows(runtime: TaskRuntime, name: str) -> Sequence[int]:
    """Return the number of each rank's rows, without those borrowed from other ranks."""
    from gridflow._feed.dataset import evaluation_view

    rows = _rows(runtime, name)
    return evaluation_view.own_rows(rows, runtime.inbox.wait(Counts).borrowed[name])


def _check_columns(runtime: TaskRuntime, name: str, *forms: Columns | None) -> None:
    """Reject columns that aren't fed; report if unused columns have cost rows."""
    from gridflow._feed import selection

    counts = runtime.inbox.wait(Counts)
    used = selection.named(*forms)
    selection.refuse_left_out(used, counts.left_out.get(name, {}))
    others = {
        column: rows for column, rows in counts.nulls.get(name, {}).items() if column not in used
    }
    if others and runtime.is_chief:
        listed = ", ".join(f"{rows:,} in {column!r}" for column, rows in others.items())
        print(  # noqa: T201 (into the task's log)
            f"gridflow: nulls='drop' has dropped rows of {name!r} for nulls in columns that "
            f"this ctx.dataset() doesn't use: {listed}. Leave such columns out of the data to "
            "keep the rows.",
            flush=True,
        )


def _of_this_rank(content: bytes) -> list[bytes]:
    return [content]


# Rows that are still arriving, as seen by the training process.

Start = Literal["complete", "early"]
#: When ``ctx.dataset`` returns: with all rows, or with the first ones.
STARTS: Final = get_args(Start)
_TAILS: Final = ("spread", "repeat", "drop")


def check(batch_size: int, tail: str) -> None:
    """Reject arguments that can't make an epoch, before waiting for any row."""
    whole_number("batch_size", batch_size, 1)
    choose("tail", tail, _TAILS)


def wait_for_some(inbox: Inbox, channel: Channel, name: str) -> None:
    """Wait until each rank has rows of a dataset, or all have arrived.

    Raises `SchemaError`: There is no such dataset.
    """
    channel.send(RowsAwaited(early=True))

    def is_there() -> bool:
        arrived = inbox.latest(Arrived)
        some = arrived is not None and arrived.certain.get(name, 1) > 0
        return some or inbox.latest(Counts) is not None

    inbox.wait_for(is_there)
    counts, arrived = inbox.latest(Counts), inbox.latest(Arrived)
    refuse_unknown(name, counts.rows if counts is not None else arrived.certain if arrived else {})


def look(inbox: Inbox, name: str) -> Standing:
    """Return what is known about a dataset's rows so far."""
    from gridflow._feed.plan.grants import Standing

    counts, arrived = inbox.latest(Counts), inbox.latest(Arrived)
    if counts is not None:
        return Standing(counts=tuple(counts.rows[name]))
    if arrived is not None:
        return Standing(arrived.certain[name], arrived.going_on[name])
    return Standing()


def refuse_unknown(name: str, datasets: Collection[str]) -> None:
    """Reject the name of a dataset that doesn't exist."""
    if name not in datasets:
        there = ", ".join(repr(each) for each in datasets) or "none: run() was given no data="
        raise SchemaError(
            f"unknown dataset {name!r}; there is {there}.{did_you_mean(name, datasets)}"
        )
