"""Values that ranks exchange on CPUs, in training processes: by gridflow, or by TensorFlow."""

from __future__ import annotations

import os

import numpy as np
import pytest

from gridflow import (
    CommunicationOptions,
    Deadlines,
    Distribution,
    GridflowError,
    LocalLauncher,
    TensorflowDistributor,
)
from gridflow._collectives import native

pytestmark = pytest.mark.slow
ROWS = {"x": np.random.default_rng(0).normal(size=(64, 4)).astype("float32")}
ROWS["y"] = ROWS["x"].sum(axis=1)


def distributor(implementation="auto", deadlines=None, env=None, **options):
    communication = CommunicationOptions(implementation, **options)
    return TensorflowDistributor(
        2,
        launcher=LocalLauncher(),
        logs="none",
        progress=False,
        distribution=Distribution(communication=communication),
        deadlines=deadlines,
        env=env or {},
    )


def train(ctx):
    import gc

    import tensorflow as tf
    from tensorflow.python.framework.func_graph import FuncGraph

    import keras

    keras.utils.set_random_seed(1)
    with ctx.strategy.scope():
        layers = [
            keras.Input((4,)),
            keras.layers.Dense(8, "relu"),
            keras.layers.BatchNormalization(synchronized=True),
            keras.layers.Dense(1),
        ]
        model = keras.Sequential(layers)
        model.compile("adam", "mse", metrics=["mae"])
    data = ctx.dataset("rows", batch_size=8, features="x", label="y")
    logs = model.fit(data, epochs=2, verbose=0, callbacks=ctx.callbacks()).history

    @tf.function
    def gathered():
        def mine():
            here = tf.distribute.get_replica_context()
            rank = tf.fill([2, 1], tf.cast(ctx.rank, tf.int64))
            parts = [rank[: ctx.rank + 1], tf.cast(rank, tf.float32)]  # of different lengths, too
            return [here.all_gather(part, axis=0) for part in parts]

        return ctx.strategy.run(mine)

    found = [value.numpy().ravel().tolist() for value in gathered()]
    eager = ctx.strategy.reduce("SUM", tf.constant(ctx.rank + 1.0), axis=None)
    graphs = [each for each in gc.get_objects() if isinstance(each, FuncGraph)]
    kinds = {operation.type for graph in graphs for operation in graph.get_operations()}
    by_tensorflow = "CollectiveReduceV2" in kinds
    return model.get_weights(), logs, found, float(eager), by_tensorflow


def test_values_are_the_same_whoever_exchanges_them():
    ours = distributor().run(train, data={"rows": ROWS})
    theirs = distributor("ring", bytes_per_pack=64).run(train, data={"rows": ROWS})
    for (weights, logs, found, eager, by_tensorflow), expected in zip(
        ours.values, theirs.values, strict=True
    ):
        assert not by_tensorflow
        assert expected[-1]
        for mine, wanted in zip(weights, expected[0], strict=True):
            np.testing.assert_array_equal(mine, wanted)  # a sum of two has one order
        assert logs == expected[1]
        assert found == expected[2] == [[0, 1, 1], [0, 0, 1, 1]]
        assert eager == expected[3] == 3.0


def learn(ctx):
    """Return weights, and how often gradients were exchanged by Python."""
    import keras
    from gridflow._collectives.host import HostGroup

    in_python, original = [], HostGroup._sum

    def seen(self, values):
        if values.length > 40_000:
            in_python.append(values.length)
        return original(self, values)

    HostGroup._sum = seen
    keras.utils.set_random_seed(1)
    with ctx.strategy.scope():
        model = keras.Sequential(
            [keras.Input((4,)), keras.layers.Dense(7_001), keras.layers.Dense(1)]
        )
        model.compile("adam", "mse")
    data = ctx.dataset("rows", batch_size=8, features="x", label="y")
    model.fit(data, epochs=2, verbose=0)
    return model.get_weights(), len(in_python)


def test_gradients_are_the_same_in_c_and_in_python():
    if native.path_of("exchange_tensorflow") is None:
        pytest.skip("it wasn't built")
    rows = {name: values[:61] for name, values in ROWS.items()}  # ranks have unequal parts
    in_c, in_python = (
        distributor(env=env).run(learn, data={"rows": rows}).values
        for env in ({}, {"GRIDFLOW_NATIVE": "0"})
    )
    for (weights, count), (wanted, wanted_count) in zip(in_c, in_python, strict=True):
        assert wanted_count - count == 8  # the rest are first values of variables
        for mine, other in zip(weights, wanted, strict=True):
            np.testing.assert_array_equal(mine, other)


