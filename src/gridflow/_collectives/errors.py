"""Errors of collective operations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gridflow._collectives import native

if TYPE_CHECKING:
    from collections.abc import Sequence

_WORDS: Final = {
    "late": "rank {rank} did not come in time (CommunicationOptions(timeout_seconds=)).",
    "left": (
        "rank {rank} has returned from its function, so it takes part in no more sums: the ranks "
        "are in different operations."
    ),
    "gone": "connection closed by peer: rank {rank} has left the sum over all ranks.",
    "cut": (
        "the host of rank {rank} can't be reached: it hasn't answered for two minutes. It, or the "
        "network between the two hosts, has failed."
    ),
}


#: The first words about ranks that called different operations.
DIFFER: Final = "rank {rank} and this one are in different collective operations."


class PeerGone(ConnectionError):
    """Another rank has closed its connection, because it ended or was ended; or it is cut off."""


class GroupChanges(PeerGone):
    """A rank that was away takes part again: the group forms anew, though none was lost."""


class RanksDiffer(RuntimeError):
    """Ranks called different operations."""


class Missing(Exception):
    """The rank that this one waits for in vain, itself or by what another rank told.

    It stays within the group, whose other ranks are told, too: they may be waiting for this one.

    `why`: {'late', 'left', 'gone', 'cut'}.
    `is_told`: Whether another rank said so.
    """

    def __init__(self, rank: int, why: str, *, is_told: bool = False) -> None:
        super().__init__(rank, why)
        self.rank, self.why, self.is_told = rank, why, is_told

    def error(self, names: Sequence[int]) -> PeerGone | RanksDiffer | TimeoutError:
        """Return the error for the user.

        `names`: What it calls the ranks.
        """
        words = _WORDS[self.why].format(rank=names[self.rank])
        if self.why == "left":
            return RanksDiffer(words)
        return TimeoutError(words) if self.why == "late" else PeerGone(words)


def is_loss(error: BaseException | None) -> bool:
    """Return whether an error says that a rank was lost in an exchange."""
    while error is not None:
        if isinstance(error, PeerGone) or PeerGone.__name__ in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def formats() -> dict[int, bytes]:
    """Return how errors begin, by the ends of an exchange in C, which puts in the rank."""
    found = {how: Missing(0, why).error([0]) for how, why in native.WHYS.items()}
    words = {
        how: f"{type(error).__name__}: {_WORDS[native.WHYS[how]]}" for how, error in found.items()
    }
    for how in (native.IN_ANOTHER, native.OTHER_SHAPES):
        words[how] = f"{RanksDiffer.__name__}: {DIFFER}"
    return {how: each.format(rank="%d").encode() for how, each in words.items()}
