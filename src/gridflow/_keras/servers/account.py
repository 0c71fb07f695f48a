"""Which batches of the workers' rows are done, in one pass over them. Pure.

Each worker numbers the batches of its own rows. The chief hears of every step whose batch it was. A
worker that dies and is started again reads its rows from their beginning, and is told how many
batches to pass over. A step that died may have updated the model before: of such steps only the
number is known, by the optimizer's own count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gridflow._feed.ledger import EpochRecord
from gridflow.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

#: What a worker says instead of a batch's number when it has none left.
NOTHING: Final = -1


class Account:
    """The batches of all workers.

    Parameters
    ----------
    own_rows : sequence of int
        Rows of each worker that no other one has lent.
    batch_size : int
        Rows in each batch, but for the last one of a worker.
    before : mapping, optional
        What `state` was when a checkpoint was made that is gone on from. Of other rows, or batches
        of another size, it says nothing.

    Attributes
    ----------
    begin : list of int
        The first batch of each worker that isn't done.

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
        #: Of the present pass: whether a step was lost, and whether a missing batch was there.
        self._is_unsure = self._has_found = True
        #: Workers with a step that was handed out again, until it is known which batch it had.
        self._died: list[int] = []
        self._suspects: list[tuple[int, int]] = []
        self.begin_pass()
        self._has_found = True  # it hasn't begun yet

    @property
    def steps(self) -> int:
        """Batches of all workers."""
        return sum(self._batches)

    @property
    def missing(self) -> list[list[int]]:
        """The batches of each worker that aren't done."""
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
        """So many steps may be handed out to anybody: nobody who takes all of them has none left.

        0 where what a worker has left isn't known for certain, as a step of this pass was lost.
        """
        if self._is_unsure:
            return 0
        done = (first + len(found) for first, found in zip(self.begin, self._beyond, strict=True))
        return min(count - each for count, each in zip(self._batches, done, strict=True))

    @property
    def is_pass_over(self) -> bool:
        """Whether the workers have nothing left, whatever is missing."""
        return all(self._ended)

    @property
    def state(self) -> dict[str, Any]:
        """For a checkpoint: of each worker how many batches are done, and which beyond those."""
        done = [
            [first, *sorted(beyond)] for first, beyond in zip(self.begin, self._beyond, strict=True)
        ]
        return {"own_rows": list(self._own), "batch_size": self._size, "done": done}

    def begin_pass(self) -> None:
        """Note that the workers begin to read anew.

        Raises
        ------
        DataError
            They have just done so, and had nothing of what is missing.
        """
        if not self._has_found and not self._is_unsure:
            raise DataError(
                f"the workers have read all of their rows, and of {self.steps} batches "
                f"{sum(map(len, self.missing))} weren't there: {self.state}. Rows that were "
                "written to their disks are gone."
            )
        self._has_found = self._is_unsure = False
        self._ended = [
            first == count for first, count in zip(self.begin, self._batches, strict=True)
        ]

    def take(self, worker: int, number: int, life: int) -> bool:
        """Note a step on a batch; return whether the batch was missing.

        Parameters
        ----------
        worker, number : int
            Whose batch, and which; `NOTHING` where it has none left.
        life : int
            Changes when the worker's rows are read from their beginning.
        """
        self._ended[worker] = number == NOTHING
        if number == NOTHING:
            return False
        rows = self._rows(worker, number)
        if self._lives[worker] != life and worker in self._died:
            self._died.remove(worker)  # this is the batch that it had in its hands
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
        """Note that it isn't known what became of a step, nor maybe whose it was.

        It is handed out again, and may have updated the model before.
        """
        self._is_unsure = True
        if worker is not None:
            self._died.append(worker)

    def records(
        self, dataset: str, epoch: int, rows: Sequence[int], updates: int
    ) -> Iterator[EpochRecord]:
        """Yield what each worker was fed.

        Parameters
        ----------
        dataset, epoch
            For the records.
        rows : sequence of int
            Of each worker, lent ones included.
        updates : int
            How many the model has had since the account began: some more than `take` has heard of.
        """
        repeated, more = list(self._repeated), max(0, updates - self._heard)
        unknown = [(min(self._size, self._own[worker]), worker) for worker in self._died]
        # It isn't known which of them had updated the model, only how many: rather too many rows.
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
        """Return the rows of each worker that are done."""
        return [
            min(first * self._size, own) + sum(self._rows(worker, each) for each in beyond)
            for worker, (first, beyond, own) in enumerate(
                zip(self.begin, self._beyond, self._own, strict=True)
            )
        ]
