"""Tables of thousands of columns are read in a time that grows with the values alone."""

import gc
import time

import numpy as np
import pyarrow as pa
import pytest

from gridflow._feed.dataset import assemble as assembling
from gridflow._feed.dataset.assemble import assemble
from gridflow._feed.plan.epochs import BatchPlan
from gridflow._feed.selection import select
from gridflow._feed.store import SpoolReader, SpoolWriter


def spooled(folder, table, rows_per_batch):
    with SpoolWriter(folder) as writer:
        for batch in table.to_batches(max_chunksize=rows_per_batch):
            writer.write("train", batch)
    return SpoolReader(folder, "train")


def batches_of(reader, names, *, shuffle=False, start=0):
    plan = BatchPlan(reader.chunk_rows, 32, -(-reader.rows // 32), shuffle=shuffle, window_rows=70)
    parts = assemble(reader, select(reader.specs, [names]).tensors, plan, start)
    return [batch for (array,) in parts for batch in array]


@pytest.mark.parametrize("kind", ["f4", "i8"])
@pytest.mark.parametrize("start", [0, 3])
@pytest.mark.parametrize("shuffle", [False, True])
def test_columns_that_are_copied_together_are_those_copied_one_by_one(
    tmp_path, kind, shuffle, start
):
    values = np.random.default_rng(1).integers(-999, 999, (300, 80)).astype(kind)
    names = [f"c{i}" for i in range(80)]
    table = pa.table(dict(zip(names, values.T.copy(), strict=True)))
    reader = spooled(tmp_path, table.append_column("half", pa.array(np.zeros(300, "f8"))), 90)
    together = batches_of(reader, names, shuffle=shuffle, start=start)
    # Another type among them: each column is copied for itself.
    apart = batches_of(reader, [*names, "half"], shuffle=shuffle, start=start)
    for one, other in zip(together, apart, strict=True):
        np.testing.assert_array_equal(one, other[:, :-1])
    assert not np.isnan(np.concatenate(together)).any()


@pytest.mark.parametrize("shuffle", [False, True])
def test_integers_that_a_matrix_rounds_are_told_once(tmp_path, caplog, monkeypatch, shuffle):
    monkeypatch.setattr(assembling, "_rounded", set())
    ids = np.arange(300, dtype="i8")
    table = pa.table(
        {
            "small": ids + 2**24 - 299,
            "large": ids + 2**24 - 298,
            "minus": (-ids - 2**25).astype("i4"),
            "real": ids * 1e9,
        }
    )
    reader = spooled(tmp_path, table, 90)
    for _ in range(2):
        batches_of(reader, ["small", "real"], shuffle=shuffle)
        batches_of(SpoolReader(tmp_path, "train"), ["large", "minus", "real"], shuffle=shuffle)
    told = [record.getMessage() for record in caplog.records]
    assert [text.split(" has ")[0] for text in told] == [
        "column 'large' of dataset 'train'",
        "column 'minus' of dataset 'train'",
    ]
    assert "features={'name': 'large'}" in told[0]


@pytest.mark.parametrize("start", [0, 3])
def test_a_shuffled_window_that_is_copied_in_parts_has_the_rows_of_one_copied_whole(
    tmp_path, monkeypatch, start
):
    ids = np.arange(300)
    values = np.repeat(ids.astype("f4"), 3).reshape(300, 3)
    table = pa.table({"id": ids, "v": pa.FixedSizeListArray.from_arrays(values.ravel(), 3)})
    reader = spooled(tmp_path, table, 90)
    tensors = select(reader.specs, ["id", "v"]).tensors
    plan = BatchPlan(reader.chunk_rows, 25, 12, shuffle=True, window_rows=130)

    def rows():
        parts = list(assemble(reader, tensors, plan, start))
        return len(parts), [
            np.concatenate([x.reshape(-1, *x.shape[2:]) for x in xs])
            for xs in zip(*parts, strict=True)
        ]

    few, whole = rows()
    monkeypatch.setattr("gridflow._feed.dataset.assemble._ORDERED_BYTES", 600)  # of 30 rows
    many, in_parts = rows()
    assert many > few
    for one, other in zip(whole, in_parts, strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(in_parts[0], in_parts[1][:, 0])


@pytest.mark.slow
def test_ten_thousand_columns_take_no_longer_than_three_times_two_thousand(tmp_path):
    def seconds(columns, rows):
        names = [f"c{i}" for i in range(columns)]
        values = np.random.default_rng(2).random((columns, rows), np.float32)
        table = pa.table(dict(zip(names, values, strict=True)))
        folder = tmp_path / str(columns)
        reader = spooled(folder, table, rows // 5)
        tensors = select(reader.specs, [names]).tensors
        plan = BatchPlan(reader.chunk_rows, 25, rows // 25, shuffle=True)
        taken = []
        for _ in range(6):  # other tests run beside it
            again = SpoolReader(folder, "train")
            gc.collect()
            gc.disable()  # what other tests have left behind is no matter of the columns
            begin = time.thread_time()
            assert sum(len(array) for (array,) in assemble(again, tensors, plan)) == rows // 25
            taken.append(time.thread_time() - begin)
            gc.enable()
        return min(taken)

    few, many = seconds(2000, 2500), seconds(10_000, 500)
    assert many <= 3 * few, (few, many)
