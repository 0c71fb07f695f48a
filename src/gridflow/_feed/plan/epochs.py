"""The plan of an epoch: which rows make up which batch. Pure numpy, reads no data.

A rank's rows are in chunks. The plan orders blocks of consecutive rows, goes through them (starting
over if rows must be repeated), and cuts the sequence into windows of whole batches. With shuffling,
the order of blocks and the rows inside each window are permuted. Every window has its own random
generator, so any batch can be found without the ones before it. `EpochCounter` says where the next
iteration of a dataset starts.
"""

from __future__ import annotations

import functools
import math
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

import numpy as np

from gridflow.errors import DataError, InvalidArgument, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

__all__ = [
    "TAILS",
    "Absence",
    "BatchPlan",
    "ChunkPiece",
    "EpochCounter",
    "Tail",
    "Window",
    "missed_batches",
    "rank_seed",
    "steps_for",
]


Tail = Literal["spread", "repeat", "drop", "partial"]
#: How uneven ranks run equal steps: each rank spreads its rows over all batches, whose sizes differ
#: by one; short ranks repeat rows; rows that don't fill a batch on every rank are left out; or the
#: last batch is smaller (only for a process that reads alone).
TAILS: Final = ("spread", "repeat", "drop", "partial")
#: A window mixes rows of about this many parts of the spool.
_BLOCKS_PER_WINDOW: Final = 16


def steps_for(
    counts_per_rank: Sequence[int] | Mapping[int, int], batch_size: int, tail: Tail = "spread"
) -> int:
    """Return the steps of an epoch, the same for all ranks.

    `counts_per_rank`: Rows of each rank.
    `batch_size`: Rows per rank and step; with ``"spread"``, the maximum of a batch.
    `tail` ({"spread", "repeat", "drop", "partial"}): ``"spread"`` and ``"repeat"``: as many steps
        as the rank with the most rows needs. ``"drop"``: as many as the rank with the fewest rows
        can fill. ``"partial"``: a single rank, all rows, the last batch smaller.
    Raises `DataError`: A rank has no row that it could repeat, or there would be no step.
    """
    _check(batch_size, tail)
    if isinstance(counts_per_rank, dict):
        counts_per_rank = [counts_per_rank[rank] for rank in sorted(counts_per_rank)]
    counts = [int(n) for n in counts_per_rank]
    listed = ", ".join(f"rank {rank}: {n:,}" for rank, n in enumerate(counts))
    if not counts:
        raise InvalidArgument("counts_per_rank is empty: there is no rank to feed.")
    if tail == "partial":
        if len(counts) > 1:
            raise InvalidArgument(
                f"tail='partial' is for a process that trains alone, but there are {len(counts)} "
                "ranks. Use 'spread', 'repeat' or 'drop'."
            )
        steps = math.ceil(counts[0] / batch_size)
    elif tail == "drop":
        steps = min(counts) // batch_size
    else:
        steps = math.ceil(max(counts) / batch_size)
    if steps == 0 and tail == "drop":
        raise DataError(
            f"with batch_size={batch_size} and tail='drop' an epoch has no step: every rank needs "
            f"{batch_size} rows ({listed}). Use a smaller batch_size, fewer workers, more rows, or "
            "tail='spread'."
        )
    if min(counts) == 0:
        raise DataError(
            f"a rank has no rows to train on ({listed}). Use fewer workers, or more rows; rows "
            f"are spread evenly when the feed repartitions the DataFrame (repartition='always')."
        )
    return steps


def rank_seed(seed: int, rank: int) -> int:
    """Return a seed for a rank, so that ranks shuffle differently."""
    return int(np.random.SeedSequence([seed, rank]).generate_state(1, np.uint64)[0])


class ChunkPiece(NamedTuple):
    """Consecutive rows of one chunk, and their start in the window (before permuting)."""

    chunk: int
    start: int
    stop: int
    at: int


@dataclass(frozen=True)
class Window:
    """Consecutive batches, and their rows.

    `first_batch`: The number of its first batch in the epoch.
    `pieces`: Where the rows come from.
    `positions`: Row ``piece.at + i`` of the pieces goes to row ``positions[piece.at + i]`` of the
        window; None keeps the order.
    """

    first_batch: int
    batch_rows: tuple[int, ...]
    pieces: tuple[ChunkPiece, ...]
    positions: np.ndarray | None

    @property
    def rows(self) -> int:
        return sum(self.batch_rows)

    @functools.cached_property
    def sources(self) -> np.ndarray | None:
        """Which row of the pieces each row of the window is; None where they have its order."""
        if self.positions is None:
            return None
        wanted = self.positions >= 0
        sources = np.empty(self.rows, np.int64)
        sources[self.positions[wanted]] = np.flatnonzero(wanted)
        return sources


