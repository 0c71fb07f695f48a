"""Numbered elements through the data service, how often each may come, and a training.

The guarantees of ``docs/data_service.md``, to be tried on any launcher.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gridflow.testing.deaths import kill_task

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from gridflow._spec.data_service import Sharding
    from gridflow._training.context import TrainingContext

#: Rows of an element, which is a batch.
BATCH: Final = 10
#: Deaths come when so many batches of those expected were read.
_PART_READ: Final = 0.1


def write_numbers(folder: Path, count: int, files: int) -> list[str]:
    """Write the numbers from 0 on as TFRecord files, and return their paths."""
    from gridflow.tfrecord.framing import write_records

    paths = [str(folder / f"{place}.tfrecord") for place in range(files)]
    for place, path in enumerate(paths):
        numbers = range(place * count // files, (place + 1) * count // files)
        write_records(path, (str(number).encode() for number in numbers))
    return paths


def pipeline(paths: Sequence[str], count: int, sharding: Sharding) -> Any:
    """Return batches of the numbers, of a pipeline that fits a sharding."""
    import tensorflow as tf

    hint = tf.data.experimental.SHARD_HINT
    match sharding:
        case "file" | "file_or_data":
            texts = tf.data.Dataset.from_tensor_slices(list(paths)).flat_map(
                tf.data.TFRecordDataset
            )
            numbers = texts.map(lambda text: tf.strings.to_number(text, tf.int64))
        case "hint":
            numbers = tf.data.Dataset.range(count).shard(hint, hint)
        case _:
            numbers = tf.data.Dataset.range(count)
    return numbers.batch(BATCH)


def read_numbers(
    ctx: TrainingContext,
    paths: Sequence[str],
    count: int,
    *,
    sharding: Sharding,
    victim: str | None = None,
) -> list[int]:
    """Return the numbers that come through the data service, in order.

    Parameters
    ----------
    ctx : TrainingContext
    paths : sequence of str
        What `write_numbers` has written.
    count : int
    sharding : str
    victim : str, optional
        A task on this machine that is killed on the way.
    """
    found: list[int] = []
    for batch in ctx.data_service(pipeline(paths, count, sharding), sharding=sharding):
        found += batch.numpy().tolist()
        if victim is not None and len(found) >= _PART_READ * count:
            kill_task(ctx, victim)
            victim = None
    return found


def expected(sharding: Sharding, workers: int, victim: str | None) -> tuple[int, int | None]:
    """Return how often each number comes at least, and at most; None: no limit."""
    each = workers if sharding == "off" else 1
    if victim is None or (victim.startswith("dispatcher") and sharding != "dynamic"):
        return each, each
    if sharding == "dynamic":
        return 0, 1
    return each, None


def most_missing(count: int, workers: int, victim: str) -> int:
    """Return how many numbers may be missing where each comes at most once.

    Those that a data worker had taken and not given; or one for each request that the dispatcher
    was answering, as it writes down what it gives out before it does (``GetSplit`` in TensorFlow's
    ``dispatcher_impl.cc``).
    """
    return workers if victim.startswith("dispatcher") else count // 2


def train(serve: Callable[[Any], Any], callbacks: Sequence[Any] = ()) -> list[float]:
    """Return losses and weights of a fit on a pipeline with an order, one after the other.

    Parameters
    ----------
    serve : callable
        Returns the dataset for the fit; it gets that of the pipeline.
    callbacks : sequence of keras.callbacks.Callback
    """
    import numpy as np
    import tensorflow as tf

    import keras

    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.01), "mse")
    x = np.random.default_rng(1).normal(size=(203, 3)).astype("float32")
    rows = tf.data.Dataset.from_tensor_slices((x, x @ np.array([1, 2, -1], "float32")))
    rows = rows.shuffle(50, seed=2, reshuffle_each_iteration=False).batch(8)
    history = model.fit(serve(rows), epochs=3, verbose=0, callbacks=list(callbacks)).history
    weights = [value for weight in model.get_weights() for value in weight.ravel().tolist()]
    return [*history["loss"], *weights]
