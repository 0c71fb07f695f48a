"""Segments of a stream: links to files where rows lie as they are to be, copies elsewhere. Pure."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pytest

from gridflow._feed.encodings import Ragged
from gridflow._feed.normalize import FeedOptions
from gridflow._feed.push.located import in_file
from gridflow._feed.store import Segment
from gridflow._feed.store.reader import StreamReader
from gridflow._feed.store.segment import LEFT_OUT
from gridflow._feed.store.stream import StreamStore
from gridflow.errors import DataError

ROWS = 1000
LISTS = pa.array(np.arange(3.0 * ROWS).reshape(ROWS, 3).tolist(), pa.list_(pa.float32()))


@pytest.fixture
def lying(tmp_path):
    """Give a function that puts rows into a file, in some batches, and returns them from there."""

    def put(columns, sizes=(ROWS,), facts=None):
        path = tmp_path / "files" / f"{len(list(tmp_path.glob('files/*'))):08d}-0.arrow"
        path.parent.mkdir(exist_ok=True)
        batch, at = pa.RecordBatch.from_pydict(columns), 0
        with pa.ipc.new_file(str(path), batch.schema) as file:
            for size in sizes:
                file.write_batch(batch.slice(at, size))
                at += size
        return list(in_file(Segment(path), facts))

    return put


def inflow_in(folder, **options):
    inflow = StreamStore("stream", folder / "stream", FeedOptions(**options), 1 << 30, lambda: None)
    inflow.begin("f", 0, 1)
    return inflow


def read(inflow):
    reader = StreamReader("stream", inflow.folder, inflow.segments[0])
    reader.look(inflow.segments[1])
    return reader.next(reader.rows)


def links(folder):
    return sum(path.stat().st_nlink > 1 for path in folder.glob("*.arrow"))


def test_rows_of_a_feeders_file_are_kept_by_a_link(tmp_path, lying):
    columns = {"x": LISTS, "y": pa.array(range(ROWS)), "s": pa.array(map(str, range(ROWS)))}
    (rows,) = lying(columns)
    inflow = inflow_in(tmp_path)
    inflow.put("f", 0, 1, 0, rows.slice(0, 600))
    inflow.put("f", 0, 1, 500, rows.slice(500, 500))  # a hundred have come
    assert links(inflow.folder) == 2
    Path(rows.path).unlink()  # the feeder is done
    found = pa.Table.from_batches(read(inflow))
    assert found.schema.field("x").type == pa.list_(pa.float32(), 3)
    assert found.to_pydict() == pa.table(columns).to_pydict()
    inflow.take(600)
    assert sorted(path.name for path in inflow.folder.iterdir()) == [
        "00000001.arrow",
        "00000001.part",
    ]
    inflow.take(ROWS)
    assert list(inflow.folder.iterdir()) == []


def test_batches_of_a_file_are_found_by_their_number(tmp_path, lying):
    inflow = inflow_in(tmp_path)
    for n, rows in enumerate(lying({"y": pa.array(range(ROWS))}, (500, 500))):
        inflow.put("f", 0, 1, 500 * n, rows)
    assert links(inflow.folder) == 2
    assert [v for batch in read(inflow) for v in batch.column(0).to_pylist()] == list(range(ROWS))


def test_facts_of_the_feeders_come_with_a_link(tmp_path, lying):
    (rows,) = lying({"y": pa.array(range(ROWS))}, facts={LEFT_OUT: json.dumps({"z": "no tensor"})})
    inflow = inflow_in(tmp_path)
    inflow.put("f", 0, 1, 0, rows)
    assert links(inflow.folder) == 1
    reader = StreamReader("stream", inflow.folder, 0)
    reader.look(1)
    assert reader.left_out == {"z": "no tensor"}


@pytest.mark.parametrize(
    ("columns", "options"),
    [
        ({"b": pa.array([True, False] * (ROWS // 2))}, {}),
        ({"y": pa.array([1, None] * (ROWS // 2))}, {"nulls": {"y": 0}}),
        ({"y": pa.array([1, None] * (ROWS // 2))}, {"nulls": "drop"}),
        ({"x": LISTS}, {"columns": {"x": Ragged()}}),
        ({"s": pa.array([{"a": n} for n in range(ROWS)])}, {}),
        ({"y": pa.array(range(ROWS)), "z": pa.array([None] * ROWS, pa.int32())}, {}),
    ],
    ids=["booleans", "filled", "dropped", "ragged", "structs", "left out"],
)
def test_what_needs_another_form_arrives_the_same_as_without_a_file(
    tmp_path, lying, columns, options
):
    (rows,) = lying(columns)
    found = []
    for name, each in (("linked", rows), ("sent", rows.batch)):
        inflow = inflow_in(tmp_path / name, **options)
        inflow.put("f", 0, 1, 0, each)
        found.append(pa.Table.from_batches(read(inflow)))
    assert found[0].equals(found[1], check_metadata=True)


def test_a_small_part_of_a_file_doesnt_keep_all_of_it(tmp_path, lying):
    (rows,) = lying({"y": pa.array(range(ROWS))})
    inflow = inflow_in(tmp_path)
    inflow.put("f", 0, 1, 0, rows.slice(0, ROWS // 6))
    assert links(inflow.folder) == 0
    (batch,) = read(inflow)
    assert batch.column(0).to_pylist() == list(range(ROWS // 6))


def test_where_there_are_no_links_rows_are_copied(tmp_path, lying, monkeypatch):
    def no_link(*_args, **_options):
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(Path, "hardlink_to", no_link)
    (rows,) = lying({"y": pa.array(range(ROWS))})
    inflow = inflow_in(tmp_path)
    inflow.put("f", 0, 1, 0, rows)
    assert sorted(path.name for path in inflow.folder.iterdir()) == ["00000000.arrow"]
    (batch,) = read(inflow)
    assert batch.column(0).to_pylist() == list(range(ROWS))


def test_a_disk_that_is_full_is_named(tmp_path, lying, monkeypatch):
    def full(*_args, **_options):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(pa, "OSFile", full)
    inflow = inflow_in(tmp_path)
    with pytest.raises(DataError, match="pushed rows can't be stored in .*No space left on device"):
        inflow.put("f", 0, 1, 0, pa.record_batch({"y": [1]}))
