"""Batches in tf.data and in Keras: the rows of the spool, the right number, the right epoch."""

import contextlib
import ctypes
import dataclasses
import gc
import resource
import subprocess
import sys
import threading
import weakref

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gridflow._feed.dataset.distributed import distribute
from gridflow._feed.dataset.epochs import EpochSource
from gridflow._feed.ledger import Ledger
from gridflow._feed.memory import aligned_empty
from gridflow._feed.plan.epochs import EpochCounter, steps_for
from gridflow._feed.plan.grants import FixedGrant
from gridflow._feed.selection import select
from gridflow._feed.store import SpoolReader, SpoolWriter
from gridflow._training.modes.base import DatasetRequest
from gridflow.errors import InvalidArgument, SchemaError
from suite.batches import LEAVES, make_dataset
from suite.waiting import patience, wait_for


@pytest.fixture(scope="module", autouse=True)
def tf():
    """Import it when the first test runs, not when tests are collected: it takes seconds."""
    return pytest.importorskip("tensorflow")


@pytest.fixture
def spool(tmp_path):
    """Make a reader of a dataset of these columns, written in batches of some rows."""

    def make(rows_per_batch=7, /, **columns):
        table = pa.table(columns)
        with SpoolWriter(tmp_path) as writer:
            writer.declare("train", table.schema)
            for start in range(0, table.num_rows, rows_per_batch):
                rows = table.slice(start, rows_per_batch).combine_chunks().to_batches()[0]
                writer.write("train", rows)
        return SpoolReader(tmp_path, "train")

    return make


def ids(dataset):
    return [int(i) for x in dataset for i in np.ravel(x)]


ROWS = st.integers(1, 40)


@st.composite
def tables(draw):
    rows = draw(ROWS)
    columns = {}
    for i in range(draw(st.integers(1, 4))):
        kind, values = LEAVES[draw(st.sampled_from(sorted(LEAVES)))]
        for size in draw(st.lists(st.integers(1, 3), max_size=2)):
            kind, values = pa.list_(kind), st.lists(values, min_size=size, max_size=size)
        column = draw(st.lists(values, min_size=rows, max_size=rows))
        columns[f"c{i}"] = pa.array(column, kind)
    return pa.table(columns)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(tables(), st.integers(1, 9), st.booleans())
def test_tensors_equal_the_rows_of_any_table(tmp_path_factory, table, batch_size, shuffle):
    place = tmp_path_factory.mktemp("spool")
    table = table.append_column("row", pa.array(range(table.num_rows)))
    with SpoolWriter(place) as writer:
        for batch in table.to_batches(max_chunksize=11):
            writer.write("train", batch)
    dataset = make_dataset(
        SpoolReader(place, "train"),
        features=table.column_names,
        batch_size=batch_size,
        steps=steps_for([table.num_rows], batch_size, "partial"),
        tail="partial",
        shuffle=shuffle,
        window_rows=8,
    )
    seen = []
    for batch in dataset.as_numpy_iterator():
        seen += batch["row"].tolist()
        for name in table.column_names:
            want = table.column(name).take(pa.array(batch["row"])).to_pylist()
            got = batch[name].tolist()
            kind = table.schema.field(name).type
            while pa.types.is_list(kind):
                kind = kind.value_type
            if pa.types.is_string(kind):
                got = nested(got, bytes.decode)
            np.testing.assert_equal(got, want)
    assert sorted(seen) == list(range(table.num_rows))
    assert shuffle or seen == sorted(seen)


def nested(value, function):
    return [nested(v, function) for v in value] if isinstance(value, list) else function(value)


