"""Programs of spark-tensorflow-distributor, their import changed."""

from __future__ import annotations

import os

import pytest

from gridflow import GridflowError, InvalidArgument, TrainingFailed
from gridflow.compat.mirrored import MirroredStrategyRunner, _owned


def test_a_number_of_slots_that_cant_be_is_refused_before_spark_is_asked():
    for slots in (0, -1, 1.5, True, "2"):
        with pytest.raises(ValueError, match="num_slots"):
            MirroredStrategyRunner(num_slots=slots)


def test_addresses_of_gpus_point_into_what_the_executor_may_see():
    assert _owned(["0", "2"], None) == ["0", "2"]
    assert _owned(["0", "2"], "10,11,12,13") == ["10", "12"]
    with pytest.raises(InvalidArgument, match="leading zeros"):
        _owned(["01"], None)


def test_two_tasks_train_one_model_and_the_first_ones_value_comes_back(spark):
    def train(rows, epochs):
        import json
        import os

        import numpy as np
        import tensorflow as tf
        from pyspark import BarrierTaskContext

        context = BarrierTaskContext.get()
        strategy = tf.distribute.get_strategy()
        model = tf.keras.Sequential([tf.keras.layers.Input((1,)), tf.keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        x = np.linspace(0, 1, rows, dtype="float32")[:, None]
        data = tf.data.Dataset.from_tensor_slices((x, 2 * x)).batch(16).repeat()
        history = model.fit(data, epochs=epochs, steps_per_epoch=4, verbose=0)
        return {
            "replicas": strategy.num_replicas_in_sync,
            "epochs": len(history.history["loss"]),
            "gpus": os.environ["CUDA_VISIBLE_DEVICES"],
            "task": json.loads(os.environ["TF_CONFIG"])["task"],
            "everyone": context.allGather(str(context.partitionId())),
            "hosts": len(context.getTaskInfos()),
        }

    runner = MirroredStrategyRunner(num_slots=2, use_gpu=False)
    assert runner.get_num_tasks() == 2
    assert runner.run(train, rows=64, epochs=2) == {
        "replicas": 2,
        "epochs": 2,
        "gpus": "",
        "task": {"type": "worker", "index": 0},
        "everyone": ["0", "1"],
        "hosts": 2,
    }


def test_a_strategy_of_its_own_and_a_failure(spark):
    def train(fail):
        import tensorflow as tf

        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        if fail:
            raise KeyError("no such thing")
        with strategy.scope():
            return strategy.num_replicas_in_sync

    runner = MirroredStrategyRunner(num_slots=2, use_gpu=False, use_custom_strategy=True)
    assert runner.run(train, fail=False) == 2
    with pytest.raises(TrainingFailed, match="no such thing"):
        runner.run(train, fail=True)


def test_local_mode_calls_the_function_here(spark, monkeypatch):
    def train(word):
        return word, os.environ["CUDA_VISIBLE_DEVICES"], os.getpid()

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    options = {"local_mode": True, "use_custom_strategy": True}
    runner = MirroredStrategyRunner(num_slots=1, use_gpu=False, **options)
    assert runner.run(train, word="x") == ("x", "", os.getpid())
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "3"
    with pytest.raises(ValueError, match="num_slots must be 1"):
        MirroredStrategyRunner(num_slots=2, use_gpu=False, **options).run(train, word="x")
    with pytest.raises(ValueError, match="driver has no GPUs"):
        MirroredStrategyRunner(num_slots=1, **options).run(train, word="x")


def test_gpus_and_encryption_are_looked_at_in_sparks_settings(spark, monkeypatch):
    with pytest.raises(InvalidArgument, match=r"spark.task.resource.gpu.amount is not set"):
        MirroredStrategyRunner(num_slots=2)
    conf = spark.sparkContext.getConf()

    def configured(**settings):
        changed = conf.setAll([(k.replace("_", "."), v) for k, v in settings.items()])
        monkeypatch.setattr(type(spark.sparkContext), "getConf", lambda _: changed)

    configured(spark_task_resource_gpu_amount="4")
    assert [MirroredStrategyRunner(num_slots=n).get_num_tasks() for n in (2, 4, 6)] == [1, 1, 2]
    configured(spark_task_resource_gpu_amount="0.5")
    with pytest.raises(ValueError, match="at least 1"):
        MirroredStrategyRunner(num_slots=2)
    configured(spark_ssl_enabled="true")
    runner = MirroredStrategyRunner(num_slots=1, use_gpu=False)
    with pytest.raises(GridflowError, match="ignoreSsl"):
        runner.run(lambda: None)