@dataclass(frozen=True)
class BatchPlan:
    """The rows of each batch in one epoch of one rank; the same arguments give the same plan.

    `segment_rows`: Rows in each chunk of the spool.
    `batch_size`: Rows in each batch; with ``tail="spread"``, the maximum.
    `steps`: Batches in the epoch (see `steps_for`).
    `tail` ({"spread", "repeat", "drop", "partial"}): See `steps_for`. With ``"spread"`` larger
        batches come first, and rows are repeated only if there are fewer rows than batches, each of
        which has at least one.
    `shuffle`: Whether to permute blocks, then rows within windows.
    `seed`: Combine it with the rank using `rank_seed`.
    `epoch`: Each epoch has a different order.
    `window_rows`: Approximate number of rows permuted together and held in memory.
    `rows_wanted`: With ``"spread"``: plan as for this number of rows, if there are fewer. For ranks
        whose batches must have equal sizes.
    `multiple`: With ``"spread"``: the size of each batch is a multiple of this.
    `chunks_together`: With ``shuffle``: how many chunks are used up before the next ones are
        started, if returning to a chunk is expensive; 0 for all.
    """

    segment_rows: Sequence[int]
    batch_size: int
    steps: int
    tail: Tail = "spread"
    shuffle: bool = False
    seed: int = 0
    epoch: int = 0
    window_rows: int = 65_536
    rows_wanted: int = 0
    multiple: int = 1
    chunks_together: int = 0
    #: Rows of the rank.
    rows: int = field(init=False)
    #: Rows in all batches, including repeated ones.
    rows_fed: int = field(init=False)

    def __post_init__(self) -> None:
        _check(self.batch_size, self.tail)
        for name in ("steps", "seed", "epoch"):
            if getattr(self, name) < 0:
                raise InvalidArgument(f"{name} can't be negative, got {getattr(self, name)}.")
        if self.window_rows < 1:
            raise InvalidArgument(f"window_rows must be positive, got {self.window_rows}.")
        rows = int(sum(self.segment_rows))
        wanted = self.steps * self.batch_size
        if self.tail == "partial":
            wanted = min(wanted, rows)
        if self.tail == "spread":
            wanted = self._spread(rows)
        if wanted > rows and (self.tail == "drop" or rows == 0):
            raise InvalidArgument(
                f"{self.steps} steps of {self.batch_size} rows need {wanted} rows, but there are "
                f"{rows}, and tail={self.tail!r} repeats none."
            )
        object.__setattr__(self, "rows", rows)
        object.__setattr__(self, "rows_fed", wanted)

    def _spread(self, rows: int) -> int:
        if not self.steps:
            return 0
        parts = max(math.ceil(max(rows, self.rows_wanted) / self.multiple), self.steps)
        largest = math.ceil(parts / self.steps) * self.multiple
        if largest > self.batch_size:
            raise InvalidArgument(
                f"{max(rows, self.rows_wanted)} rows don't fit into {self.steps} batches of up to "
                f"{self.batch_size} rows, in multiples of {self.multiple}."
            )
        return parts * self.multiple

    @property
    def is_even(self) -> bool:
        """Whether all batches have ``batch_size`` rows."""
        return self.rows_fed == self.steps * self.batch_size

    @property
    def rows_repeated(self) -> int:
        """Rows that the epoch feeds repeatedly."""
        return max(0, self.rows_fed - self.rows)

    @property
    def rows_left_out(self) -> int:
        """Rows that the epoch doesn't use."""
        return max(0, self.rows - self.rows_fed)

    def rows_before(self, batch: int) -> int:
        """Return the number of rows in the batches before this one."""
        if self.tail != "spread" or not self.steps:
            return min(batch * self.batch_size, self.rows_fed)
        size, larger = divmod(self.rows_fed // self.multiple, self.steps)
        return (batch * size + min(batch, larger)) * self.multiple

    def windows(self, start_batch: int = 0) -> Iterator[Window]:
        """Yield the windows from ``start_batch`` on, which is the first batch of the first window.

        Raises `InvalidArgument`: The epoch has fewer batches.
        """
        if not 0 <= start_batch <= self.steps:
            raise InvalidArgument(
                f"start_batch must be from 0 to the epoch's {self.steps} steps, got {start_batch}."
            )
        return self._windows(start_batch)

    def _windows(self, start_batch: int) -> Iterator[Window]:
        blocks = self._blocks()
        ends = np.cumsum([stop - start for _, start, stop in blocks])
        per_window = max(1, self.window_rows // self.batch_size)
        skip = start_batch % per_window
        for index in range(start_batch // per_window, math.ceil(self.steps / per_window)):
            first = index * per_window
            last = min(first + per_window, self.steps)
            begin, end = self.rows_before(first), self.rows_before(last)
            pieces = tuple(_cut(blocks, ends, begin, end))
            positions = None
            if self.shuffle:
                positions = self._random(1, index).permutation(end - begin)
            sizes = tuple(self.rows_before(b + 1) - self.rows_before(b) for b in range(first, last))
            window = Window(first, sizes, pieces, positions)
            if skip:
                window = _without_first(window, skip)
                skip = 0
            if window.batch_rows:
                yield window

    def _blocks(self) -> list[tuple[int, int, int]]:
        """Return all rows as (chunk, start, stop), in the epoch's order."""
        chunks = np.arange(len(self.segment_rows))
        if not self.shuffle:
            return self._cut_up(chunks, max(1, self.rows))
        size = max(1, self.window_rows // _BLOCKS_PER_WINDOW)
        if not self.chunks_together:
            return _permuted(self._cut_up(chunks, size), self._random(0, 0))
        chunks = self._random(0, 0).permutation(chunks)
        blocks = []
        for number, start in enumerate(range(0, len(chunks), self.chunks_together)):
            gang = self._cut_up(chunks[start : start + self.chunks_together], size)
            blocks += _permuted(gang, self._random(2, number))
        return blocks

    def _cut_up(self, chunks: np.ndarray, size: int) -> list[tuple[int, int, int]]:
        return [
            (chunk, start, min(start + size, self.segment_rows[chunk]))
            for chunk in chunks.tolist()
            for start in range(0, self.segment_rows[chunk], size)
        ]

    def _random(self, purpose: int, index: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, self.epoch, purpose, index])


def _check(batch_size: int, tail: str) -> None:
    if isinstance(batch_size, bool) or int(batch_size) != batch_size or batch_size < 1:
        raise InvalidArgument(f"batch_size must be a whole number above 0, got {batch_size!r}.")
    if tail not in TAILS:
        raise InvalidArgument(
            f"tail must be one of {', '.join(map(repr, TAILS))}, got {tail!r}."
            f"{did_you_mean(str(tail), TAILS)}"
        )


def _permuted(
    blocks: list[tuple[int, int, int]], random: np.random.Generator
) -> list[tuple[int, int, int]]:
    return [blocks[i] for i in random.permutation(len(blocks))]


def _cut(
    blocks: list[tuple[int, int, int]], ends: np.ndarray, begin: int, end: int
) -> Iterator[ChunkPiece]:
    """Yield the pieces for a range of rows of the blocks, repeated endlessly."""
    rows = int(ends[-1]) if len(ends) else 0
    at = begin
    block = int(np.searchsorted(ends, begin % rows, side="right")) if rows else 0
    while at < end:
        chunk, start, stop = blocks[block]
        skip = at % rows - (int(ends[block]) - (stop - start))
        take = min(stop - start - skip, end - at)
        yield ChunkPiece(chunk, start + skip, start + skip + take, at - begin)
        at += take
        block = (block + 1) % len(blocks)


def _without_first(window: Window, batches: int) -> Window:
    """Return the window without its first batches and their rows."""
    gone = sum(window.batch_rows[:batches])
    pieces: list[ChunkPiece] = []
    if window.positions is None:
        for piece in window.pieces:
            start = max(piece.start, piece.stop - max(0, piece.at + _len(piece) - gone))
            if start < piece.stop:
                pieces.append(ChunkPiece(piece.chunk, start, piece.stop, max(0, piece.at - gone)))
        positions = None
    else:
        # Rows of the removed batches get a negative position, which the reader skips.
        pieces = list(window.pieces)
        positions = window.positions - gone
    return Window(
        window.first_batch + batches, window.batch_rows[batches:], tuple(pieces), positions
    )


def _len(piece: ChunkPiece) -> int:
    return piece.stop - piece.start


#: From which epoch and batch to which a rank was away.
Absence: TypeAlias = tuple[tuple[int, int], tuple[int, int]]


def missed_batches(absences: Sequence[Absence], epoch: int, steps: int) -> list[tuple[int, int]]:
    """Return the batches of an epoch, from one to another, for which a rank was away."""
    return [
        (left[1] if left[0] == epoch else 0, back[1] if back[0] == epoch else steps)
        for left, back in absences
        if left[0] <= epoch <= back[0]
    ]


class EpochCounter:
    """The epoch and the first batch of the next iteration of a dataset.

    Thread-safe, because tf.data reads in its own thread.

    Examples
    --------
    >>> counter = EpochCounter()
    >>> counter.set(3, start_batch=40)
    >>> counter.begin(), counter.begin()
    ((3, 40), (4, 0))
    """

    def __init__(self, epoch: int = 0, start_batch: int = 0) -> None:
        self._lock = threading.Lock()
        #: When this rank was away, and trained nothing.
        self.absences: list[Absence] = []
        #: Reports what a rank that is still away has missed of this dataset.
        self.tell_missed: Callable[[int, Sequence[Absence]], None] | None = None
        self.set(epoch, start_batch)

    def set(self, epoch: int, start_batch: int = 0) -> None:
        """Set the next iteration, which yields batches from ``start_batch`` on."""
        if epoch < 0 or start_batch < 0:
            raise InvalidArgument(
                f"epoch and start_batch count from 0, got {epoch} and {start_batch}."
            )
        with self._lock:
            self._epoch, self._start = epoch, start_batch

    @property
    def pending(self) -> tuple[int, int]:
        """Epoch and start batch of the next iteration."""
        with self._lock:
            return self._epoch, self._start

    def begin(self) -> tuple[int, int]:
        """Start the pending iteration; the one after it is the next epoch, from its start."""
        with self._lock:
            taken = self._epoch, self._start
            self._epoch, self._start = self._epoch + 1, 0
            return taken
