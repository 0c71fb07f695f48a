"""The records that a worker's TensorFlow server reads hold what the spool holds."""

from __future__ import annotations

import itertools
import os

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from gridflow._feed.normalize import FeedOptions
from gridflow._feed.store import SpoolWriter, records
from gridflow.errors import DataError

pytestmark = pytest.mark.slow

INTEGERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]


def spooled(folder, batches):
    """Write batches into a spool and its records; return the columns' specs."""
    with SpoolWriter(folder, FeedOptions()) as writer:
        for batch in batches:
            writer.write("train", batch)
    return records.write(folder, "train")


@settings(max_examples=60, deadline=None)
@given(
    hnp.arrays(
        dtype=st.sampled_from(
            [
                "float32",
                "float64",
                "float16",
                "int8",
                "int16",
                "int32",
                "int64",
                "uint8",
                "uint16",
                "uint32",
                "uint64",
                "bool",
            ]
        ),
        shape=hnp.array_shapes(min_dims=1, max_dims=3, max_side=5),
    )
)
def test_numbers_of_every_type_are_parsed_by_tensorflow(values):
    import tensorflow as tf

    proto = records.tensor_proto(values, values.dtype, values.shape[1:])
    parsed = tf.io.parse_tensor(proto, tf.as_dtype(values.dtype)).numpy()
    assert parsed.shape == values.shape
    np.testing.assert_array_equal(parsed, values)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.binary(max_size=200), min_size=2, max_size=2), min_size=1, max_size=9))
def test_bytes_and_arrays_of_them_are_parsed_by_tensorflow(rows):
    import tensorflow as tf

    array = pa.array(rows, pa.list_(pa.binary(), 2))
    parsed = tf.io.parse_tensor(records.tensor_proto(array, "string", (2,)), tf.string).numpy()
    assert parsed.tolist() == rows


@settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.integers(1, 3000), min_size=1, max_size=3), st.booleans())
def test_a_worker_reads_each_row_once_with_all_its_columns_together(tmp_path, sizes, shuffle):
    from gridflow._keras.servers import data as worker_data

    ends = np.cumsum([0, *sizes])
    batches = [
        pa.record_batch(
            {
                "id": pa.array(np.arange(first, last)),
                "half": pa.array(np.arange(first, last) / 2),
                "name": pa.array([f"n{i}" for i in range(first, last)]),
            }
        )
        for first, last in itertools.pairwise(ends)
    ]
    folder = tmp_path / "spool"
    specs = spooled(folder, batches)
    dataset = worker_data.make(
        "train",
        records.decode_specs(records.encode_specs(specs)),
        (sum(sizes),),
        features={"name": "name", "both": ["id", "half"]},
        label="id",
        sample_weight=None,
        batch_size=100,
        shuffle=shuffle,
        seed=3,
        own_rows=(sum(sizes),),
    )
    before = os.getcwd()
    os.chdir(tmp_path)  # the worker finds its spool from its working directory
    try:
        numbered = dataset.numbered(epoch=2).take(dataset.steps + 2).as_numpy_iterator()
        workers, lives, numbers, seen = zip(*numbered, strict=True)
        again = list(dataset.numbered(epoch=2).take(dataset.steps).as_numpy_iterator())
        last = next(dataset.numbered(2, [[dataset.steps - 1]]).as_numpy_iterator())
        some = next(dataset().take(1).as_numpy_iterator())
    finally:
        os.chdir(before)
    assert set(workers) == {0}
    assert len(set(lives)) == 1
    assert numbers == (*range(dataset.steps), -1, -1)
    assert [len(y) for _, y in seen[-2:]] == [1, 1]
    seen = seen[:-2]
    ids = np.concatenate([y for _, y in seen])
    assert sorted(ids.tolist()) == list(range(sum(sizes)))
    assert shuffle or ids.tolist() == list(range(sum(sizes)))
    # Who reads from the beginning finds the same batches.
    assert np.concatenate([y for *_, (_, y) in again]).tolist() == ids.tolist()
    assert last[2] == dataset.steps - 1
    assert last[3][1].tolist() == seen[-1][1].tolist()
    names = np.concatenate([x["name"] for x, _ in seen])
    assert names.tolist() == [f"n{i}".encode() for i in ids]
    both = np.concatenate([x["both"] for x, _ in seen])
    np.testing.assert_array_equal(both, np.column_stack([ids, ids / 2]).astype("float32"))
    assert len(some[1]) == 100
    assert dataset.steps == -(-sum(sizes) // 100)


def test_a_disk_that_takes_no_records_is_an_error_that_says_what_to_do(tmp_path):
    folder = tmp_path / "spool"
    with SpoolWriter(folder, FeedOptions()) as writer:
        writer.write("train", pa.record_batch({"x": pa.array([1.0])}))
    (folder / "train" / records.FOLDER).write_text("in the way")
    with pytest.raises(DataError, match=r"Spool\(dir="):
        records.write(folder, "train")
