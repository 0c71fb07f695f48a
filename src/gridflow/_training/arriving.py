"""Rows that are still arriving, as seen by the training process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, get_args

from gridflow._spec.option_checks import choose, whole_number
from gridflow._wire.child import RowsAwaited
from gridflow._wire.commands import Arrived, Counts
from gridflow.errors import SchemaError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Collection

    from gridflow._feed.plan.grants import Standing
    from gridflow._training.inbox import Inbox
    from gridflow._wire.channel import Channel

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
