"""What the driver's half of a feature wants done, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from gridflow._feed.ledger import DatasetCounts
    from gridflow._wire.commands import Command


@dataclass(frozen=True)
class SendTo:
    """A command for one rank."""

    rank: int
    command: Command


@dataclass(frozen=True)
class SendAll:
    """A command for every task."""

    command: Command


@dataclass(frozen=True)
class Count:
    """How many rows a rank has, for the ledger."""

    dataset: str
    rank: int
    counts: DatasetCounts


@dataclass(frozen=True)
class Forget:
    """The lent rows of a dataset have reached their borrowers."""

    dataset: str


@dataclass(frozen=True)
class Unfit:
    """The rows of a dataset can't be fed, seen over all ranks."""

    reason: str


@dataclass(frozen=True)
class Differ:
    """A rank's rows, computed once more, aren't what they were."""

    rank: int
    reason: str


Act: TypeAlias = SendTo | SendAll | Count | Forget | Unfit | Differ
