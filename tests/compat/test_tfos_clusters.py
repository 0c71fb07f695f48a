"""Programs of TensorFlowOnSpark, their imports changed: clusters in both input modes."""

from __future__ import annotations

import json
import os
import signal
import sys
import time

import pytest

from gridflow import InvalidArgument, NotEnoughSlots, RunTimeout, TrainingFailed
from gridflow.compat.tfos import TFCluster, TFNode, _alias, _launcher
from suite.waiting import wait_for

# PySpark leaves sockets of its RDDs to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture
def old_name():
    """Let this process import ``tensorflowonspark``, as under ``gridflow.compat.tfos.run``."""
    _alias.install()
    yield
    sys.meta_path[:] = [each for each in sys.meta_path if not isinstance(each, _alias._Finder)]
    for name in [name for name in sys.modules if name.partition(".")[0] == "tensorflowonspark"]:
        del sys.modules[name]


def test_a_function_runs_on_every_node_and_reads_its_arguments(spark, tmp_path, old_name):
    def main_fun(args, ctx):
        import json
        import os
        import socket
        import sys

        import tensorflow as tf
        from tensorflowonspark.TFNode import hdfs_path

        assert hdfs_path(ctx, "/x") == "file:///x"
        assert ctx.tmp_socket is None
        with socket.socket() as server:  # the port is free, for any server
            server.bind(("", int(ctx.cluster_spec["worker"][ctx.task_index].split(":")[1])))

        assert tf.math.add(args["x"], args["y"]).numpy() == 3
        facts = {
            "executor_id": ctx.executor_id,
            "worker_num": ctx.worker_num,
            "job": f"{ctx.job_name}:{ctx.task_index}",
            "num_workers": ctx.num_workers,
            "hosts": {job: len(hosts) for job, hosts in ctx.cluster_spec.items()},
            "path": ctx.absolute_path("some/file"),
            "TF_CONFIG": "TF_CONFIG" in os.environ,
            "argv": sys.argv[1:],
        }
        with open(f"{args['out']}/{ctx.executor_id}.json", "w") as file:
            json.dump(facts, file)

    import json
    import os

    args = {"x": 1, "y": 2, "out": str(tmp_path)}
    cluster = TFCluster.run(spark.sparkContext, main_fun, args, num_executors=2, num_ps=0)
    assert [node["executor_id"] for node in cluster.cluster_info] == [0, 1]
    assert cluster.tensorboard_url() is None
    cluster.shutdown()
    found = [json.loads((tmp_path / f"{n}.json").read_text()) for n in range(2)]
    assert found[1] == {
        "executor_id": 1,
        "worker_num": 1,
        "job": "worker:1",
        "num_workers": 2,
        "hosts": {"worker": 2},
        "path": f"file://{os.getcwd()}/some/file",
        "TF_CONFIG": False,
        "argv": [],
    }


def test_rows_are_answered_by_the_nodes_in_their_order(spark, capfd):
    def main_fun(args, ctx):
        import numpy as np

        feed = TFNode.DataFeed(ctx.mgr, False)
        while not feed.should_stop():
            batch = feed.next_batch(10)
            if batch:
                feed.batch_results(np.square(batch))

    sc = spark.sparkContext
    rows = sc.parallelize([[x] for x in range(1000)], 10)
    mode = TFCluster.InputMode.SPARK
    cluster = TFCluster.run(sc, main_fun, {}, num_executors=2, num_ps=0, input_mode=mode)
    boards = [[node[name] for name in ("tb_pid", "tb_port")] for node in cluster.cluster_info]
    assert boards == [[0, 0], [0, 0]]
    answers = cluster.inference(rows)
    assert [int(each[0]) for each in answers.collect()] == [x * x for x in range(1000)]
    assert answers.sum() == sum(x * x for x in range(1000))
    cluster.shutdown()
    # All slots were taken, and given back: nobody is told to use fewer workers.
    assert "to be fed later" not in "".join(capfd.readouterr())


