"""The data service: who runs it, what is counted under each sharding, and whoever of it dies."""

from __future__ import annotations

import importlib
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gridflow import InvalidArgument, LocalLauncher, Role, TensorflowDistributor, TrainingFailed
from gridflow._spec.cluster import Task
from gridflow._spec.job import make_tasks, parts_of
from gridflow._spec.option_groups import SHARDINGS, read_address
from suite.data_service import (
    BATCH,
    expected,
    most_missing,
    read_numbers,
    train,
    write_numbers,
)

# --- what is known before anything runs ---------------------------------------------------------


@pytest.mark.parametrize(
    ("roles", "words"),
    [
        ([Role("data", 2)], "no role trains"),
        ([Role("worker"), Role("dispatcher")], "add data workers"),
    ],
)
def test_roles_that_make_no_job_are_refused(roles, words):
    with pytest.raises(InvalidArgument, match=words):
        TensorflowDistributor(roles=roles, launcher=LocalLauncher())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"name": "data", "command": ["python"]}, "no command"),
        ({"name": "data", "command": []}, "no command"),
        ({"name": "dispatcher", "count": 2}, "only one dispatcher"),
        ({"name": "data", "gpus": 1}, "can't have GPUs"),
    ],
)
def test_a_role_that_cant_be_is_refused(arguments, words):
    with pytest.raises(InvalidArgument, match=words):
        Role(**arguments)


def test_data_workers_get_a_dispatcher_and_each_a_slot():
    roles = [Role("data", 2), Role("worker", 2), Role("evaluator")]
    distributor = TensorflowDistributor(roles=roles, launcher=LocalLauncher())
    tasks = "worker:0, worker:1, evaluator:0, dispatcher:0, data:0, data:1"
    assert tasks in str(distributor.plan(lambda: None))
    assert distributor.strategy == "multi_worker_mirrored"
    assert distributor.num_workers == 2


@pytest.mark.parametrize(
    "strategy", ["none", "multi_worker_mirrored", "parameter_server", "server", "command"]
)
def test_its_tasks_serve_are_replaced_and_run_no_function(strategy):
    parts = parts_of([Task("worker", 0), Task("dispatcher", 0), Task("data", 0)], strategy)
    for part in parts[1:]:
        assert part.serves
        assert part.is_replaced
        assert not any([part.runs_function, part.is_awaited, part.is_fed, part.is_pushed])


def test_jax_knows_no_such_tasks():
    with pytest.raises(InvalidArgument, match="dispatcher:0, data:0"):
        TensorflowDistributor(
            roles=[Role("worker"), Role("data")], backend="jax", launcher=LocalLauncher()
        )


def test_a_dispatcher_of_parameter_servers_is_added_beside_their_chief():
    names = map(str, make_tasks([Role("worker"), Role("ps"), Role("data")], "parameter_server"))
    assert list(names) == ["chief:0", "worker:0", "ps:0", "dispatcher:0", "data:0"]


@pytest.mark.parametrize("address", ["data.example:5050", "grpc://data.example:5050"])
def test_an_address_is_read(address):
    assert read_address("data_service=", address) == "data.example:5050"


@pytest.mark.parametrize(
    "address",
    ["data.example", "http://a:1", ":5050", "a:b", "a:0", "a:65536", "a:\u0663", 5050, None],
)
def test_what_is_no_address_is_refused(address):
    with pytest.raises(InvalidArgument, match="data_service= is the address"):
        read_address("data_service=", address)


# --- counting -----------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path):
    """Return a function that runs another one in a job with data workers."""

    def make(function, *args, workers=1, data=2, strategy="none", **options):
        distributor = TensorflowDistributor(
            roles=[Role("worker", workers), *([Role("data", data)] if data else [])],
            strategy=strategy,
            launcher=LocalLauncher(),
            logs="none",
            progress=False,
            **options,
        )
        return distributor.run(function, *args)

    return make


def of_every_sharding(ctx, files, count, victim):
    """Return what was read under every sharding, with or without a death in each."""
    return {
        sharding: read_numbers(ctx, files, count, sharding=sharding, victim=victim)
        for sharding in SHARDINGS
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "data", "victim"),
    [
        (4_000, 2, None),
        (4_000, 2, "data:0"),
        (4_000, 1, "dispatcher:0"),
        *(
            (10_000, data, victim)
            for data in (1, 2, 3)
            for victim in (None, "data:0", "dispatcher:0")
        ),
    ],
)
def test_counts_are_those_of_the_table(run, tmp_path, count, data, victim):
    files = write_numbers(tmp_path, count, files=6)
    result = run(of_every_sharding, files, count, victim, data=data)
    for sharding, seen in result.value.items():
        least, most = expected(sharding, data, victim)
        times = Counter(seen)
        assert not set(times) - set(range(count))
        counts = [times[number] for number in range(count)]
        missing, extra = count - len(times), len(seen) - len(times)
        print(f"{victim}, {data} data workers, {sharding}: {missing=} {extra=}")
        assert most is None or max(counts) <= most, sharding
        if least:
            assert min(counts) >= least, sharding
        else:
            assert missing <= most_missing(count, data, victim), sharding
    assert len(result.attempts) == 1