def test_elements_have_the_structure_and_static_shapes_that_keras_expects(spool, tf):
    reader = spool(
        a=np.arange(10),
        b=np.arange(10) / 2,
        w=np.ones(10, np.float32),
        s=[str(i) for i in range(10)],
    )
    options = {"batch_size": 4, "steps": 3}
    full = make_dataset(
        reader,
        features={"num": ["a", "b"], "text": "s"},
        label="b",
        sample_weight="w",
        tail="repeat",
        **options,
    )
    x, y, w = full.element_spec
    assert x["num"] == tf.TensorSpec((4, 2), tf.float32)
    assert x["text"] == tf.TensorSpec((4,), tf.string)
    assert (y.dtype, w.dtype) == (tf.float64, tf.float32)
    (batch, _, _) = next(iter(full))
    assert batch["num"].numpy().tolist() == [[0, 0], [1, 0.5], [2, 1], [3, 1.5]]
    assert batch["text"].numpy().tolist() == [b"0", b"1", b"2", b"3"]
    alone = make_dataset(reader, features="a", **options)
    assert alone.element_spec == tf.TensorSpec((None,), tf.int64)
    assert [len(x) for x in alone] == [4, 3, 3]
    again = make_dataset(reader, features="a", tail="repeat", **options)
    assert again.element_spec == tf.TensorSpec((4,), tf.int64)
    partial = make_dataset(reader, features="a", tail="partial", **options)
    assert [len(x) for x in partial] == [4, 4, 2]


@pytest.mark.parametrize("shuffle", [False, True])
def test_cardinality_and_every_epoch_have_the_same_number_of_full_batches(spool, shuffle):
    dataset = make_dataset(
        spool(i=np.arange(23)), features="i", batch_size=4, steps=9, tail="repeat", shuffle=shuffle
    )
    assert int(dataset.cardinality()) == 9
    assert int(dataset.map(lambda x: x).cardinality()) == 9
    epochs = [ids(dataset) for _ in range(3)]
    for epoch in epochs:
        assert len(epoch) == 36
        assert set(epoch) == set(range(23))
    assert (epochs[0] == epochs[1]) is not shuffle


def test_a_set_epoch_and_batch_give_the_end_of_that_epoch_and_then_the_next(spool):
    reader = spool(i=np.arange(50))
    options = {"features": "i", "batch_size": 4, "steps": 13, "shuffle": True, "seed": 3}
    options["tail"] = "repeat"
    plain = make_dataset(reader, **options)
    first, second, third = (ids(plain) for _ in range(3))
    counter = EpochCounter()
    again = make_dataset(reader, counter=counter, **options)
    counter.set(1, start_batch=5)
    assert ids(again) == second[20:]
    assert ids(again) == third
    counter.set(0)
    assert ids(again) == first
    other = make_dataset(reader, rank=1, **options)
    assert ids(other) != first


def test_an_iterator_that_is_made_but_not_drawn_takes_no_epoch(spool):
    counter = EpochCounter()
    dataset = make_dataset(
        spool(i=np.arange(50)), features="i", batch_size=5, steps=10, counter=counter
    )
    kept = [iter(dataset) for _ in range(3)]
    assert counter.pending == (0, 0)
    next(kept[1])
    assert counter.pending == (1, 0)


def test_what_a_dataset_reads_is_let_go_with_its_last_user(spool):
    reader = spool(n=np.arange(20))
    held = weakref.ref(reader)
    iterator = iter(
        make_dataset(reader, steps=5, features="n", batch_size=4).map(lambda n: n).prefetch(1)
    )
    del reader
    gc.collect()
    assert ids(iterator) == list(range(20))
    del iterator
    wait_for(lambda: gc.collect() is not None and held() is None, "the reader to be let go")


def test_an_endless_dataset_goes_on_with_the_next_epoch(spool, tf):
    reader = spool(i=np.arange(20))
    options = {"features": "i", "batch_size": 4, "steps": 5, "shuffle": True}
    counter = EpochCounter(0, 2)
    endless = make_dataset(reader, endless=True, counter=counter, **options)
    assert int(endless.cardinality()) == tf.data.INFINITE_CARDINALITY
    plain = make_dataset(reader, **options)
    first, second, third = (ids(plain) for _ in range(3))
    assert ids(endless.take(3 + 5 + 5)) == [*first[8:], *second, *third]


def test_a_start_beyond_the_epoch_is_an_error_that_tells_the_way_out(spool, tf):
    counter = EpochCounter(2, 5)
    dataset = make_dataset(
        spool(i=np.arange(20)), features="i", batch_size=4, steps=5, counter=counter
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"EpochCounter.set\(3\)"):
        ids(dataset)
    with pytest.raises(InvalidArgument, match="count from 0"):
        counter.set(-1)


