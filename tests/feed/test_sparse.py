"""Sparse vectors: what was fed is what arrives, bit for bit, or is refused."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gridflow import Sparse
from gridflow._feed.normalize import FeedOptions, Findings, normalise
from gridflow._feed.plan.epochs import steps_for
from gridflow._feed.store import SpoolReader, SpoolWriter
from gridflow.errors import DataError, InvalidArgument, SchemaError
from suite.batches import make_dataset

#: As Spark's vectors come.
VECTOR = pa.struct(
    [
        ("type", pa.int8()),
        ("size", pa.int32()),
        ("indices", pa.list_(pa.int32())),
        ("values", pa.list_(pa.float64())),
    ]
)
VALUES = st.floats(width=32, allow_nan=True) | st.sampled_from([0.0, -0.0])


@st.composite
def vectors(draw):
    """Return a size, rows as Spark has them, and the same as a matrix."""
    size = draw(st.sampled_from([1, 2, 7, 1000]))
    rows, dense = [], []
    for _ in range(draw(st.integers(1, 20))):
        full = np.zeros(size, np.float32)
        if size < 10 and draw(st.booleans()):
            values = draw(st.lists(VALUES, min_size=size, max_size=size))
            full[:] = values
            rows.append({"type": 1, "size": None, "indices": None, "values": values})
        else:
            places = sorted(draw(st.sets(st.integers(0, size - 1), max_size=6)))
            values = draw(st.lists(VALUES, min_size=len(places), max_size=len(places)))
            full[places] = values
            rows.append({"type": 0, "size": size, "indices": places, "values": values})
        dense.append(full)
    return size, rows, np.stack(dense)


@pytest.fixture(scope="module", autouse=True)
def tf():
    """Import it when the first test runs."""
    return pytest.importorskip("tensorflow")


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(vectors(), st.integers(1, 7), st.booleans())
def test_what_was_fed_is_what_arrives(tf, tmp_path_factory, made, batch_size, shuffle):
    size, rows, dense = made
    table = pa.table({"v": pa.array(rows, VECTOR), "row": pa.array(range(len(rows)))})
    place = tmp_path_factory.mktemp("spool")
    with SpoolWriter(place, FeedOptions(columns={"v": Sparse(size)})) as writer:
        for batch in table.to_batches(max_chunksize=7):
            writer.write("train", batch)
    reader = SpoolReader(place, "train")
    assert reader.left_out == {}
    steps = steps_for([len(rows)], batch_size, "spread")
    dataset = make_dataset(
        reader, features=["v", "row"], batch_size=batch_size, steps=steps, shuffle=shuffle
    )
    assert isinstance(dataset.element_spec["v"], tf.SparseTensorSpec)
    seen = []
    for batch in dataset.take(steps):
        sparse = batch["v"]
        assert sparse.dense_shape.numpy().tolist() == [len(batch["row"]), size]
        assert (np.diff(sparse.indices.numpy() @ [size, 1]) > 0).all()  # in order, each once
        found = np.zeros((len(batch["row"]), size), np.float32)
        found[tuple(sparse.indices.numpy().T)] = sparse.values.numpy()
        for row, values in zip(batch["row"].numpy(), found, strict=True):
            seen.append(int(row))
            assert values.tobytes() == dense[row].tobytes()
    assert set(seen) == set(range(len(rows)))
    if not shuffle:
        assert seen == [*range(len(rows))]


def normal(rows, size, kind=VECTOR):
    batch = pa.record_batch({"v": pa.array(rows, kind), "x": pa.array(range(len(rows)))})
    findings = Findings()
    found, _ = normalise(batch, "train", FeedOptions(columns={"v": Sparse(size)}), None, findings)
    return found, findings.left_out


def test_arrays_and_structs_of_others_and_rows_that_were_here_before():
    found, left_out = normal([[0, 1.5, 0], [2, 0, 0]], 3, pa.list_(pa.float64()))
    assert left_out == {}
    assert found["v"].to_pylist()[1] == [int(np.float32(2).view(np.uint32))]
    other = pa.struct([("indices", pa.list_(pa.int64())), ("values", pa.list_(pa.float32()))])
    named, _ = normal(
        [{"indices": [1], "values": [1.5]}, {"indices": [0], "values": [2]}], 3, other
    )
    assert named["v"].equals(found["v"])
    again, _ = normalise(found, "train", FeedOptions(columns={"v": Sparse(3)}), found.schema)
    assert again.equals(found)
    sliced = pa.array([[9, 9, 9], [0, 1.5, 0], [2, 0, 0]], pa.list_(pa.float64())).slice(1)
    batch = pa.record_batch({"v": sliced})
    assert normalise(batch, "t", FeedOptions(columns={"v": Sparse(3)}))[0]["v"].equals(found["v"])
    null = [{"indices": [1], "values": [1.5]}, None]
    batch = pa.record_batch({"v": pa.array(null, other)})
    kept, dropped = normalise(batch, "t", FeedOptions("drop", {"v": Sparse(3)}))
    assert (kept.num_rows, dropped) == (1, 1)


@pytest.mark.parametrize(
    ("row", "size", "words"),
    [
        (
            {"type": 0, "size": 3, "indices": [0, 3], "values": [1, 2]},
            3,
            "at index 3, .* Sparse.3.",
        ),
        ({"type": 0, "size": 4, "indices": [0], "values": [1]}, 3, "of size 4, .* Sparse.3."),
        ({"type": 1, "values": [1, 2]}, 3, "of size 2, .* Sparse.3."),
        ({"type": 0, "size": 3, "indices": [1, 0], "values": [1, 2]}, 3, "aren't ascending"),
        ({"type": 0, "size": 3, "indices": [1], "values": [1, 2]}, 3, "numbers of indices"),
        ({"type": 0, "size": 3, "indices": [1], "values": [None]}, 3, "contains a null"),
    ],
)
def test_what_is_no_such_vector_is_left_out_with_the_reason(row, size, words):
    found, left_out = normal([row], size)
    assert found.schema.names == ["x"]
    with pytest.raises(DataError, match=f"column 'v' of dataset 'train' .*{words}"):
        raise DataError(left_out["v"])


def test_what_sparse_isnt_for():
    with pytest.raises(InvalidArgument, match="Sparse needs the size"):
        Sparse(0)
    with pytest.raises(InvalidArgument, match=r"Sparse\(size=3\).* dense vectors"):
        FeedOptions(columns={"v": Sparse(3)}).check_strategy("parameter_server")
    with pytest.raises(SchemaError, match=r"Sparse\(size\) is for"):
        normal_of = pa.record_batch({"v": pa.array(["a"])})
        normalise(normal_of, "train", FeedOptions(columns={"v": Sparse(3)}))
