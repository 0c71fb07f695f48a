"""Tracks which batches of the workers' rows are done, in one pass over them. Pure.

Each worker numbers the batches of its own rows. For every step, the chief learns which batch it
was. A worker that dies and is restarted reads its rows from the beginning, and is told how many
batches to skip. A step that died may already have updated the model: only the number of such steps
is known, from the optimizer's own count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gridflow._feed.ledger import EpochRecord
from gridflow.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

#: Sent instead of a batch's number by a worker that has none left.
NOTHING: Final = -1


class Account:
    """The batches of all workers.

    `own_rows`: Rows of each worker, without borrowed ones.
    `batch_size`: Rows in each batch, except a worker's last one.
    `before`: The `state` in the checkpoint to resume from. Ignored for other rows or another batch
        size.
    `begin`: The first unfinished batch of each worker.

    Examples
    --------
    >>> account = Account([5, 2], batch_size=2)
    >>> account.steps
    4
    >>> [account.take(*each, life=1) for each in [(0, 0), (1, 0), (1, NOTHING), (0, 0), (0, 1)]]
    [True, True, False, False, True]
    >>> account.begin, account.missing
    ([2, 1], [[2], []])
    """

    def __init__(
        self, own_rows: Sequence[int], batch_size: int, before: Mapping[str, Any] | None = None
    ) -> None:
        self._own, self._size = list(own_rows), batch_size
        self._batches = [-(-rows // batch_size) for rows in self._own]
        self._beyond: list[set[int]] = [set() for _ in self._own]
        self.begin = [0] * len(self._own)
        if before is not None and {**before, "done": None} == {**self.state, "done": None}:
            for worker, (first, *beyond) in enumerate(before["done"]):
                self.begin[worker], self._beyond[worker] = first, set(beyond)
        self._done_before = self._done()
        self._repeated, self._heard = [0] * len(self._own), 0
        self._lives: list[int | None] = [None] * len(self._own)
        self._ended: list[bool] = []
        #: For the current pass: whether a step was lost, and whether a missing batch was found.
        self._is_unsure = self._has_found = True
        #: Workers with a step that was scheduled again, until its batch is known.
        self._died: list[int] = []
        self._suspects: list[tuple[int, int]] = []
        self.begin_pass()
        self._has_found = True  # it hasn't started yet

    @property
    def steps(self) -> int:
        """Number of batches of all workers."""
        return sum(self._batches)

    @property
    def missing(self) -> list[list[int]]:
        """The unfinished batches of each worker."""
        return [
            [b for b in range(first, count) if b not in beyond]
            for first, count, beyond in zip(self.begin, self._batches, self._beyond, strict=True)
        ]

    @property
    def is_done(self) -> bool:
        """Whether no batch is missing."""
        return all(first == count for first, count in zip(self.begin, self._batches, strict=True))

    @property
    def sure(self) -> int:
        """Steps that may be scheduled on any worker: even one that takes all of them has enough.

        0 if a worker's remaining batches aren't known for certain, because a step was lost.
        """
        if self._is_unsure:
            return 0
        done = (first + len(found) for first, found in zip(self.begin, self._beyond, strict=True))
        return min(count - each for count, each in zip(self._batches, done, strict=True))

    @property
    def is_pass_over(self) -> bool:
        """Whether the workers have read everything, even if batches are missing."""
        return all(self._ended)

    @property
    def state(self) -> dict[str, Any]:
        """For a checkpoint: how many batches of each worker are done, and which later ones."""
        done = [
            [first, *sorted(beyond)] for first, beyond in zip(self.begin, self._beyond, strict=True)
        ]
        return {"own_rows": list(self._own), "batch_size": self._size, "done": done}

    def begin_pass(self) -> None:
        """Note that the workers start to read again.

        Raises `DataError`: They have just done so without finding a missing batch.
        """
        if not self._has_found and not self._is_unsure:
            raise DataError(
                f"the workers have read all of their rows, but {sum(map(len, self.missing))} of "
                f"{self.steps} batches are missing: {self.state}. Rows written to their disks are "
                "lost."
            )
        self._has_found = self._is_unsure = False
        self._ended = [
            first == count for first, count in zip(self.begin, self._batches, strict=True)
        ]

    def take(self, worker: int, number: int, life: int) -> bool:
        """Note a step on a batch; return whether the batch was missing.

        `worker`, `number`: The worker and its batch; `NOTHING` if it has none left.
        `life`: Changes when the worker's rows are read from the beginning.
        """
        self._ended[worker] = number == NOTHING
        if number == NOTHING:
            return False
        rows = self._rows(worker, number)
        if self._lives[worker] != life and worker in self._died:
            self._died.remove(worker)  # this is the batch that it was working on
            self._suspects.append((rows, worker))
        self._lives[worker] = life
        self._heard += 1
        if number < self.begin[worker] or number in self._beyond[worker]:
            self._repeated[worker] += rows
            return False
        self._has_found = True
        self._beyond[worker].add(number)
        while self.begin[worker] in self._beyond[worker]:
            self._beyond[worker].remove(self.begin[worker])
            self.begin[worker] += 1
        return True

    def lose(self, worker: int | None = None) -> None:
        """Note that the result of a step, and perhaps its worker, is unknown.

        The step is scheduled again, and may already have updated the model.
        """
        self._is_unsure = True
        if worker is not None:
            self._died.append(worker)

    def records(
        self, dataset: str, epoch: int, rows: Sequence[int], updates: int
    ) -> Iterator[EpochRecord]:
        """Yield records of what each worker was fed.

        `dataset`, `epoch`: For the records.
        `rows`: Rows of each worker, including borrowed ones.
        `updates`: Number of model updates since the start; may be higher than the calls of `take`.
        """
        repeated, more = list(self._repeated), max(0, updates - self._heard)
        unknown = [(min(self._size, self._own[worker]), worker) for worker in self._died]
        # Only the number of lost steps that updated the model is known, so rows are overcounted.
        suspects = sorted(self._suspects + unknown, reverse=True)
        whoever = (self._size, max(range(len(self._own)), key=self._own.__getitem__))
        for size, worker in (suspects + [whoever] * more)[:more]:
            repeated[worker] += size
        for worker, (done, before) in enumerate(zip(self._done(), self._done_before, strict=True)):
            lent = rows[worker] - self._own[worker] if self.is_done else 0
            yield EpochRecord(
                dataset,
                worker,
                epoch,
                rows_fed=done - before + repeated[worker],
                rows_repeated=repeated[worker],
                rows_left_out=lent,
                complete=self.is_done,
                rows_before=before,
            )

    def _rows(self, worker: int, number: int) -> int:
        return min(self._size, self._own[worker] - number * self._size)

    def _done(self) -> list[int]:
        """Return the number of each worker's finished rows."""
        return [
            min(first * self._size, own) + sum(self._rows(worker, each) for each in beyond)
            for worker, (first, beyond, own) in enumerate(
                zip(self.begin, self._beyond, self._own, strict=True)
            )
        ]
