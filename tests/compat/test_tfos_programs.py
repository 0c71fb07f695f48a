"""Programs of TensorFlowOnSpark, their imports changed: roles, streams, pipelines, files."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest

from gridflow import InvalidArgument, NotEnoughSlots, TrainingFailed
from gridflow.compat.tfos import TFCluster, TFNode, TFParallel, compat, dfutil
from gridflow.compat.tfos.pipeline import (
    HasBatchSize,
    HasSteps,
    Namespace,
    TFEstimator,
    TFModel,
    TFParams,
    yield_batch,
)
from suite.waiting import wait_for

# PySpark leaves sockets of its RDDs to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(scope="module", autouse=True)
def _callbacks(spark):
    """Start what streams call Python by: it belongs to Spark, and stays."""
    from pyspark.java_gateway import ensure_callback_server_started

    ensure_callback_server_started(spark.sparkContext._gateway)


def test_two_nodes_train_one_model_by_a_strategy_of_the_programs_own(spark, tmp_path):
    def main_fun(args, ctx):
        import os
        import socket

        import numpy as np
        import tensorflow as tf

        port = int(ctx.cluster_spec[ctx.job_name][ctx.task_index].rpartition(":")[2])
        assert ctx.tmp_socket.getsockname()[1] == port
        with socket.socket() as another, pytest.raises(OSError, match="in use"):
            another.bind(("", port))
        ctx.release_port()
        assert ctx.tmp_socket is None
        with socket.socket() as another:
            another.bind(("", port))
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        x = np.linspace(0, 1, 64, dtype="float32")[:, None]
        data = tf.data.Dataset.from_tensor_slices((x, 2 * x)).repeat().batch(16 * ctx.num_workers)
        with strategy.scope():
            model = tf.keras.Sequential([tf.keras.layers.Input((1,)), tf.keras.layers.Dense(1)])
            model.compile("sgd", "mse")
        model.fit(data, epochs=1, steps_per_epoch=5, verbose=0)
        task = json.loads(os.environ["TF_CONFIG"])["task"]
        facts = [strategy.num_replicas_in_sync, task, float(model.get_weights()[0][0, 0])]
        with open(f"{args.out}/{ctx.job_name}", "w") as file:
            json.dump(facts, file)

    args = Namespace({"out": str(tmp_path)})
    cluster = TFCluster.run(
        spark.sparkContext, main_fun, args, 2, 0, master_node="chief", release_port=False
    )
    assert [node["job_name"] for node in cluster.cluster_info] == ["chief", "worker"]
    cluster.shutdown()
    chief, worker = (json.loads((tmp_path / name).read_text()) for name in ("chief", "worker"))
    assert chief[:2] == [2, {"type": "chief", "index": 0}]
    assert worker[2] == chief[2]


def test_a_classic_program_with_a_server_beside_the_driver_and_a_command_line(spark, tmp_path):
    def main_fun(argv, ctx):
        import sys

        import tensorflow.compat.v1 as tf

        assert sys.argv == argv
        cluster, server = TFNode.start_cluster_server(ctx)
        if ctx.job_name == "ps":
            server.join()
        with tf.Graph().as_default():
            with tf.device(tf.train.replica_device_setter(cluster=cluster)):
                count = tf.get_variable("count", [], initializer=tf.zeros_initializer())
                step = count.assign_add(1.0, use_locking=True)
            chief = ctx.task_index == 0
            with tf.train.MonitoredTrainingSession(server.target, is_chief=chief) as session:
                session.run([step] * 1)
        with open(f"{argv[1]}/{ctx.task_index}", "w") as file:
            file.write(count.device)

    cluster = TFCluster.run(
        spark.sparkContext, main_fun, ["prog", str(tmp_path)], 3, 1, driver_ps_nodes=True
    )
    assert [node["job_name"] for node in cluster.cluster_info] == ["ps", "worker", "worker"]
    cluster.shutdown()
    assert {path.read_text() for path in tmp_path.iterdir()} == {"/job:ps/task:0"}


def test_an_evaluator_watches_and_ends_with_the_others(spark, tmp_path):
    def main_fun(args, ctx):
        import os

        if ctx.job_name == "evaluator":
            while True:
                with open(f"{args['out']}/partial", "w") as file:
                    file.write(os.environ["TF_CONFIG"])
                os.rename(file.name, f"{args['out']}/evaluator")  # it may be killed at any time
                time.sleep(0.1)
        wait_for(lambda: os.path.exists(f"{args['out']}/evaluator"), "the evaluator")

    cluster = TFCluster.run(
        spark.sparkContext,
        main_fun,
        {"out": str(tmp_path)},
        2,
        master_node="master",
        eval_node=True,
    )
    cluster.shutdown()
    config = json.loads((tmp_path / "evaluator").read_text())
    assert config["task"] == {"type": "evaluator", "index": 0}
    assert set(config["cluster"]) == {"master", "evaluator"}


def test_a_stream_is_fed_until_the_program_has_enough(spark, tmp_path):
    def main_fun(args, ctx):
        feed = ctx.get_data_feed()
        seen = 0
        while not feed.should_stop() and seen < 20:
            seen += len(feed.next_batch(10))
        feed.terminate()
        with open(f"{args['out']}/{ctx.task_index}", "w") as file:
            file.write(str(seen))

    from pyspark.streaming import StreamingContext

    sc = spark.sparkContext
    with pytest.warns(FutureWarning):
        ssc = StreamingContext(sc, 1)
    stream = ssc.queueStream([sc.parallelize(range(40), 2) for _ in range(20)])
    mode = TFCluster.InputMode.SPARK
    cluster = TFCluster.run(sc, main_fun, {"out": str(tmp_path)}, 2, input_mode=mode)
    cluster.train(stream, feed_timeout=60)
    ssc.start()
    cluster.shutdown(ssc)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["20", "20"]


def test_copies_that_know_nothing_of_each_other(spark, tmp_path):
    def main_fun(args, ctx):
        assert ctx.cluster_spec == {}
        with open(f"{args['out']}/{ctx.worker_num}", "w") as file:
            file.write(f"{ctx.executor_id} of {ctx.num_workers} {ctx.absolute_path('/x')}")
        if args["fail"]:
            raise ValueError("a copy failed")

    sc, args = spark.sparkContext, {"out": str(tmp_path), "fail": False}
    TFParallel.run(sc, main_fun, args, 3, use_barrier=False)
    assert sorted(path.read_text() for path in tmp_path.iterdir()) == [
        f"{n} of 3 file:///x" for n in range(3)
    ]
    with pytest.raises(NotEnoughSlots):
        TFParallel.run(sc, main_fun, args, 3)
    with pytest.raises(TrainingFailed, match="a copy failed"):
        TFParallel.run(sc, main_fun, {**args, "fail": True}, 2)


# Pipelines ---------------------------------------------------------------------------------------


def save_as_tensorflow_1(folder):
    import tensorflow as tf

    classic = tf.compat.v1
    with tf.Graph().as_default(), classic.Session() as session:
        x = classic.placeholder(tf.float32, [None, 2], "x")
        weights = classic.get_variable("w", initializer=[[2.0], [3.0]])
        tf.sigmoid(tf.matmul(x, weights), name="layer/prediction")
        session.run(classic.global_variables_initializer())
        classic.train.Saver().save(session, f"{folder}/model", global_step=7)


def save_times(number, folder):
    import tensorflow as tf

    module = tf.Module()
    takes = tf.TensorSpec([None, 2], tf.float32, name="x")
    module.times = tf.function(lambda x: {"dense": x * number}, input_signature=[takes])
    tf.saved_model.save(module, folder, {"serving_default": module.times})


def test_an_estimator_trains_exports_and_its_model_predicts(spark, tmp_path):
    def train_fn(args, ctx):
        import tensorflow as tf

        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        with strategy.scope():
            model = tf.keras.Sequential(
                [tf.keras.layers.Input((2,), name="x"), tf.keras.layers.Dense(1)]
            )
            model.compile(tf.keras.optimizers.Adam(0.2), "mse")
        feed = TFNode.DataFeed(ctx.mgr, input_mapping=args.input_mapping)

        def rows():
            while not feed.should_stop():
                batch = feed.next_batch(1)
                if not batch["x"]:
                    return
                yield batch["x"][0], batch["y_"][0]

        shapes = (tf.TensorShape([2]), tf.TensorShape([1]))
        data = tf.data.Dataset.from_generator(rows, (tf.float32, tf.float32), shapes)
        options = tf.data.Options()
        compat.disable_auto_shard(options)
        data = data.with_options(options).batch(args.batch_size)
        steps = 1000 * 0.9 // (args.batch_size * ctx.num_workers)
        model.fit(data, epochs=1, steps_per_epoch=steps, verbose=0)
        compat.export_saved_model(model, args.export_dir, ctx.job_name == "chief")
        feed.terminate()

    features = np.random.default_rng(1).random((1000, 2))
    labels = features @ [3.14, 1.618]
    rows = [(x.tolist(), [float(y)]) for x, y in zip(features, labels, strict=True)]
    frame = spark.createDataFrame(rows, ["col1", "col2"]).repartition(2)
    estimator = (
        TFEstimator(train_fn, {})
        .setInputMapping({"col1": "x", "col2": "y_"})
        .setExportDir(str(tmp_path / "export"))
        .setModelDir(str(tmp_path / "model"))
        .setClusterSize(2)
        .setBatchSize(1)
        .setEpochs(1)
    )
    model = estimator.fit(frame)
    assert isinstance(model, TFModel)
    assert model.getExportDir() == str(tmp_path / "export")

    model.setTagSet("serve").setSignatureDefKey("serving_default")
    model.setInputMapping({"c1": "x"}).setOutputMapping({"dense": "out"}).setBatchSize(2)
    new = spark.createDataFrame([([1.0, 1.0], n) for n in range(5)], ["c1", "n"])
    found = model.transform(new)
    assert found.dtypes == [("out", "array<double>")]
    assert [row.out[0] for row in found.collect()] == pytest.approx([3.14 + 1.618] * 5, abs=0.05)


def test_a_model_predicts_with_what_lies_in_its_folder(spark, tmp_path):
    new = spark.createDataFrame([([1.0, 1.0], n) for n in range(5)], ["c1", "n"])
    model = TFModel({}).setExportDir(str(tmp_path / "export")).setBatchSize(2)
    model.setTagSet("serve").setSignatureDefKey("serving_default")
    model.setInputMapping({"c1": "x"}).setOutputMapping({"dense": "out"})
    for times in (2, 10):  # a worker that keeps a model notices that another one has its place
        save_times(times, str(tmp_path / "export"))
        found = model.transform(new).collect()
        assert [row.out for row in found] == [[times, times]] * 5

    save_as_tensorflow_1(str(tmp_path / "model"))
    classic = TFModel({}).setModelDir(str(tmp_path / "model")).setInputMapping({"c1": "x"})
    classic.setOutputMapping({"layer/prediction:0": "p"})
    found = classic.transform(new).collect()
    assert [row.p[0] for row in found] == pytest.approx([1 / (1 + np.exp(-5))] * 5)
    with pytest.raises(Exception, match=r"no tensor 'y'; its placeholders are x\."):
        classic.setOutputMapping({"y": "p"}).transform(new)
    with pytest.raises(Exception, match="contains no checkpoint"):
        classic.setModelDir(str(tmp_path)).transform(new)
    with pytest.raises(InvalidArgument, match="setExportDir"):
        classic.setSignatureDefKey("serving_default").transform(new)


def test_arguments_and_parameters_come_together():
    class Foo(TFParams, HasBatchSize, HasSteps):
        def __init__(self, args):
            super().__init__()
            self.args = args

    merged = Foo(Namespace({"a": 1, "b": 2})).setBatchSize(10).setSteps(100).merge_args_params()
    assert merged == Namespace({"a": 1, "b": 2, "batch_size": 10, "steps": 100})
    assert "a" in merged
    assert "c" not in merged
    assert Namespace(["--x", "1"]).argv == ["--x", "1"]
    assert list(yield_batch([(1, b"a"), (2, bytearray(b"b")), (3, b"c")], 2, 2)) == [
        [[1, 2], [b"a", b"b"]],
        [[3], [b"c"]],
    ]


# Files -------------------------------------------------------------------------------------------


def test_frames_go_to_tfrecords_and_back(spark, tmp_path, jar):
    row = ("text", 1, [2, 3, 4], -1.1, [-2.2, -3.3], bytearray(b"\xff\xfe"))
    frame = spark.createDataFrame([row], list("abcdef"))
    dfutil.saveAsTFRecords(frame, str(tmp_path / "records"))
    back = dfutil.loadTFRecords(spark.sparkContext, str(tmp_path / "records"), ["f"])
    assert back.dtypes == [
        ("a", "string"),
        ("b", "bigint"),
        ("c", "array<bigint>"),
        ("d", "double"),
        ("e", "array<double>"),
        ("f", "binary"),
    ]
    found = back.head()
    assert (found.a, found.b, found.c, bytes(found.f)) == ("text", 1, [2, 3, 4], b"\xff\xfe")
    assert [found.d, *found.e] == pytest.approx([-1.1, -2.2, -3.3])
    assert dfutil.isLoadedDF(back)
    assert not dfutil.isLoadedDF(frame)
    assert not dfutil.isLoadedDF(back.filter(back.b == 1))
    examples = frame.rdd.mapPartitions(dfutil.toTFExample(frame.dtypes)).collect()
    (again,) = dfutil.fromTFExample(examples, ["f"])
    assert again.asDict() == {**found.asDict(), "f": bytearray(b"\xff\xfe")}