def passes(ctx, count, shared):
    """Return what a rank reads in two passes."""
    import tensorflow as tf

    dataset = ctx.data_service(tf.data.Dataset.range(count).batch(BATCH), shared=shared)
    # The other rank may have been so fast that nothing is left for this one.
    return [[int(i) for batch in dataset.as_numpy_iterator() for i in batch] for _ in range(2)]


@pytest.mark.slow
def test_ranks_share_each_pass_and_the_waits_are_told(run, capsys):
    result = run(passes, 1_000, True, workers=2)
    for first, second in zip(*result.values, strict=True):
        assert sorted(first + second) == list(range(1_000))
    told = capsys.readouterr().out
    assert "worker:0 waited" in told
    assert ") for the data service; elements: " in told
    assert "from data:1" in told


@pytest.mark.slow
def test_ranks_that_share_nothing_have_passes_of_their_own(run):
    result = run(passes, 200, False, workers=2, data=1)
    assert all(sorted(each) == list(range(200)) for rank in result.values for each in rank)


# --- training -----------------------------------------------------------------------------------


def trained_twice(ctx):
    """Return what a fit through the service finds, and one without it."""
    served = train(lambda rows: ctx.data_service(rows, sharding="off"), ctx.callbacks())
    with ctx.alone():
        return served, train(lambda rows: rows)


@pytest.mark.slow
def test_training_through_the_service_equals_training_without_it(run):
    served, plain = run(trained_twice, data=1).value
    assert served == pytest.approx(plain, abs=1e-6)


def images(count):
    """Return numbered images as a dataset, labelled by their numbers."""
    import tensorflow as tf

    return tf.data.Dataset.range(count).map(
        lambda i: (tf.fill([6, 6, 1], tf.cast(i, tf.float32)), tf.cast(i, tf.float32)[None])
    )


def trained_together(ctx, flavour, count):
    """Return what the epochs of a synchronous fit were made of, and the weights."""
    keras = importlib.import_module(flavour)

    class Rows(keras.metrics.Sum):
        """The sum of the labels that were trained on."""

        def update_state(self, y_true, y_pred, sample_weight=None):
            super().update_state(y_true)

    with ctx.strategy.scope():
        layers = [
            keras.layers.Conv2D(2, 3),
            keras.layers.BatchNormalization(),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(1),
        ]
        model = keras.Sequential([keras.Input((6, 6, 1)), *layers])
        model.compile(keras.optimizers.SGD(1e-4), "mse", metrics=[Rows(name="rows")])
    dataset = ctx.data_service(images(count).batch(7))
    history = model.fit(dataset, epochs=3, verbose=0, callbacks=ctx.callbacks()).history
    found = model.evaluate(dataset, verbose=0, return_dict=True)
    return [*history["rows"], found["rows"]], [each.tolist() for each in model.get_weights()]


@pytest.mark.slow
@pytest.mark.parametrize("flavour", ["keras", "tf_keras"])
def test_ranks_that_train_one_model_use_every_row_of_each_epoch(run, flavour):
    count = 101  # 15 batches: one rank has fewer, and can't train a convolution on none
    result = run(trained_together, flavour, count, workers=2, strategy="multi_worker_mirrored")
    (rows, weights), (others, same) = result.values
    assert rows == others == [sum(range(count))] * 4
    assert weights == same
    assert np.isfinite(np.concatenate([np.ravel(each) for each in weights])).all()


def trained_by_servers(ctx, count, steps):
    """Return the steps of a fit on parameter servers, and the mean of the labels it has seen."""
    import tensorflow as tf

    import keras

    with ctx.strategy.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
        model.compile(keras.optimizers.SGD(0.0), "mae")
    rows = tf.data.Dataset.range(count).map(lambda i: (tf.zeros([1]), tf.cast(i, tf.float32)[None]))
    history = ctx.fit(model, ctx.data_service(rows.batch(10)), epochs=2, steps_per_epoch=steps)
    return int(model.optimizer.iterations.numpy()), history.history["loss"]


@pytest.mark.slow
def test_workers_of_parameter_servers_read_through_it():
    distributor = TensorflowDistributor(
        roles=[Role("worker", 2), Role("ps"), Role("data")],
        launcher=LocalLauncher(),
        logs="none",
        progress=False,
    )
    steps, losses = distributor.run(trained_by_servers, 200, 20).value
    assert steps == 40
    assert all(50 < loss < 150 for loss in losses)