def test_each_epoch_is_reported_once_and_the_ledger_balances(spool):
    reader = spool(i=np.arange(50))
    ledger = Ledger()
    ledger.set_counts("train", 0, reader.counts)
    counter = EpochCounter()
    dataset = make_dataset(
        reader,
        features="i",
        batch_size=4,
        steps=15,
        tail="repeat",
        on_epoch=ledger.add,
        counter=counter,
    )
    ids(dataset)
    counter.set(1, 5)
    ids(dataset)
    iterator = iter(dataset)
    for _ in range(15):  # as Keras does: never asks for a 16th
        next(iterator)
    assert [(r.epoch, r.rows_fed, r.rows_before) for r in ledger.records] == [
        (0, 60, 0),
        (1, 40, 20),
        (2, 60, 0),
    ]
    assert all(r.complete and r.rows_repeated == 10 for r in ledger.records)
    assert ledger.check() == []


@pytest.mark.parametrize(
    ("tail", "steps", "given"), [("spread", 15, 26), ("repeat", 13, 28), ("drop", 12, 28)]
)
def test_the_first_steps_are_all_of_an_epoch_wherever_it_begins(spool, tail, steps, given):
    reader, ledger = spool(i=np.arange(50)), Ledger()
    ledger.set_counts("train", 0, reader.counts)
    columns = select(reader.specs, "i", dataset="train")
    source = EpochSource(
        reader=reader,
        selection=columns,
        batch_size=4,
        grant=FixedGrant(steps),
        tail=tail,
        shuffle=True,
        on_epoch=ledger.add,
    )
    some = dataclasses.replace(source, first_steps=7, counter=EpochCounter())

    def rows(source):
        return [int(i) for (window,) in source.epoch() for i in window.ravel()]

    whole, part = rows(source), rows(some)
    assert part == whole[: len(part)]
    assert len(part) == given
    some.counter.set(0, 2)
    assert rows(some) == part[8:]
    assert some.counter.pending == (1, 0)
    assert ledger.check() == []
    left_out = [r.rows_left_out for r in ledger.records]
    assert left_out == [2 if tail == "drop" else 0, 50 - given, 50 - given]


def test_an_epoch_that_was_left_before_its_end_was_seen_takes_nothing_from_the_next(spool):
    # Keras reads a resumed epoch by number and drops the iterator, wherever tf.data's thread is.
    reader, counter = spool(i=np.arange(20)), EpochCounter(0, 2)
    source = EpochSource(
        reader=reader,
        selection=select(reader.specs, "i", dataset="train"),
        batch_size=4,
        grant=FixedGrant(5),
        counter=counter,
    )

    def rows():
        return [int(i) for (window,) in source.epoch() for i in window.ravel()]

    assert rows() == [*range(8, 20)]
    assert rows() == [*range(20)]


def test_the_first_steps_of_a_rank_with_fewer_are_those_that_it_has(spool):
    from gridflow._keras.array_data import ArrayDataset

    reader = spool(i=np.arange(3))
    columns = select(reader.specs, "i", dataset="train")
    source = EpochSource(
        reader=reader,
        selection=columns,
        batch_size=8,
        grant=FixedGrant(5),
        rank=1,
        endless=True,
    )
    once = ArrayDataset(source, [35, 3]).take(3)._gridflow_evaluation
    assert [batch.tolist() for batch in once.view] == [[0, 1, 2]]


def test_an_iteration_that_is_given_up_is_reported_as_incomplete(spool):
    records, reported = [], threading.Event()

    def report(record):
        records.append(record)
        reported.set()

    dataset = make_dataset(
        spool(i=np.arange(400)),
        features="i",
        batch_size=4,
        steps=100,
        on_epoch=report,
        window_rows=8,
    )
    iterator = iter(dataset)
    next(iterator)
    del iterator
    gc.collect()
    assert reported.wait(patience())
    assert records[0]["complete"] is False
    assert 4 <= records[0]["rows_fed"] < 400


