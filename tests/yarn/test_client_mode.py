"""Jobs on YARN beside HDFS, in one session in client mode: the guide's, and what goes wrong."""

from __future__ import annotations

import re

import numpy as np
import pytest
from clients import check_the_model_in_hdfs, has_executors_alone

from gridflow._files import transfer
from gridflow._files.systems import where
from gridflow._spec.place import Place
from suite.waiting import wait_for

#: Keras' own, when a model is read.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


def safety(spark):
    names = ("authenticate", "network.crypto.enabled", "io.encryption.enabled")
    return [spark.sparkContext.master, *(spark.conf.get(f"spark.{name}") for name in names)]


def test_the_guides_program_trains_in_client_mode(notebook, client, data, as_the_user, tmp_path):
    assert notebook(safety) == ["yarn", "true", "true", "true"]
    notebook(client.program)
    check_the_model_in_hdfs(tmp_path)


def read_records(spark, path):
    from gridflow import TensorflowDistributor

    def read(ctx):
        import os

        import numpy as np

        rows = ctx.tfrecord_dataset(path, batch_size=25, features=["x"], label="y")
        found = [np.column_stack([x, y]) for x, y in rows]
        container = os.environ["CONTAINER_ID"]
        return len(found), np.concatenate(found).tolist(), container, ctx.absolute_path("rows")

    run = TensorflowDistributor(2, "none", logs="none", progress=False).run(read)
    return list(run.values), run.ledger.check()


def test_tensorflow_reads_records_from_the_hdfs_that_the_submitter_knows(
    notebook, client, as_the_user, tmp_path
):
    from gridflow.tfrecord import serialize_example, write_records

    rows = [(i / 100, 2 * i / 100 + 1) for i in range(100)]
    for number in range(2):
        examples = [serialize_example({"x": [x], "y": [y]}) for x, y in rows[number::2]]
        write_records(tmp_path / f"{number}.tfrecord", examples)
        target = where(f"hdfs://cluster/user/tests/records/{number}.tfrecord")
        transfer.put(tmp_path / f"{number}.tfrecord", target)
    # The path is complete by Spark's default file system, a name that stands in no node's own
    # configuration; the folder belongs to the submitter.
    values, wrong = notebook(read_records, "records")
    assert wrong == []
    assert {value[0] for value in values} == {2}
    read = np.asarray(sorted(values[0][1] + values[1][1]))
    np.testing.assert_allclose(read, rows, rtol=1e-6)
    assert len({value[2] for value in values}) == 2
    assert {value[3] for value in values} == {"hdfs://cluster/user/tests/rows"}


def run_old_program(spark, folder):
    from gridflow.compat.tfos import TFCluster

    def main_fun(args, ctx):
        import json
        from pathlib import Path

        feed = ctx.get_data_feed(train_mode=True)
        total = rows = 0
        while not feed.should_stop():
            batch = feed.next_batch(50)
            rows, total = rows + len(batch), total + sum(row[0] for row in batch)
        told = [rows, total, ctx.absolute_path("out")]
        Path(args, str(ctx.task_index)).write_text(json.dumps(told))

    rows = spark.read.csv("rows", header=True, schema="x double, y double")
    mode = TFCluster.InputMode.SPARK
    cluster = TFCluster.run(spark.sparkContext, main_fun, folder, 2, 0, input_mode=mode)
    cluster.train(rows.rdd.map(tuple).repartition(4), 1)
    cluster.shutdown()


def test_an_old_program_is_fed_from_hdfs(notebook, data, tmp_path):
    import json

    notebook(run_old_program, str(tmp_path))
    told = [json.loads((tmp_path / str(node)).read_text()) for node in range(2)]
    assert sum(rows for rows, _, _ in told) == 1000
    assert sum(total for _, total, _ in told) == pytest.approx(sum(i / 1000 for i in range(1000)))
    assert {path for _, _, path in told} == {"hdfs://cluster/user/tests/out"}


