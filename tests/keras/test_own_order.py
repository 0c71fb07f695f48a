"""Data of one's own that are shuffled, on two workers: in one order, or said in the log."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
from ranks import run_job

from suite.new_process import in_new_process

ROWS, BATCH, EPOCHS = 48, 8, 3
X = np.arange(ROWS, dtype="float32").reshape(ROWS, 1)


def rows_of_fits(ctx, flavour, options, data=None):
    """Return the rows that this worker trained in each epoch of two fits."""
    import tensorflow as tf

    keras = importlib.import_module(flavour)
    seen = []

    def take(x):
        seen.extend(x[:, 0].tolist())
        return np.float32(0)

    class Noting(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1)

        def call(self, x):
            return self.dense(x)

        def train_step(self, given):
            taken = tf.numpy_function(take, [given[0]], tf.float32)
            with tf.control_dependencies([taken]):
                return super().train_step(given)

    with ctx.strategy.scope():
        model = Noting()
        model.compile("sgd", "mse")
    given = (X, X) if data is None else (data(tf),)
    for _ in range(2):
        model.fit(*given, epochs=EPOCHS, verbose=0, **options)
    return np.reshape(seen, (2 * EPOCHS, -1)).tolist()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flavour", "shuffle"),
    [("keras", True), ("keras", "batch"), ("tf_keras", True)],  # its "batch" parts x from y
)
def test_arrays_are_shuffled_in_one_order_by_all_workers_and_anew_in_each_epoch(flavour, shuffle):
    options = {"batch_size": BATCH, "shuffle": shuffle}
    (one, other), _ = run_job(
        rows_of_fits, 2, "multi_worker_mirrored", arguments=(flavour, options)
    )
    for mine, theirs in zip(one, other, strict=True):
        assert sorted(mine + theirs) == X[:, 0].tolist()
    orders = [tuple(epoch) for epoch in one]
    assert len(set(orders)) == 2 * EPOCHS
    if shuffle is True:
        assert all(sorted(epoch) != sorted(one[0]) for epoch in one[1:])


def files(tf):
    """Return a dataset that reads as many files as there are workers."""
    import os
    import tempfile

    folder = tempfile.mkdtemp(dir=os.getcwd())
    for part in range(2):
        with open(f"{folder}/{part}.txt", "w") as file:
            file.writelines(f"{row}\n" for row in range(part, ROWS, 2))
    names = tf.data.Dataset.from_tensor_slices([f"{folder}/0.txt", f"{folder}/1.txt"])
    lines = names.interleave(tf.data.TextLineDataset)
    return lines.map(lambda line: 2 * (tf.reshape(tf.strings.to_number(line), (1,)),)).batch(BATCH)


def shuffled(tf):
    """Return a dataset that each worker shuffles for itself."""
    return tf.data.Dataset.from_tensor_slices((X, X)).shuffle(ROWS).batch(BATCH)


def seeded(tf):
    """Return a dataset that all workers shuffle alike."""
    return tf.data.Dataset.from_tensor_slices((X, X)).shuffle(ROWS, seed=1).batch(BATCH)


@pytest.mark.slow
@pytest.mark.parametrize("flavour", ["keras", "tf_keras"])
@pytest.mark.parametrize(
    ("data", "said"),
    [(shuffled, "shuffle(…) has no seed="), (files, "reads different files"), (seeded, None)],
)
def test_the_log_says_once_which_batches_are_not_those_of_one_process(capfd, flavour, data, said):
    run_job(rows_of_fits, 2, "multi_worker_mirrored", arguments=(flavour, {}, data), logs="all")
    captured = capfd.readouterr()
    lines = (captured.out + captured.err).splitlines()
    found = [line for line in lines if "docs/distribution.md" in line]
    if said is None:
        assert not found
    else:
        assert len(found) == 2  # once by each worker
        assert all(said in line for line in found)


def test_a_pipeline_is_looked_into_once_however_many_fits_it_has(monkeypatch):
    import tensorflow as tf

    from gridflow._keras.patches.hooks import own_order

    looked_into = []
    monkeypatch.setattr(own_order, "_is_of_several_workers", lambda _: True)
    monkeypatch.setattr(own_order, "inputs_of", lambda data: looked_into.append(data) or ())
    one, other = shuffled(tf), shuffled(tf)
    for data in (one, one, other):
        own_order.say_what_differs(data, None)
    assert looked_into == [one, other]


@pytest.mark.slow
def test_datasets_of_rows_are_not_zipped_without_a_word(tmp_path):
    found = in_new_process(
        f"""
        import pathlib, warnings
        import keras
        import pyarrow as pa
        import tensorflow as tf
        from gridflow._feed.dataset.distributed import distribute
        from gridflow._feed.plan.grants import FixedGrant
        from gridflow._feed.store import SpoolReader, SpoolWriter
        from gridflow._keras.patches import registry
        from gridflow.errors import InvalidArgument

        registry.apply()
        (cpu,) = tf.config.list_physical_devices("CPU")
        two = [tf.config.LogicalDeviceConfiguration()] * 2
        tf.config.set_logical_device_configuration(cpu, two)
        folder = pathlib.Path({str(tmp_path)!r})
        with SpoolWriter(folder) as writer:
            for name in ("features", "labels"):
                writer.write(name, pa.record_batch({{"x": [1, 2, 3, 4]}}))

        def dataset(name, strategy=None, **options):
            options = {{"features": "x", "batch_size": 2, "grant": FixedGrant(2), **options}}
            return distribute(strategy, SpoolReader(folder, name), **options)

        def told(*datasets):
            with warnings.catch_warnings(record=True) as found:
                warnings.simplefilter("always")
                assert len(list(tf.data.Dataset.zip(*datasets))) == 2
            return [str(each.message) for each in found if "zip pairs" in str(each.message)]

        features, labels = dataset("features"), dataset("labels")
        (said,) = told(features.map(lambda x: x), labels)
        assert "the batches of 'features' and 'labels' as they come" in said, said
        assert "join the DataFrames" in said, said
        assert told((features, dataset("features"))) == []
        assert told((features, tf.data.Dataset.range(9))) == []
        assert len(told((features, dataset("features", shuffle=True)))) == 1
        split = dataset("features", tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]))
        try:
            tf.data.Dataset.zip((split, features))
        except InvalidArgument as error:
            print("join the DataFrames before run(data=" in str(error))
        """
    )
    assert found == "True"