def test_a_failure_while_rows_are_fed_surfaces_at_once_and_another_cluster_works(spark, tmp_path):
    def main_fun(args, ctx):
        import json

        feed = ctx.get_data_feed()
        seen = []
        while not feed.should_stop():
            seen += feed.next_batch(100)
            if args["fail"] and seen:
                raise ValueError("what a pity")
        with open(f"{args['out']}/{ctx.task_index}", "w") as file:
            json.dump(seen, file)

    def killed_in_the_middle(rows):
        from pyspark import TaskContext

        for place, row in enumerate(rows):
            if place in {300, 400}:
                time.sleep(0.3)  # the rows before it are sent
            if place == 400 and row == 1400 and not TaskContext.get().attemptNumber():
                os.kill(os.getpid(), signal.SIGKILL)
            yield row

    sc = spark.sparkContext
    rows = sc.parallelize(range(2000), 4)
    args = {"fail": True, "out": str(tmp_path)}
    mode = TFCluster.InputMode.SPARK
    cluster = TFCluster.run(sc, main_fun, args, 2, input_mode=mode)
    with pytest.raises(TrainingFailed, match="what a pity"):
        cluster.train(rows, num_epochs=2)
    assert "what a pity" in TFCluster.tf_status["error"]
    with pytest.raises(TrainingFailed, match="what a pity"):
        cluster.shutdown()

    cluster = TFCluster.run(sc, main_fun, {**args, "fail": False}, 2, input_mode=mode)
    # A task of each epoch is killed, and tried again by Spark: no row comes twice.
    cluster.train(rows.mapPartitions(killed_in_the_middle), num_epochs=2)
    cluster.shutdown()
    assert TFCluster.tf_status == {}
    seen = [row for path in tmp_path.iterdir() for row in json.loads(path.read_text())]
    assert sorted(seen) == sorted([*range(2000)] * 2)


def test_a_node_that_returns_early_leaves_the_rows_to_the_other(spark, tmp_path):
    def main_fun(args, ctx):
        feed = ctx.get_data_feed()
        seen = feed.next_batch(10) if ctx.task_index == 0 else []
        while ctx.task_index == 1 and not feed.should_stop():
            seen += feed.next_batch(100)
        with open(f"{args}/{ctx.task_index}", "w") as file:
            json.dump(seen, file)

    sc = spark.sparkContext
    mode = TFCluster.InputMode.SPARK
    cluster = TFCluster.run(sc, main_fun, str(tmp_path), 2, input_mode=mode)
    for first in (0, 2000):
        cluster.train(sc.parallelize(range(first, first + 2000), 4), num_epochs=1)
        wait_for((tmp_path / "0").exists, "the end of the first node")
    cluster.shutdown()
    early, late = (json.loads((tmp_path / name).read_text()) for name in "01")
    assert len(early) == 10
    assert {*range(2000, 4000)} <= {*late}


def test_a_failure_after_the_rows_surfaces_in_shutdown(spark):
    def main_fun(args, ctx):
        feed = ctx.get_data_feed(train_mode=False)
        while not feed.should_stop():
            feed.batch_results(feed.next_batch(10))
        time.sleep(1)
        raise RuntimeError("too late")

    sc = spark.sparkContext
    mode = TFCluster.InputMode.SPARK
    cluster = TFCluster.run(sc, main_fun, {}, 2, input_mode=mode)
    assert cluster.inference(sc.parallelize(range(100), 4)).count() == 100
    with pytest.raises(TrainingFailed, match="too late"):
        cluster.shutdown(grace_secs=5)


def test_a_cluster_that_does_not_end_in_time_is_ended(spark):
    def main_fun(args, ctx):
        while True:
            time.sleep(0.1)

    mode = TFCluster.InputMode.SPARK
    cluster = TFCluster.run(spark.sparkContext, main_fun, {}, 2, input_mode=mode)
    with pytest.raises(RunTimeout, match="within 1 seconds"):
        cluster.shutdown(timeout=1)
    assert cluster.handle.state == "cancelled"


def test_what_cant_be_is_refused_at_the_call(spark, monkeypatch):
    sc = spark.sparkContext

    def run(*args, **kwargs):
        return TFCluster.run(sc, lambda args, ctx: None, {}, *args, **kwargs)

    for options in ({"driver_ps_nodes": True}, {"eval_node": True}):
        with pytest.raises(InvalidArgument, match=r"needs InputMode\.TENSORFLOW"):
            run(2, input_mode=TFCluster.InputMode.SPARK, **options)
    with pytest.raises(InvalidArgument, match="at least one worker"):
        run(1, num_ps=1)
    with pytest.raises(InvalidArgument, match="num_executors"):
        run("2")
    with pytest.raises(InvalidArgument, match="master_node"):
        run(2, master_node="worker")
    with pytest.raises(NotEnoughSlots):
        run(3)
    monkeypatch.setattr(_launcher, "is_dynamic", lambda _: True)
    with pytest.raises(InvalidArgument, match="dynamicAllocation"):
        run(2, input_mode=TFCluster.InputMode.SPARK)