def faults_of_tensors(libc):
    """Allocate and free 4 MiB twenty times, as operations of TensorFlow do."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        block = ctypes.c_void_p(libc.malloc(4 << 20))
        libc.memset(block, 1, 4 << 20)
        libc.free(block)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def test_malloc_keeps_what_tensorflow_frees_once_an_epoch_has_begun(spool):
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    assert libc.mallopt(-3, 128 << 10)  # M_MMAP_THRESHOLD, as TensorFlow sets it for generators
    assert faults_of_tensors(libc) > 10_000
    next(iter(make_dataset(spool(i=np.arange(8)), features="i", batch_size=4, steps=2)))
    assert faults_of_tensors(libc) < 5_000


def test_a_large_block_is_used_again_once_nobody_refers_to_it():
    shape, dtype = (9 << 20,), np.dtype("f4")
    first = aligned_empty(shape, dtype)
    part, address = first[5:9], first.ctypes.data
    del first
    second = aligned_empty(shape, dtype)
    assert second.ctypes.data != address, "a part of it is used"
    del part
    assert aligned_empty(shape, dtype).ctypes.data == address
    assert aligned_empty((10 << 20,), dtype).ctypes.data not in {address, second.ctypes.data}


def test_numeric_batches_are_aligned_fresh_and_never_written_again(spool):
    assert all(aligned_empty((n,), np.dtype("i1")).ctypes.data % 64 == 0 for n in range(1, 99, 7))
    assert aligned_empty((0, 3), np.dtype("f4")).shape == (0, 3)
    dataset = make_dataset(
        spool(i=np.arange(4000)),
        features="i",
        batch_size=50,
        steps=80,
        shuffle=True,
        window_rows=100,
    )
    kept = list(dataset)
    copies = [x.numpy().copy() for x in kept]
    ids(dataset)
    assert all((x.numpy() == copy).all() for x, copy in zip(kept, copies, strict=True))
    assert sorted(np.concatenate(copies)) == list(range(4000))


def test_the_columns_are_checked_at_the_call(spool):
    reader = spool(speed=np.arange(4))
    with pytest.raises(SchemaError, match="Did you mean 'speed'"):
        make_dataset(reader, features="sped", batch_size=1, steps=1)
    with pytest.raises(InvalidArgument, match="need 8 rows, but there are 4"):
        make_dataset(reader, features="speed", batch_size=4, steps=2, tail="drop")


@pytest.mark.slow
def test_replicas_of_a_process_share_a_batch(spool, tmp_path):
    """In a process of its own: logical devices must be made before TensorFlow starts."""
    spool(i=np.arange(40))
    script = """
import pathlib, sys
import tensorflow as tf
from gridflow.errors import InvalidArgument
from gridflow._feed.plan.epochs import EpochCounter
from gridflow._feed.dataset.distributed import distribute
from gridflow._feed.plan.grants import FixedGrant
from gridflow._feed.store import SpoolReader

device = tf.config.LogicalDeviceConfiguration()
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [device, device]
)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
reader = SpoolReader(pathlib.Path(sys.argv[1]), "train")
counter = EpochCounter()
options = {"features": "i", "batch_size": 8, "grant": FixedGrant(5), "counter": counter}
distributed = distribute(strategy, reader, **options)
assert int(distributed.cardinality) == 5, distributed.cardinality
assert distributed.cardinality() == 5, "as that of other datasets"
values = [[v.numpy().tolist() for v in x.values] for x in distributed]
assert values[0] == [[0, 1, 2, 3], [4, 5, 6, 7]], values
assert len(values) == 5
counter.set(1, 3)
assert len(list(distributed)) == 2
assert counter.pending == (2, 0)
assert len(distributed) == 5
twice = distributed.map(lambda x: 2 * x).take(3).map(lambda x: x + 1)
values = [[v.numpy().tolist() for v in x.values] for x in twice]
assert len(twice) == len(values) == 3
assert values[0] == [[1, 3, 5, 7], [9, 11, 13, 15]], values
for changed, message in (({"batch_size": 9}, "multiple of 2"), ({"tail": "partial"}, "partial")):
    try:
        distribute(strategy, reader, **{**options, **changed})
    except InvalidArgument as error:
        assert message in str(error), error
    else:
        raise AssertionError(message)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, tmp_path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_other_strategies_get_the_plain_dataset(spool, tf):
    options = {"features": "i", "batch_size": 8, "grant": FixedGrant(5)}
    reader = spool(i=np.arange(40))
    for strategy in (None, tf.distribute.get_strategy()):
        assert isinstance(distribute(strategy, reader, **options), tf.data.Dataset)


class Recorder:
    """Notes, by callbacks, what a fit did; resets the epoch as the checkpoint callback does."""

    def __init__(self, keras, counter, start):
        class Callback(keras.callbacks.Callback):
            def on_epoch_begin(_, epoch, logs=None):  # noqa: N805
                counter.set(epoch, start[1] if epoch == start[0] else 0)

            def on_train_batch_begin(_, batch, logs=None):  # noqa: N805
                self.batches.append(batch)

        self.batches = []
        self.callback = Callback()