def reads_on(ctx, count):
    """Raise in the second epoch of the first generation; return what the epochs after it had."""
    import tensorflow as tf

    import keras

    class Rows(keras.metrics.Sum):
        """The sum of the labels that were trained on."""

        def update_state(self, y_true, y_pred, sample_weight=None):
            super().update_state(y_true)

    class Dies(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 1 and ctx.generation == 0:
                raise RuntimeError("a rank fails")

    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=[Rows(name="rows")])
    rows = tf.data.Dataset.range(count).map(lambda i: (tf.zeros([1]), tf.cast(i, tf.float32)[None]))
    dataset = ctx.data_service(rows.batch(7))
    model.fit(dataset, epochs=3, verbose=0, callbacks=[*ctx.callbacks(), Dies()])


@pytest.mark.slow
def test_a_group_that_is_started_again_goes_on_with_whole_epochs(run):
    result = run(reads_on, 50, max_restarts=1)
    assert [attempt.resumed_from for attempt in result.attempts][1] == (1, 0)
    assert result.history["rows"] == [sum(range(50))] * 3


# --- what is refused ----------------------------------------------------------------------------


def refusals(ctx, parquet):
    """Return what is said of pipelines and options that can't be."""
    import tensorflow as tf

    def halved(x):
        return x // 2

    numbers = tf.data.Dataset.range(3)
    tried = {
        "py_function": (numbers.map(lambda x: tf.py_function(halved, [x], tf.int64)), {}),
        "numpy_function": (numbers.map(lambda x: tf.numpy_function(halved, [x], tf.int64)), {}),
        "generator": (
            tf.data.Dataset.from_generator(
                lambda: iter([1]), output_signature=tf.TensorSpec((), tf.int64)
            ),
            {},
        ),
        "parquet": (
            ctx.parquet_dataset(parquet, batch_size=1, features="x").map(lambda x: x + 1),
            {},
        ),
        "list": ([1, 2], {}),
        "sharding": (numbers, {"sharding": "dinamic"}),
        "compression": (numbers, {"compression": "gzip"}),
        "job_name": (numbers, {"job_name": ""}),
        "shared": (numbers, {"shared": 1}),
    }
    said = {}
    for name, (dataset, options) in tried.items():
        try:
            ctx.data_service(dataset, **options)
        except InvalidArgument as error:
            said[name] = str(error)
    return said


@pytest.mark.slow
def test_what_cant_be_sent_is_refused_by_its_name(run, tmp_path):
    parquet = str(tmp_path / "x.parquet")
    pq.write_table(pa.table({"x": [1, 2]}), parquet)
    said = run(refusals, parquet, data=1).value
    assert "refusals.<locals>.halved. Data workers" in said["py_function"]
    assert "refusals.<locals>.halved. Data workers" in said["numpy_function"]
    assert "Dataset.from_generator. Data workers" in said["generator"]
    assert "ctx.parquet_dataset()" in said["parquet"]
    assert "gridflow.tfrecord.write_table" in said["parquet"]
    assert "got list" in said["list"]
    assert "Did you mean 'dynamic'" in said["sharding"]
    assert "got 'gzip'" in said["compression"]
    assert "got ''" in said["job_name"]
    assert "shared" in said["shared"]


def with_what_it_uses(ctx, path):
    """Return what data workers make of a pipeline that uses tables, a variable and a layer."""
    import tensorflow as tf

    import keras

    keys = tf.constant(["a", "b"])
    initial = tf.lookup.KeyValueTensorInitializer(keys, tf.constant([10, 20], tf.int64))
    table = tf.lookup.StaticHashTable(initial, -1)
    changed = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)
    changed.insert(keys, tf.constant([1, 2], tf.int64))
    variable = tf.Variable(300, dtype=tf.int64)
    layer = keras.layers.StringLookup(vocabulary=path)
    texts = tf.data.Dataset.from_tensor_slices(["a", "b", "c"])
    return [
        each.numpy().tolist()
        for each in ctx.data_service(
            texts.map(
                lambda text: tf.stack(
                    [table.lookup(text), changed.lookup(text), variable, layer(text)]
                )
            )
        )
    ]


@pytest.mark.slow
def test_what_a_pipeline_uses_is_sent_along(run, tmp_path):
    path = tmp_path / "vocabulary.txt"
    path.write_text("b\na\n")
    found = run(with_what_it_uses, str(path), data=1).value
    assert found == [[10, 1, 300, 2], [20, 2, 300, 1], [-1, -1, 300, 0]]


def another_one(ctx):
    """Give a pipeline that isn't the chief's."""
    import tensorflow as tf

    dataset = tf.data.Dataset.range(3)
    ctx.data_service(dataset if ctx.is_chief else dataset.batch(2))


@pytest.mark.slow
def test_a_pipeline_that_isnt_the_chiefs_is_refused(run):
    with pytest.raises(TrainingFailed, match="that of worker:1 has"):
        run(another_one, workers=2, data=1)


@pytest.mark.slow
def test_a_job_without_data_workers_says_how_to_have_some(run):
    with pytest.raises(TrainingFailed, match="has no data service"):
        run(passes, 3, True, data=0)
