"""Row groups are read before they are needed: two at a time where they are small, else one.

Those that were are kept for what comes back to them, and for nothing else.
"""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gridflow._feed.ingest.files import reader as file_reader
from gridflow._feed.ingest.files.parquet import ParquetFiles
from gridflow._feed.ingest.files.shares import Piece
from gridflow._feed.normalize import FeedOptions
from gridflow._feed.plan.epochs import BatchPlan, steps_for
from gridflow._files.listing import find
from suite.waiting import wait_for

GROUPS, ROWS, BATCH = 7, 40, 8


class Noting(ParquetFiles):
    """Notes which row groups are read."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.read = []

    def load(self, piece, **options):
        self.read.append(piece.place)
        return super().load(piece, **options)


def reader(folder):
    path = folder / "0.parquet"
    pq.write_table(pa.table({"x": np.arange(GROUPS * ROWS)}), path, row_group_size=ROWS)
    form = Noting(find(str(path), "/"), "train", ["x"], FeedOptions())
    form.peek([form.describe(0)])
    pieces = [Piece(0, place, ROWS * 8, ROWS) for place in range(GROUPS)]
    return file_reader.FileReader("train", pieces, form), form.read


def windows_of(reader, **options):
    steps = steps_for([reader.rows], BATCH)
    plan = BatchPlan(reader.chunk_rows, BATCH, steps, "spread", window_rows=2 * BATCH, **options)
    return reader.follow(plan.windows())


@pytest.mark.parametrize(("groups_at_a_time", "ahead"), [(9, 2), (2, 1), (1, 1)])
def test_as_many_as_have_room_are_read_ahead(groups_at_a_time, ahead, tmp_path, monkeypatch):
    monkeypatch.setattr(file_reader, "_TOGETHER_BYTES", groups_at_a_time * ROWS * 8)
    reads, read = reader(tmp_path)
    rows = []
    for window in windows_of(reads):
        last = max(piece.chunk for piece in window.pieces)
        wanted = min(last + ahead, GROUPS - 1)
        wait_for(lambda wanted=wanted: wanted in read, f"row group {wanted}", seen=lambda: read)
        assert max(read) == wanted
        for piece in window.pieces:
            rows += reads.column(piece.chunk, "x")[piece.start : piece.stop].tolist()
    assert rows == list(range(GROUPS * ROWS))
    assert sorted(read) == list(range(GROUPS))


def rows_and_chunks_of(reads, **options):
    """Return the rows of an epoch, and how many chunks lay in memory at most."""
    rows, most = [], 0
    for window in windows_of(reads, **options):
        most = max(most, len(reads._chunks))
        for piece in window.pieces:
            rows += reads.column(piece.chunk, "x")[piece.start : piece.stop].tolist()
    return rows, most


def test_in_order_row_groups_that_were_taken_do_not_stay_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(file_reader, "_TOGETHER_BYTES", 2 * ROWS * 8)
    reads, read = reader(tmp_path)
    for _ in range(2):
        rows, most = rows_and_chunks_of(reads)
        assert rows == list(range(GROUPS * ROWS))
        assert most <= 3  # two that share a window, and one ahead
    assert sorted(read) == sorted(2 * list(range(GROUPS)))


def test_row_groups_that_all_fit_stay_for_the_next_epoch(tmp_path, monkeypatch):
    monkeypatch.setattr(file_reader, "_TOGETHER_BYTES", 4 * ROWS * 8)
    reads, read = reader(tmp_path)
    for _ in range(2):
        rows, _ = rows_and_chunks_of(reads)
        assert rows == list(range(GROUPS * ROWS))
    assert sorted(read) == list(range(GROUPS))


def test_a_shuffle_reads_each_row_group_once(tmp_path, monkeypatch):
    monkeypatch.setattr(file_reader, "_TOGETHER_BYTES", 2 * ROWS * 8)
    reads, read = reader(tmp_path)
    rows, _ = rows_and_chunks_of(reads, shuffle=True, chunks_together=2)
    assert sorted(rows) == list(range(GROUPS * ROWS))
    assert sorted(read) == list(range(GROUPS))