def model_of(keras):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(1e-4), "mse")
    return model


@contextlib.contextmanager
def resumed_epochs(counter):
    """Let Keras 3's fit end an epoch that ``counter`` starts at batch k after ``steps - k``."""
    from keras.src.backend.tensorflow import trainer

    cls = trainer.TFEpochIterator
    original = cls._enumerate_iterator

    def enumerate_iterator(self):
        start = counter.pending[1]
        limits = self._num_batches, self.steps_per_epoch
        if start:
            self._num_batches, self.steps_per_epoch = (n and n - start for n in limits)
        for begin, end, iterator in original(self):
            yield begin + start, end + start, iterator
        self._num_batches, self.steps_per_epoch = limits

    cls._enumerate_iterator = enumerate_iterator
    try:
        yield
    finally:
        cls._enumerate_iterator = original


def test_keras_3_trains_each_epoch_and_ends_a_resumed_one_by_number(spool):
    keras = pytest.importorskip("keras")
    x = np.arange(40, dtype=np.float32)[:, None]
    reader = spool(x=pa.FixedSizeListArray.from_arrays(x.ravel(), 1), y=x.ravel())
    options = {"features": "x", "label": "y", "batch_size": 4, "steps": 10, "shuffle": True}

    def fit(model, start, epochs, weights=None):
        counter, records = EpochCounter(), []
        recorder = Recorder(keras, counter, start)
        dataset = make_dataset(reader, counter=counter, on_epoch=records.append, **options)
        with resumed_epochs(counter):
            model.fit(
                dataset,
                epochs=epochs,
                initial_epoch=start[0],
                callbacks=[recorder.callback],
                validation_data=make_dataset(reader, **options),
                shuffle=False,
                verbose=0,
            )
        return recorder.batches, [r for r in records if r["complete"]]

    whole = model_of(keras)
    batches, records = fit(whole, (0, 0), 3)
    assert batches == list(range(10)) * 3
    assert [record["epoch"] for record in records] == [0, 1, 2]

    part = model_of(keras)
    seen = iter(make_dataset(reader, **options))
    for _ in range(10):
        part.train_on_batch(*next(seen))
    second = make_dataset(reader, counter=EpochCounter(1), **options)
    for x_batch, y_batch in second.take(6):
        part.train_on_batch(x_batch, y_batch)
    batches, records = fit(part, (1, 6), 3)
    assert batches == [6, 7, 8, 9, *range(10)]
    assert int(part.optimizer.iterations) == int(whole.optimizer.iterations) == 30
    assert [(r["epoch"], r["rows_before"]) for r in records] == [(1, 24), (2, 0)]
    for a, b in zip(part.get_weights(), whole.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_tf_keras_starts_inside_an_epoch_when_its_counters_are_loaded(spool):
    keras = pytest.importorskip("tf_keras")
    x = np.arange(40, dtype=np.float32)[:, None]
    reader = spool(x=pa.FixedSizeListArray.from_arrays(x.ravel(), 1), y=x.ravel())
    counter, records = EpochCounter(), []
    dataset = make_dataset(
        reader,
        features="x",
        label="y",
        batch_size=4,
        steps=10,
        shuffle=True,
        counter=counter,
        on_epoch=records.append,
    )
    model = model_of(keras)
    recorder = Recorder(keras, counter, (1, 6))
    model._maybe_load_initial_counters_from_ckpt = lambda _steps, _epoch: (1, 6)
    model.fit(dataset, epochs=3, callbacks=[recorder.callback], verbose=0)
    assert recorder.batches == [6, 7, 8, 9, *range(10)]
    assert int(model.optimizer.iterations) == 14
    assert [(r["epoch"], r["rows_before"]) for r in records] == [(1, 24), (2, 0)]


def test_options_of_a_dataset_are_checked():
    with pytest.raises(InvalidArgument, match="shuffle must be True or False; got 'no'"):
        DatasetRequest("train", 8, "x", shuffle="no")
    with pytest.raises(InvalidArgument, match="map must be a function of batches; got 'x'"):
        DatasetRequest("train", 8, "x", function="x")
