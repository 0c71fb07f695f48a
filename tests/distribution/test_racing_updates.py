"""Workers whose updates of one variable meet on its parameter server learn as one process does."""

from __future__ import annotations

import functools
import importlib

import numpy as np
import pytest

ROWS, BATCH, EPOCHS, KINDS = 1536, 32, 1, 3000
#: Additions between two operations of one update, the fail point: two workers surely meet in it.
APART = 60
#: Flavour, class and arguments: those with several slots, and the others that are used most.
OPTIMIZERS = {
    "Adam": ("keras", "Adam", {"learning_rate": 0.01}),
    "Adam, amsgrad": ("keras", "Adam", {"learning_rate": 0.01, "amsgrad": True}),
    "AdamW": ("keras", "AdamW", {"learning_rate": 0.01}),
    "Nadam": ("keras", "Nadam", {"learning_rate": 0.01}),
    "Adamax": ("keras", "Adamax", {"learning_rate": 0.01}),
    "Ftrl": ("keras", "Ftrl", {"learning_rate": 0.1}),
    "Lamb": ("keras", "Lamb", {"learning_rate": 0.01}),
    "Lion": ("keras", "Lion", {"learning_rate": 0.002}),
    "RMSprop": ("keras", "RMSprop", {"learning_rate": 0.005}),
    "RMSprop, centered": (
        "keras",
        "RMSprop",
        {"learning_rate": 0.001, "momentum": 0.9, "centered": True},
    ),
    "SGD, momentum": ("keras", "SGD", {"learning_rate": 0.01, "momentum": 0.9}),
    "Adagrad": ("keras", "Adagrad", {"learning_rate": 0.1}),
    "Adadelta": ("keras", "Adadelta", {"learning_rate": 1.0}),
    "Adafactor": ("keras", "Adafactor", {"learning_rate": 0.05}),
    "tf_keras Adam": ("tf_keras", "Adam", {"learning_rate": 0.01}),
    "tf_keras legacy Adam": ("tf_keras", "legacy.Adam", {"learning_rate": 0.01}),
}


def rows():
    """Return rows of which most name a kind that hardly any other names."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(ROWS, 4)).astype("float32")
    kind = rng.integers(0, KINDS, ROWS).astype("int64")
    y = x @ [1.0, -2.0, 0.5, 1.0] + np.sin(kind) + rng.normal(size=ROWS)
    return {"x": x, "kind": kind, "y": y.astype("float32")}


def build(name):
    """Return a model with a dense layer and an embedding, and its optimizer."""
    flavour, optimizer, arguments = OPTIMIZERS[name]
    keras = importlib.import_module(flavour)
    keras.utils.set_random_seed(3)
    x = keras.layers.Input((4,))
    kind = keras.layers.Input((), dtype="int64")
    both = keras.layers.Concatenate()([x, keras.layers.Embedding(KINDS, 4)(kind)])
    model = keras.Model([x, kind], keras.layers.Dense(1)(both))
    made = functools.reduce(getattr, optimizer.split("."), keras.optimizers)(**arguments)
    if hasattr(made, "build"):
        made.build(model.trainable_variables)
    else:
        made._create_all_weights(model.trainable_variables)
    return model, made


def apart(strategy, additions):
    """Let some time pass between the first two writes of an update, where the variable lies."""
    import tensorflow as tf
    from tensorflow.python.ops import gen_resource_variable_ops as kernels

    writes = None

    def late(value):
        with tf.control_dependencies([value]):
            count = tf.while_loop(
                lambda at: at < additions, lambda at: (at + 1,), (0,), parallel_iterations=1
            )
            with tf.control_dependencies(count):
                return tf.identity(value)

    def writing(original, place):
        def write(*given, **named):
            nonlocal writes
            if writes is None:
                return original(*given, **named)
            writes += 1
            if writes == 2:
                given = (*given[:place], late(given[place]), *given[place + 1 :])
            return original(*given, **named)

        return write

    places = {"assign_variable_op": 1, "assign_add_variable_op": 1, "assign_sub_variable_op": 1}
    for name, place in (places | {"resource_scatter_add": 2}).items():
        setattr(kernels, name, writing(getattr(kernels, name), place))
    update = strategy.extended._update

    def counting(var, fn, *more):
        def counted(*given, **named):
            nonlocal writes
            writes = 0
            try:
                return fn(*given, **named)
            finally:
                writes = None

        return update(var, counted, *more)

    strategy.extended._update = counting


def step_of(learners, columns):
    """Return a function that makes a step of each optimizer on rows from a place on."""
    import tensorflow as tf

    def step(start):
        x, kind, y = (
            tf.constant(columns[name])[start : start + BATCH] for name in ("x", "kind", "y")
        )
        for model, optimizer in learners:
            weights = model.trainable_variables
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model([x, kind])[:, 0] - y) ** 2)
            natives = [w if isinstance(w, tf.Variable) else w.value for w in weights]
            gradients = tape.gradient(loss, natives)
            optimizer.apply_gradients(zip(gradients, weights, strict=True))

    return step


def train(ctx, columns, additions):
    """Return the losses over all rows after training alone, and by several workers."""
    import tensorflow as tf

    starts = [start for _ in range(EPOCHS) for start in range(0, ROWS, BATCH)]

    def losses(learners):
        found = [
            model([columns["x"], columns["kind"]])[:, 0] - columns["y"] for model, _ in learners
        ]
        return dict(
            zip(OPTIMIZERS, (float(tf.reduce_mean(each**2)) for each in found), strict=True)
        )

    single = [build(name) for name in OPTIMIZERS]
    step = tf.function(step_of(single, columns), autograph=False)
    for start in starts:
        step(tf.constant(start))
    with ctx.strategy.scope():
        shared = [build(name) for name in OPTIMIZERS]
    apart(ctx.strategy, additions)
    work = step_of(shared, columns)
    step = tf.function(lambda start: ctx.strategy.run(work, args=(start,)), autograph=False)
    for start in starts:
        ctx.coordinator.schedule(step, args=(tf.constant(start),))
    ctx.coordinator.join()
    return losses(single), losses(shared)


def test_no_optimizer_reads_slots_that_another_worker_has_half_updated(distribute):
    result = distribute("parameter_server", ps=1, worker=2).run(train, rows(), APART)
    alone, together = result.value
    assert max(alone.values()) < np.var(rows()["y"])  # all of them learn
    assert together == pytest.approx(alone, rel=0.1)
