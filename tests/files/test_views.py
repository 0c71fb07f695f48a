"""Long bytes of Parquet files come as views where that is possible, and are what the files hold."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gridflow._feed import long_texts
from gridflow._feed.dataset.assemble import assemble
from gridflow._feed.ingest.files import parquet
from gridflow._feed.ingest.files.parquet import ParquetFiles
from gridflow._feed.ingest.files.reader import FileReader
from gridflow._feed.ingest.files.shares import Piece
from gridflow._feed.long_texts import LongTexts
from gridflow._feed.normalize import FeedOptions
from gridflow._feed.plan.epochs import BatchPlan
from gridflow._feed.selection import select
from gridflow._files.listing import find

ROWS, GROUP = 40, 16
#: Some lie in the view itself, some share a buffer, some have one of their own.
LENGTHS = np.random.default_rng(5).choice([0, 1, 12, 13, 500, 20_000, 70_000], ROWS)


@pytest.fixture(autouse=True)
def short_ones_are_long(monkeypatch):
    monkeypatch.setattr(parquet, "LONG_BYTES", 100)


def table(lengths=LENGTHS):
    rng = np.random.default_rng(6)
    images = [None if n < 0 else rng.bytes(int(n)) for n in lengths]
    return pa.table(
        {
            "n": pa.array(np.arange(len(images)), pa.int32()),
            "image": pa.array(images, pa.binary()),
            "name": [f"{i}.jpg" for i in range(len(images))],
            "mask": pa.array([[each, b""] for each in images], pa.list_(pa.binary(), 2)),
            "other": pa.array(images[::-1], pa.large_binary()),
        }
    )


def form_of(written, path, columns, nulls="error", **options):
    pq.write_table(written, path, row_group_size=GROUP, **options)
    form = ParquetFiles(find(str(path), "/"), "train", columns, FeedOptions(nulls=nulls))
    description = form.describe(0)
    form.peek([description])
    pieces = [Piece(0, s.place, s.size, s.rows) for s in description.stretches]
    return FileReader("train", pieces, form), form, pieces


@pytest.mark.parametrize(
    "written", [{"store_schema": False}, {"store_schema": True}, {"use_dictionary": False}]
)
@pytest.mark.parametrize("columns", [["image"], ["n", "image", "name", "mask", "other"]])
def test_they_are_the_bytes_of_the_file(written, columns, tmp_path):
    rows = table()
    reader, form, pieces = form_of(rows, tmp_path / "0.parquet", columns, **written)
    at = 0
    for piece in pieces:
        found = form.load(piece, views=True)
        assert found.schema.names == columns
        assert found.schema.field("image").type == pa.binary_view()
        for name in columns:
            want = rows.column(name)[at : at + piece.rows].to_pylist()
            assert found.column(name).to_pylist() == want
        assert form.load(piece).schema == form.schema
        at += piece.rows
    assert at == ROWS
    assert [batch.schema for batch in reader.batches()] == [form.schema] * len(pieces)


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("least", [100, 1 << 30], ids=["long", "short in its window"])
def test_batches_have_them(least, shuffle, tmp_path, monkeypatch):
    monkeypatch.setattr(long_texts, "LONG_BYTES", least)
    rows = table()
    reader, *_ = form_of(rows, tmp_path / "0.parquet", ["n", "image"])
    tensors = select(reader.specs, ["image", "n"]).tensors
    plan = BatchPlan(reader.chunk_rows, 6, 7, "spread", shuffle=shuffle, window_rows=20)
    found = {}
    for images, numbers in assemble(reader, tensors, plan):
        found |= dict(zip(numbers.flat, images.flat, strict=True))
    assert [found[n] for n in range(ROWS)] == rows.column("image").to_pylist()


def test_as_many_are_made_at_a_time_as_have_room(tmp_path, monkeypatch):
    monkeypatch.setattr(long_texts, "_AT_ONCE_BYTES", 200_000)
    images = pa.array([b"?" * 20_000] * ROWS)
    _, form, pieces = form_of(pa.table({"image": images}), tmp_path / "0.parquet", ["image"])
    whole = form.load(pieces[0], views=True).column("image")
    found = LongTexts([whole.slice(0, 5), whole.slice(11)], (), 10, None)
    assert found.at_once == 10  # and not fewer because a slice has the buffers of all


def test_where_there_are_nulls_the_rule_for_them_counts(tmp_path):
    lengths = LENGTHS.copy()
    lengths[[3, 20]] = -1  # in the first two of three row groups
    rows = table(lengths).select(["n", "image"])
    reader, form, pieces = form_of(rows, tmp_path / "0.parquet", ["n", "image"], nulls="drop")
    kinds, numbers = [], []
    for piece in pieces:
        found = form.load(piece, views=True)
        kinds.append(found.schema.field("image").type)
        numbers += found.column("n").to_pylist()
    assert kinds == [pa.binary(), pa.binary(), pa.binary_view()]
    assert numbers == [n for n in range(ROWS) if n not in (3, 20)]
    assert reader.rows == ROWS - 2
    other = rows.set_column(0, "n", pa.array([None if n == 5 else n for n in range(ROWS)]))
    _, form, pieces = form_of(
        other, tmp_path / "1.parquet", ["n", "image"], {"image": b"?", "n": -1}
    )
    first = form.load(pieces[0], views=True)
    assert (first["n"][5].as_py(), first["image"][3].as_py()) == (-1, b"?")


def test_those_in_a_struct_stay_as_they_are(tmp_path):
    images = table().column("image").combine_chunks()
    struct = pa.StructArray.from_arrays([images, images], ["image", "mask"])
    rows = pa.table({"photo": struct, "image": images})
    _, form, pieces = form_of(rows, tmp_path / "0.parquet", ["photo.image", "image"])
    found = form.load(pieces[0], views=True)
    assert [field.type for field in found.schema] == [pa.binary(), pa.binary_view()]
    assert found.column("photo.image").to_pylist() == images[:GROUP].to_pylist()


def test_short_ones_and_old_versions_of_arrow_stay_as_they_are(tmp_path, monkeypatch):
    _, form, pieces = form_of(table(), tmp_path / "0.parquet", ["image"])
    monkeypatch.setattr(parquet, "AS_VIEWS", {})
    assert form.load(pieces[0], views=True).schema == form.schema
    monkeypatch.undo()
    assert form.load(pieces[0], views=True).schema == form.schema
