"""Parts of what a group of ranks does, in one process with TensorFlow."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.slow


def test_a_dataset_made_of_one_ranks_rows_holds_that_ranks_rows():
    import tensorflow as tf

    from gridflow._keras.group import data
    from gridflow._keras.group.exchange import GroupExchange

    whole = tf.data.Dataset.range(6).batch(2)
    assert not data.is_part(whole)
    context = tf.distribute.InputContext(1, 0, 1)
    part = data.from_function(lambda context: whole, context, GroupExchange(None))
    assert data.is_part(part)
    assert data.is_part(part.map(lambda x: x + 1).prefetch(1))
    assert [batch.tolist() for batch in part.as_numpy_iterator()] == [[0, 1], [2, 3], [4, 5]]


def test_a_model_of_tf_keras_is_built_with_all_that_a_checkpoint_has():
    import tensorflow as tf
    import tf_keras

    from gridflow._keras.resume import building

    model = tf_keras.Sequential([tf_keras.layers.Dense(2)])
    model.compile("adam", "mse", metrics=["mae"])
    building.build_for(model, "tf_keras", (tf.TensorSpec([None, 3]), tf.TensorSpec([None, 2])))
    assert [tuple(weight.shape) for weight in model.weights] == [(3, 2), (2,)]
    assert len(model.optimizer.variables) > 4
    assert [metric.name for metric in model.metrics] == ["loss", "mae"]
    assert all(len(metric.variables) == 2 for metric in model.metrics)


def test_what_is_restored_of_a_metric_is_held_by_the_first_rank_that_is_there():
    import tensorflow as tf

    from gridflow._collectives.host import HostGroup
    from gridflow._keras.group.exchange import GroupExchange
    from gridflow._keras.group.strategy import GroupStrategy

    group = HostGroup([0], 0, 1, {}, names=[1])  # ranks 0 and 2 are away
    strategy = GroupStrategy.of(GroupExchange(group, rank=1, size=3))
    kinds = tf.VariableSynchronization.ON_READ, tf.VariableAggregation.SUM
    with strategy.scope():
        count = tf.Variable(0.0, synchronization=kinds[0], aggregation=kinds[1])
        count.assign(5.0)
    assert float(strategy.run(count.read_value)) == 5
