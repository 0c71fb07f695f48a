"""Files that lie in memory are mapped, others are read; the rows are the same."""

import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gridflow._feed.ingest.files import parquet
from gridflow._feed.ingest.files.parquet import ParquetFiles, is_cached
from gridflow._feed.ingest.files.reader import FileReader
from gridflow._feed.ingest.files.shares import Piece
from gridflow._feed.normalize import FeedOptions
from gridflow._files.listing import find
from gridflow.errors import DataError

ROWS = 1_000


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "0.parquet"
    columns = {"x": np.arange(ROWS), "text": [f"row {i}" * (i % 7) for i in range(ROWS)]}
    pq.write_table(pa.table(columns), path, row_group_size=ROWS // 2, compression="none")
    with path.open("rb") as written:
        os.fsync(written.fileno())
    return path


def form_of(path):
    form = ParquetFiles(find(str(path), "/"), "train", ["text", "x"], FeedOptions())
    form.peek([form.describe(0)])
    return form


@pytest.mark.parametrize("maps", [True, False])
def test_the_rows_are_the_same(maps, file, monkeypatch):
    asked = []
    monkeypatch.setattr(parquet, "is_cached", lambda *range_: asked.append(range_) or maps)
    monkeypatch.setattr(pa, "memory_map", memory_map := Counting(pa.memory_map))
    form = form_of(file)
    second = form.load(Piece(0, 1, 1, ROWS // 2))
    assert second.column("x").to_pylist() == list(range(ROWS // 2, ROWS))
    assert second.column("text").to_pylist() == [f"row {i}" * (i % 7) for i in range(500, 1000)]
    assert memory_map.calls == (2 if maps else 0)  # of the sample, and these
    sample, rows = asked
    assert sample[:2] == (str(file), 4)
    assert rows[1] == sample[2] < rows[2] < file.stat().st_size


class Counting:
    """Counts the calls of a function."""

    def __init__(self, function):
        self.calls, self._function = 0, function

    def __call__(self, *arguments):
        self.calls += 1
        return self._function(*arguments)


def forget(path):
    """Have the kernel drop what it has of a file."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(file)


def test_the_kernel_is_asked_whether_it_has_a_file(file):
    size = file.stat().st_size
    file.read_bytes()
    if not is_cached(str(file), 0, size):
        pytest.skip("this file system can't tell")
    forget(file)
    assert not is_cached(str(file), 0, size)
    assert not is_cached(str(file) + "-not", 0, size)
    file.read_bytes()
    assert not is_cached(str(file), size, 2 * size)  # it has been cut


def test_a_file_that_was_cut_is_an_error_and_no_crash(file, monkeypatch):
    monkeypatch.setattr(parquet, "is_cached", lambda *_: True)
    form = form_of(file)
    os.truncate(file, file.stat().st_size // 2)
    reader = FileReader("train", [Piece(0, 1, 1, ROWS // 2)], form)
    with pytest.raises(DataError, match="0.parquet can't be read"):
        list(reader.batches())
