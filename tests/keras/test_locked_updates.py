"""Updates on parameter servers: whoever holds a variable's mutex waits for nobody else's."""

from __future__ import annotations

import pytest

#: Each with how often a step updates by it.
OPTIMIZERS = {"Adam": 1, "Adam, twice a step": 2, "AdamW": 1, "Lamb": 1}


def before(operation, outside=frozenset()):
    """Return the operations that one waits for, without some of them."""
    found, left = set(), [operation]
    while left:
        one = left.pop()
        coming = {*(tensor.op for tensor in one.inputs), *one.control_inputs} - found - outside
        found |= coming
        left += coming
    return found


def waits(graph):
    """Return pairs of mutexes: of which one is held, and what is waited for meanwhile."""
    found = []
    for end in (each for each in graph.get_operations() if each.type == "ConsumeMutexLock"):
        lock = end.inputs[0].op
        held = before(end, {lock, *before(lock)})
        found += [(lock.name, other.name) for other in held if other.type == "MutexLock"]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("case", OPTIMIZERS)
def test_no_optimizer_waits_for_a_mutex_while_it_holds_another(case):
    import tensorflow as tf

    import keras
    from gridflow._keras.patches.hooks.locked_updates import lock_updates

    strategy = lock_updates(tf.distribute.OneDeviceStrategy("/cpu:0"))
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((2,), dtype="int32"), keras.layers.Embedding(5, 2), keras.layers.Dense(1)]
        )
        rate = keras.optimizers.schedules.PolynomialDecay(0.1, 10)
        made = getattr(keras.optimizers, case.partition(",")[0])
        optimizer = made(rate, weight_decay=0.1)
        optimizer.build(model.trainable_variables)

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(x))
        weights = model.trainable_variables
        gradients = tape.gradient(loss, [each.value for each in weights])
        for _ in range(OPTIMIZERS[case]):
            optimizer.apply_gradients(zip(gradients, weights, strict=True))
        return loss

    batch = tf.TensorSpec((4, 2), tf.int32)
    function = tf.function(lambda x: strategy.run(step, args=(x,)), autograph=False)
    graph = function.get_concrete_function(batch).graph
    locks = [each for each in graph.get_operations() if each.type == "MutexLock"]
    # Twice for each update: the decay of the weights, and the step of the optimizer.
    assert len(locks) == 2 * OPTIMIZERS[case] * len(model.trainable_variables)
    assert waits(graph) == []
