"""The contents of a dataset's files: each rank inspects some, and they exchange the results."""

from __future__ import annotations

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gridflow._feed.ingest.files.formats import decode, encode, nulls_of
from gridflow._feed.ingest.files.reader import FileReader
from gridflow._feed.ingest.files.shares import Piece, share_out
from gridflow._feed.ledger import DatasetCounts
from gridflow.errors import DataError, GridflowError, SchemaError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gridflow._feed.ingest.files.formats import Description, Format
    from gridflow._files.listing import FoundFile

__all__ = ["Catalogue", "catalogue", "digest"]

_THREADS: Final = 8


@dataclass(frozen=True)
class Catalogue:
    """The contents of a dataset's files, and who reads what.

    `shares`: The pieces of each rank.
    `counts`: The counts of this rank.
    `digest`: Changes when files, sizes, modification times or rows change.
    """

    format: Format
    shares: list[list[Piece]]
    counts: DatasetCounts
    digest: str
    rank: int

    @property
    def rows(self) -> list[int]:
        return [sum(piece.rows for piece in share) for share in self.shares]

    def reader(self) -> FileReader:
        """Return a reader of this rank's rows."""
        return FileReader(self.format.dataset, self.shares[self.rank], self.format)


def digest(files: Sequence[FoundFile]) -> str:
    """Return a short text that changes with the files' names, sizes and modification times."""
    known = [[file.path, file.size, file.changed] for file in files]
    return hashlib.sha256(json.dumps(known).encode()).hexdigest()[:24]


def catalogue(
    format: Format,  # noqa: A002 (what it is)
    rank: int,
    ranks: int,
    gather: Callable[[bytes], list[bytes]] | None = None,
) -> Catalogue:
    """Inspect the files, and divide them among the ranks.

    `rank`, `ranks`: This rank, and the number of ranks.
    `gather`: Takes this rank's bytes and returns those of all ranks. Without it, each rank inspects
        all files itself.
    Raises `DataError`: The ranks see different files, or there are fewer rows than ranks.
    Raises `SchemaError`: A column is missing, or can't be fed.
    """
    descriptions = described(format, rank, ranks, gather)
    format.peek(descriptions)
    pieces = pieces_of(descriptions)
    shares = share_out(pieces, ranks)
    _refuse_empty(format, pieces, shares)
    rows = sum(piece.rows for piece in shares[rank])
    # If several ranks read a piece, the first one counts the dropped rows.
    begun = {(piece.file, piece.place) for piece in shares[rank] if not piece.first}
    dropped = sum(
        s.rows_in - s.rows
        for number, description in enumerate(descriptions)
        for s in description.stretches
        if (number, s.place) in begun or (not s.rows and rank == 0)
    )
    nulls = nulls_of(descriptions) if rank == 0 else {}
    counts = DatasetCounts(rows + dropped, rows, dropped, nulls=nulls)
    of_rows = json.dumps([[p.file, p.place, p.size, p.rows] for p in pieces])
    whole = hashlib.sha256((digest(format.files) + of_rows).encode()).hexdigest()[:24]
    return Catalogue(format, shares, counts, whole, rank)


def pieces_of(descriptions: Sequence[Description]) -> list[Piece]:
    """Return the pieces of all files that have rows, in order."""
    return [
        Piece(number, s.place, s.size, s.rows, is_divisible=description.is_divisible)
        for number, description in enumerate(descriptions)
        for s in description.stretches
        if s.rows
    ]


def described(
    format: Format,  # noqa: A002
    rank: int,
    ranks: int,
    gather: Callable[[bytes], list[bytes]] | None,
) -> list[Description]:
    """Return the contents of all files; if the ranks can communicate, each inspects some."""
    if gather is None or ranks == 1:
        return _describe(format, range(len(format.files)))
    return _together(format, rank, ranks, gather)


def agree(
    files: Sequence[FoundFile],
    dataset: str,
    ranks: int,
    gather: Callable[[bytes], list[bytes]] | None,
) -> None:
    """Reject files that differ between ranks, if these can communicate."""
    if gather is None or ranks == 1:
        return
    own = {"digest": digest(files), "files": len(files)}
    _refuse_different([json.loads(each) for each in gather(json.dumps(own).encode())], dataset)


def _refuse_different(told: Sequence[dict[str, Any]], dataset: str) -> None:
    if len({other["digest"] for other in told}) > 1:
        listed = ", ".join(f"rank {number}: {o['files']}" for number, o in enumerate(told))
        raise DataError(
            f"the ranks see different files of dataset {dataset!r} ({listed} files). Is something "
            "still writing there, or is the path local to each host? Finish writing first, to "
            "storage that all hosts share."
        )


def _describe(format: Format, numbers: Sequence[int]) -> list[Description]:  # noqa: A002
    # Footers are short: most of the time is spent waiting for the store.
    with ThreadPoolExecutor(_THREADS, "gridflow-footers") as threads:
        return list(threads.map(format.describe, numbers))


def _together(
    format: Format,  # noqa: A002
    rank: int,
    ranks: int,
    gather: Callable[[bytes], list[bytes]],
) -> list[Description]:
    """Inspect every n-th file, and get the results of the others.

    A rank that fails must report it, because the others are waiting.
    """
    own: dict[str, Any] = {"digest": digest(format.files), "files": len(format.files)}
    failure: GridflowError | None = None
    try:
        own["found"] = [
            encode(each) for each in _describe(format, range(rank, len(format.files), ranks))
        ]
    except GridflowError as error:
        failure = error
        own["failed"] = [type(error) is SchemaError, str(error)]
    told = [json.loads(content) for content in gather(json.dumps(own).encode())]
    if failure is not None:
        raise failure
    for other in told:
        if "failed" in other:
            is_schema, text = other["failed"]
            raise (SchemaError if is_schema else DataError)(text)
    _refuse_different(told, format.dataset)
    descriptions: list[Description | None] = [None] * len(format.files)
    for number, other in enumerate(told):
        for place, encoded in enumerate(other["found"]):
            descriptions[number + place * ranks] = decode(encoded)
    return [description for description in descriptions if description is not None]


def _refuse_empty(
    format: Format,  # noqa: A002
    pieces: Sequence[Piece],
    shares: Sequence[Sequence[Piece]],
) -> None:
    without = [rank for rank, share in enumerate(shares) if not share]
    if not without:
        return
    rows = sum(piece.rows for piece in pieces)
    why = f"there are {rows:,} rows"
    if rows >= len(shares):
        why = f"there are {len(pieces)} files that can't be split, because they are compressed"
    raise DataError(
        f"dataset {format.dataset!r}: there is nothing to read for rank {without[0]} of "
        f"{len(shares)} ranks: {why}. Use fewer workers, or write more files."
    )