def narrow(ctx, flavour, units):
    """Return weights after some steps, and the types and sizes of what was exchanged."""
    import importlib

    from gridflow._collectives.host import HostGroup

    exchanged, original = [], HostGroup._sum

    def seen(self, values):
        if "float" in values.dtype.name:
            exchanged.append((values.dtype.name, values.length))
        return original(self, values)

    HostGroup._sum = seen
    keras = importlib.import_module(flavour)
    keras.utils.set_random_seed(1)
    with ctx.strategy.scope():
        layers = [keras.layers.Dense(units, "relu"), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((4,)), *layers])
        model.compile("sgd", "mse")
    model.fit(ctx.dataset("rows", batch_size=8, features="x", label="y"), verbose=0)
    return model.get_weights(), exchanged


# Those of the larger model are cut into pieces.
@pytest.mark.parametrize(("flavour", "units"), [("keras", 8), ("keras", 200_000), ("tf_keras", 8)])
def test_gradients_are_sent_in_the_type_that_was_asked_for(flavour, units):
    rows = {name: values[:61] for name, values in ROWS.items()}  # ranks have unequal parts
    jobs = [
        distributor(wire_dtype=name).run(narrow, flavour, units, data={"rows": rows}).values
        for name in ("float32", "bfloat16")
    ]
    (wide, all_wide), ((first, exchanged), (second, _)) = jobs[0][0], jobs[1]
    assert {name for name, _ in all_wide} == {"float32"}
    assert max(size for name, size in exchanged if name == "float32") < 6 * units + 32  # logs
    assert max(size for name, size in exchanged if name == "bfloat16") >= 6 * units + 32
    for mine, other, exact in zip(first, second, wide, strict=True):
        np.testing.assert_array_equal(mine, other)
        np.testing.assert_allclose(mine, exact, atol=2e-2)


def sum_apart(ctx):
    import tensorflow as tf

    @tf.function
    def total():
        def mine():
            values = tf.ones([3 + ctx.rank])
            return tf.distribute.get_replica_context().all_reduce("SUM", values)

        return ctx.strategy.run(mine)

    return total().numpy()


def test_ranks_that_exchange_different_values_hear_what_to_do():
    with pytest.raises(GridflowError, match="different collective operations") as caught:
        distributor().run(sum_apart)
    assert "ctx.broadcast(value)" in str(caught.value)


def stand_still(ctx):
    import time

    import tensorflow as tf

    if ctx.rank == 1:
        time.sleep(30)
    return ctx.strategy.reduce("SUM", tf.constant(1.0), axis=None)


def test_an_exchange_that_takes_too_long_fails_if_that_was_asked():
    with pytest.raises(GridflowError, match="rank 1 did not come in time"):
        distributor(timeout_seconds=2).run(stand_still)


def return_early(ctx):
    import tensorflow as tf

    if ctx.rank == 0:
        ctx.strategy.reduce("SUM", tf.constant(1.0), axis=None)


def test_nobody_waits_for_a_rank_that_has_returned():
    with pytest.raises(GridflowError, match="rank 1 has returned from its function") as caught:
        distributor().run(return_early)
    assert "worker:0" in str(caught.value)


def threads(ctx):
    import tensorflow as tf

    return tf.config.threading.get_intra_op_parallelism_threads()


@pytest.mark.parametrize("chosen", [None, 3])
def test_ranks_share_the_cores_of_their_host_unless_the_user_chose(chosen):
    env = {} if chosen is None else {"TF_NUM_INTRAOP_THREADS": str(chosen)}
    job = TensorflowDistributor(
        2, launcher=LocalLauncher(), logs="none", progress=False, env=env
    ).run(threads)
    share = max(1, len(os.sched_getaffinity(0)) // 2)
    assert list(job.values) == [share if chosen is None else 0] * 2  # 0: TensorFlow looks there


def own_strategy(ctx):
    import time

    import tensorflow as tf

    if ctx.rank == 0:
        time.sleep(2)  # the other one announces itself before
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        variable = tf.Variable(float(ctx.rank))
    total = strategy.reduce("SUM", tf.constant(ctx.rank + 1.0), axis=None)
    return float(variable.numpy()), float(total)


def test_a_strategy_that_the_function_creates_waits_for_no_rank_that_was_faster():
    patient = Deadlines(run=60)
    found = distributor(deadlines=patient).run(own_strategy).values
    assert list(found) == [(0.0, 3.0), (0.0, 3.0)]