def train_until_a_node_dies(spark, checkpoints):
    from gridflow import TensorflowDistributor

    def train(ctx):
        import time

        import keras

        class Wait(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                if ctx.generation == 0 and batch == 7:
                    time.sleep(120)  # it ends with its node, or with its group

        keras.utils.set_random_seed(1)
        with ctx.strategy.scope():
            model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
            model.compile("adam", "mse")
        rows = ctx.dataset(batch_size=50, features=[["x"]], label="y")
        model.fit(rows, epochs=2, verbose=0, callbacks=[*ctx.callbacks(), Wait()])

    rows = spark.read.csv("rows", header=True, schema="x double, y double")
    quiet = {"logs": "none", "progress": False}
    distributor = TensorflowDistributor(
        2, checkpoint_every=3, checkpoint_dir=checkpoints, max_restarts=1, **quiet
    )
    result = distributor.run(train, data=rows)
    went = [(attempt.failure and str(attempt.failure.kind)) for attempt in result.attempts]
    return went, result.attempts[-1].resumed_at, len(result.history["loss"])


def test_a_job_goes_on_when_a_node_dies_under_it(notebook, yarn, data, tmp_path):
    notebook.begin(train_until_a_node_dies, str(tmp_path))
    checkpoint = tmp_path / "checkpoint-0000-000000-000000006.npz"
    wait_for(checkpoint.exists, "a checkpoint", seen=notebook.said)
    (victim,) = [node for node in ("node-0", "node-1") if has_executors_alone(yarn, node)]
    yarn.kill(victim)
    try:
        went, resumed, epochs = notebook.answer()
    finally:
        yarn.start(victim)
    assert (went, resumed, epochs) == (["lost", None], Place(0, 0, 6), 2)


def look_for_gpus(spark):
    from gridflow import TensorflowDistributor

    def look(ctx):
        import os

        place = os.environ["NM_PORT"], os.environ["CONTAINER_ID"]
        return place, list(ctx.gpus), os.environ["CUDA_VISIBLE_DEVICES"]

    quiet = {"logs": "none", "progress": False}
    given = TensorflowDistributor(2, "none", **quiet).run(look)
    none = TensorflowDistributor(2, "none", gpus=0, **quiet).run(look)
    return list(given.values), list(none.values)


def test_tasks_have_the_gpus_that_yarn_counted_for_their_executors(notebook, yarn):
    # Behind the node that died: both executors are on the other now.
    given, none = notebook(look_for_gpus)
    assert all(len(gpus) == 1 and visible == gpus[0] for _, gpus, visible in given)
    assert len({(node, *gpus) for (node, _), gpus, _ in given}) == 2
    assert len({container for (_, container), _, _ in given}) == 2
    assert sum(yarn.gpus_in_use()) == 2
    # A stage with a profile of its own, on the same executors.
    assert [(gpus, visible) for _, gpus, visible in none] == [([], "-1")] * 2


def take_too_much(spark):
    from gridflow import TaskLost, TensorflowDistributor

    def hoard(ctx):
        import time

        hoarded = []
        while ctx.rank == 1 and len(hoarded) < 30:
            hoarded.append(b"x" * (100 << 20))
            time.sleep(0.05)
        time.sleep(60)

    distributor = TensorflowDistributor(2, "none", logs="none", progress=False)
    try:
        distributor.run(hoard)
    except TaskLost as error:
        # Spark has asked YARN for another executor by now, and it isn't there yet.
        return str(error), str(error.first.task), list(distributor.run(lambda: "next").values)
    raise AssertionError("nobody was killed")


def test_who_takes_more_memory_than_its_container_has_is_told_so_and_the_next_run_has_another(
    notebook,
):
    said, task, values = notebook(take_too_much)
    assert values == ["next", "next"]
    assert task == "worker:1"
    assert re.search(r"killed by YARN for exceeding physical memory limits", said)
    assert "spark.executor.memoryOverhead" in said


def save_to_hdfs(spark):
    from pyspark.ml import Pipeline, PipelineModel
    from pyspark.ml.feature import VectorAssembler

    from gridflow import InvalidArgument
    from gridflow.ml import KerasEstimator, KerasModel

    def line():
        import keras

        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        return model

    rows = spark.read.csv("rows", header=True, schema="x double, y double").cache()
    quiet = {"logs": "none", "progress": False}
    # As others name it, and complete by Spark's default file system.
    alone, within, begun = "hdfs://cluster/user/tests/ml/alone", "ml/within", "ml/begun"
    estimator = KerasEstimator(model=line, labelCol="y", distributor=quiet)
    estimator.save(begun)
    vector = VectorAssembler(inputCols=["x"], outputCol="features")
    fitted = Pipeline(stages=[vector, KerasEstimator.load(begun)]).fit(rows)
    fitted.save(within)
    fitted.stages[-1].save(alone)
    try:
        fitted.stages[-1].save(alone)
    except InvalidArgument as error:
        refused = str(error)
    fitted.stages[-1].write().overwrite().save(alone)

    def predicted(model, rows):
        return [row.prediction for row in model.transform(rows).orderBy("x").collect()]

    expected = predicted(fitted, rows)
    again = KerasModel.load(alone)
    found = [
        predicted(PipelineModel.load(within), rows),
        predicted(again, vector.transform(rows)),
    ]
    return [each == expected for each in found], again.summary.totalEpochs, refused


def test_models_and_pipelines_are_saved_in_hdfs_and_loaded_from_there(notebook, data, as_the_user):
    # The last one: Python workers that have TensorFlow stay in the containers, beside a job's own.
    same, epochs, refused = notebook(save_to_hdfs)
    assert (same, epochs) == ([True, True], 1)
    assert "hdfs://cluster/user/tests/ml/alone already exists" in refused
    names = transfer.names_in(where("hdfs://cluster/user/tests/ml/alone"))
    assert {"model.keras", "summary.json"} <= set(names)
