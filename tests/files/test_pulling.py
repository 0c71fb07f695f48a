"""Jobs whose ranks read files themselves: from every store, in equal steps, to be resumed."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gridflow import DataError, TrainingFailed
from gridflow._files.systems import where
from gridflow.tfrecord import serialize_example, write_records


def numbers(start, rows):
    ids = np.arange(start, start + rows)
    x = (ids % 97 / 97).astype("f4")
    return {"id": ids, "x": x, "y": 2 * x + 1, "v": [[i, i / 2] for i in ids.tolist()]}


def write(folder, sizes=(500, 130, 370), group=100):
    """Write Parquet files, TFRecord files, and compressed ones, of 1,000 rows in all."""
    at = where(folder)
    at.system.create_dir(at.path, recursive=True)
    start = 0
    for number, rows in enumerate(sizes):
        columns = numbers(start, rows)
        start += rows
        with at.system.open_output_stream(f"{at.path}/{number}.parquet") as file:
            pq.write_table(pa.table(columns), file, row_group_size=group)
        records = [
            serialize_example({name: np.ravel(values[i]) for name, values in columns.items()})
            for i in range(rows)
        ]
        for suffix in ("tfrecord", "tfrecord.gz"):
            with tempfile.TemporaryDirectory() as aside:
                local = Path(aside, f"{number}.{suffix}")
                write_records(local, records)
                path = f"{at.path}/{local.name}"
                with at.system.open_output_stream(path, compression=None) as file:
                    file.write(local.read_bytes())
    return folder


def rows_of(dataset):
    found = []
    for x, y in dataset:
        np.testing.assert_allclose(x["v"].numpy()[:, 0], x["id"].numpy())
        np.testing.assert_allclose(y.numpy(), 2 * x["x"].numpy() + 1, rtol=1e-6)
        found += x["id"].numpy().tolist()
    return found


def read_all(ctx, folder):
    options = {"batch_size": 64, "features": ["id", "x", "v"], "label": "y"}
    parquet = ctx.parquet_dataset(f"{folder}/*.parquet", **options)
    records = ctx.tfrecord_dataset(f"{folder}/*.tfrecord", name="records", **options)
    zipped = ctx.tfrecord_dataset(f"{folder}/*.gz", name="zipped", shuffle=True, **options)
    parts = [(part.path, part.row_group) for part in ctx.files(f"{folder}/*.parquet")]
    with ctx.files(f"{folder}/*.parquet")[0].open() as file:
        magic = file.read(4)
    datasets = (parquet, records, zipped)
    return [(len(each), rows_of(each)) for each in datasets], parts, magic


@pytest.mark.slow
@pytest.mark.parametrize("stored", ["local", "s3", "hdfs"], indirect=True)
def test_ranks_read_every_row_of_files_in_any_store_once(stored, distribute):
    folder = write(stored)
    result = distribute().run(read_all, folder)
    for kind in range(3):
        steps, ids = zip(*(value[0][kind] for value in result.values), strict=True)
        assert len(set(steps)) == 1
        assert sorted(ids[0] + ids[1]) == list(range(1000))
        assert max(map(len, ids)) <= (560 if kind < 2 else 640)
    parts = result.values[0][1] + result.values[1][1]
    assert sorted(parts) == [
        (f"{folder}/{file}.parquet", group)
        for file, groups in enumerate((5, 2, 4))
        for group in range(groups)
    ]
    assert result.value[2] == b"PAR1"
    assert result.ledger.check() == []
    counts = {key: count.rows for key, count in result.ledger.counts.items()}
    assert sum(counts[name, rank] for name, rank in counts if name == "zipped") == 1000
    assert len(result.ledger.records) == 6


def fit(ctx, folder, die_at=None, epochs=3, change=None):
    import os

    import keras

    class Die(keras.callbacks.Callback):
        steps = 0

        def on_train_batch_end(self, batch, logs=None):
            self.steps += 1
            if self.steps == die_at and ctx.generation == 0 and ctx.rank == 1:
                if change is not None:
                    change(folder)
                os._exit(9)

    keras.utils.set_random_seed(1)
    with ctx.strategy.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
    options = {"batch_size": 50, "features": [["x"]], "label": "y"}
    train = ctx.parquet_dataset(f"{folder}/*.parquet", **options)
    test = ctx.tfrecord_dataset(f"{folder}/*.tfrecord", name="test", **options)
    callbacks = [*ctx.callbacks(tensorboard=False), Die()]
    history = model.fit(train, epochs=epochs, verbose=0, callbacks=callbacks)
    found = model.evaluate(test, verbose=0, return_dict=True)
    weights = [w.tolist() for w in model.get_weights()]
    return history.history["loss"], weights, found


@pytest.mark.slow
def test_a_fit_on_files_that_died_ends_with_the_weights_of_one_that_did_not(tmp_path, distribute):
    folder = write(str(tmp_path))
    synchronous = {"strategy": "multi_worker_mirrored", "seed": 3, "checkpoint_every": 4}
    plain = distribute(**synchronous).run(fit, folder)
    died = distribute(**synchronous, max_restarts=1).run(fit, folder, die_at=17)
    assert plain.values[0] == plain.values[1]
    np.testing.assert_allclose(died.value[0], plain.value[0], rtol=1e-6)
    np.testing.assert_allclose(np.ravel(died.value[1][0]), np.ravel(plain.value[1][0]), rtol=1e-6)
    # What all ranks tested together is every row once.
    x = numbers(0, 1000)["x"]
    kernel, bias = (np.ravel(w)[0] for w in plain.value[1])
    expected = float(np.mean(np.abs(kernel * x + bias - (2 * x + 1))))
    assert plain.value[2]["mae"] == pytest.approx(expected, rel=1e-4)
    assert died.ledger.check() == []


def append(folder):
    pq.write_table(pa.table(numbers(0, 20)), f"{folder}/0.parquet")


@pytest.mark.slow
def test_a_restart_refuses_files_that_have_changed(tmp_path, distribute):
    folder = write(str(tmp_path))
    job = distribute(strategy="multi_worker_mirrored", checkpoint_every=2, max_restarts=1)
    with pytest.raises(DataError, match="files of dataset 'train' have changed since the che"):
        job.run(fit, folder, die_at=9, change=append)


def seen_differently(ctx, folder):
    path = f"{folder}/*.parquet" if ctx.is_chief else f"{folder}/[01].parquet"
    ctx.parquet_dataset(path, batch_size=8, features="x")


@pytest.mark.slow
def test_ranks_that_see_other_files_fail_instead_of_waiting(tmp_path, distribute):
    folder = write(str(tmp_path))
    with pytest.raises((TrainingFailed, DataError), match="rank 0: 3, rank 1: 2 files"):
        distribute(strategy="multi_worker_mirrored").run(seen_differently, folder)
