"""Texts of many KiB come in parts of a window, and are the same as any others."""

import numpy as np
import pyarrow as pa
import pytest

from gridflow._feed import long_texts, memory
from gridflow._feed.dataset.assemble import assemble
from gridflow._feed.long_texts import LongTexts
from gridflow._feed.plan.epochs import BatchPlan
from gridflow._feed.selection import select
from gridflow._feed.store import SpoolReader, SpoolWriter

ROWS, BATCH = 50, 4


@pytest.fixture
def small(monkeypatch):
    """Let texts of some bytes be long ones, of which few are made at a time."""
    monkeypatch.setattr(long_texts, "LONG_BYTES", 8)
    monkeypatch.setattr(long_texts, "_AT_ONCE_BYTES", 400)


def spooled(folder, shape):
    rng = np.random.default_rng(1)
    texts = [rng.bytes(int(n)) for n in rng.integers(0, 100, ROWS * int(np.prod(shape)))]
    column = pa.array(texts, pa.binary())
    for size in reversed(shape):
        column = pa.FixedSizeListArray.from_arrays(column, size)
    table = pa.table({"x": column, "n": np.arange(ROWS)})
    with SpoolWriter(folder) as writer:
        for batch in table.to_batches(max_chunksize=7):
            writer.write("train", batch)
    return SpoolReader(folder, "train"), np.array(texts, object).reshape(ROWS, *shape)


def parts_of(reader, tail="spread", **options):
    tensors = select(reader.specs, ["x", "n"]).tensors
    start = options.pop("start", 0)
    steps = options.pop("steps", -(-ROWS // BATCH))
    plan = BatchPlan(reader.chunk_rows, BATCH, steps, tail, window_rows=24, **options)
    return assemble(reader, tensors, plan, start)


def batches_of(reader, **options):
    return [batch for part in parts_of(reader, **options) for batch in zip(*part, strict=True)]


@pytest.mark.parametrize("shape", [(), (3,)])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("start", [0, 4])
def test_they_are_the_same_as_short_ones(tmp_path, monkeypatch, shape, shuffle, start):
    reader, texts = spooled(tmp_path, shape)
    options = {"shuffle": shuffle, "start": start, "seed": 3}
    monkeypatch.setattr(long_texts, "LONG_BYTES", 1 << 30)
    short = batches_of(reader, **options)
    monkeypatch.setattr(long_texts, "LONG_BYTES", 8)
    monkeypatch.setattr(long_texts, "_AT_ONCE_BYTES", 400)
    long = batches_of(reader, **options)
    assert len(long) == len(short) == 13 - start
    for (x, n), (short_x, short_n) in zip(long, short, strict=True):
        np.testing.assert_array_equal(x, short_x)
        np.testing.assert_array_equal(x, texts[n])
        np.testing.assert_array_equal(n, short_n)


@pytest.mark.usefixtures("small")
def test_repeated_rows_are_the_same_again(tmp_path):
    reader, texts = spooled(tmp_path, ())
    found = batches_of(reader, tail="repeat", steps=20)
    numbers = np.concatenate([n for _, n in found])
    np.testing.assert_array_equal(numbers, np.arange(80) % ROWS)
    np.testing.assert_array_equal(np.concatenate([x for x, _ in found]), texts[numbers])


@pytest.mark.usefixtures("small")
def test_batches_are_made_when_they_are_asked_for(tmp_path, monkeypatch):
    made = []
    one = LongTexts.__getitem__
    monkeypatch.setattr(
        LongTexts, "__getitem__", lambda self, rows: made.append(rows) or one(self, rows)
    )
    reader, _ = spooled(tmp_path, ())
    parts = parts_of(reader, shuffle=True)
    for number, (x, _) in enumerate(parts, 1):
        assert len(made) == number
        assert sum(map(len, x.flat)) < 800
    assert number >= 5


def test_nulls_stay_nulls_and_views_of_arrays_are_taken_where_they_begin():
    texts = pa.array([b"a" * 9, None, b"", b"\0", None, b"b" * 5000], pa.large_binary())
    found = LongTexts([texts.slice(1, 2), texts.slice(3)], (), 5, None)
    assert found[slice(0, 5)].tolist() == [None, b"", b"\0", None, b"b" * 5000]
    assert found[slice(2, 4)].tolist() == [b"\0", None]
    assert found.at_once >= 500


def test_malloc_is_told_to_keep_what_is_freed_where_it_can_be(monkeypatch):
    def none(_):
        raise OSError

    monkeypatch.setattr(memory.ctypes, "CDLL", none)
    memory._mallopt.cache_clear()
    assert memory.keep_freed() is False
    memory._mallopt.cache_clear()
