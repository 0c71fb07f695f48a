"""Ranks whose own data end before those of others: each row counts once, in any model."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
from ranks import run_job

#: Sizes of the batches of each rank.
SIZES = ((4, 4, 3), (3,))
FLAVOURS = ("keras", "tf_keras")
MODELS = ("images", "synchronized", "eager", "texts")


def model_of(keras, kind):
    """Return a compiled model of layers that can't take an empty batch, at least not on CPUs."""
    keras.utils.set_random_seed(2)
    layers = keras.layers
    head = [layers.GlobalAveragePooling2D(), layers.Dense(1)]
    if kind == "texts":
        body = [
            keras.Input((None,), dtype="int32"),
            layers.Embedding(9, 4, mask_zero=True),
            layers.BatchNormalization(momentum=0.5, synchronized=True),
            layers.Conv1D(3, 4, activation="relu", dtype="float64"),
        ]
        head = [layers.GlobalMaxPooling1D(), layers.Dense(1)]
    else:
        body = [keras.Input((8, 8, 2)), layers.Conv2D(3, 3, activation="relu")]
        # The statistics of one replica's rows aren't those of all.
        if kind != "images":
            body.append(layers.BatchNormalization(momentum=0.5, synchronized=True))
    model = keras.Sequential([*body, *head])
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile(
        keras.optimizers.Adam(0.02), loss, metrics=["accuracy"], run_eagerly=kind == "eager"
    )
    return model


def batches_of(kind, sizes, seed):
    """Return batches of some sizes."""
    rng = np.random.default_rng(seed)
    found = []
    for size in sizes:
        if kind == "texts":
            x = rng.integers(0, 9, (size, 7), dtype=np.int32)
        else:
            x = rng.normal(size=(size, 8, 8, 2)).astype("float32")
        found.append((x, rng.integers(0, 2, (size, 1)).astype("float32")))
    return found


def dataset_of(kind, batches):
    """Return a dataset of these batches whose length isn't known."""
    import tensorflow as tf

    shape = (None, None) if kind == "texts" else (None, 8, 8, 2)
    x = tf.TensorSpec(shape, tf.int32 if kind == "texts" else tf.float32)
    signature = (x, tf.TensorSpec((None, 1), tf.float32))
    dataset = tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=signature)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return dataset.with_options(options)


def fitted(model, endless, dataset, flavour):
    """Return what a fit finds, and the weights; before it, there is a step on endless data."""
    model.fit(endless, steps_per_epoch=1, verbose=0)
    steps = {"steps_per_epoch": max(map(len, SIZES))} if flavour == "tf_keras" else {}
    history = model.fit(dataset, epochs=1, verbose=0, **steps).history
    return [history["loss"][0], history["accuracy"][0]], [
        each.tolist() for each in model.get_weights()
    ]


def trained(ctx):
    """Return for each flavour and model what all ranks make of it, and what one process does."""
    found = {}
    for flavour in FLAVOURS:
        keras = importlib.import_module(flavour)
        for kind in MODELS:
            parts = [batches_of(kind, sizes, rank) for rank, sizes in enumerate(SIZES)]
            mine = parts[ctx.rank]
            own = (dataset_of(kind, mine[:1]).repeat(), dataset_of(kind, mine))
            together = [
                ctx.strategy.distribute_datasets_from_function(lambda _, each=each: each)
                for each in own
            ]
            with ctx.strategy.scope():
                model = model_of(keras, kind)
            found[flavour, kind] = [fitted(model, *together, flavour)]
            if not ctx.is_chief:
                continue
            steps = [
                tuple(np.concatenate(each) for each in zip(*there, strict=True))
                for step in range(max(map(len, parts)))
                if (there := [part[step] for part in parts if step < len(part)])
            ]
            with ctx.alone():
                alone = (dataset_of(kind, steps[:1]).repeat(), dataset_of(kind, steps))
                found[flavour, kind].append(fitted(model_of(keras, kind), *alone, flavour))
    return found


@pytest.mark.slow
@pytest.mark.usefixtures("by_value", "no_leaks")
def test_models_that_take_no_empty_batch_train_as_in_one_process():
    (chief, other), _ = run_job(trained, 2, "multi_worker_mirrored")
    for name, (together, alone) in chief.items():
        assert other[name][0][1] == together[1], name
        assert together[0] == pytest.approx(alone[0], abs=1e-5), name
        for mine, wanted in zip(together[1], alone[1], strict=True):
            np.testing.assert_allclose(mine, wanted, atol=1e-5, err_msg=str(name))
