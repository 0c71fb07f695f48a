"""Numbered elements read through the data service, how often each may arrive, and a training.

Checks the guarantees of ``docs/data_service.md`` on any launcher.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gridflow.testing.deaths import kill_task

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from gridflow._spec.option_groups import Sharding
    from gridflow._training.context import TrainingContext

#: Rows per element; an element is a batch.
BATCH: Final = 10
#: The victim is killed after this fraction of the expected batches.
_PART_READ: Final = 0.1


def write_numbers(folder: Path, count: int, files: int) -> list[str]:
    """Write the numbers from 0 to ``count - 1`` to TFRecord files and return their paths."""
    from gridflow.tfrecord.framing import write_records

    paths = [str(folder / f"{place}.tfrecord") for place in range(files)]
    for place, path in enumerate(paths):
        numbers = range(place * count // files, (place + 1) * count // files)
        write_records(path, (str(number).encode() for number in numbers))
    return paths


def pipeline(paths: Sequence[str], count: int, sharding: Sharding) -> Any:
    """Return batches of the numbers, from a pipeline that suits the sharding."""
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
    """Return the numbers read through the data service, in the order of arrival.

    Parameters
    ----------
    ctx : TrainingContext
    paths : sequence of str
        The files of `write_numbers`.
    count : int
    sharding : str
    victim : str, optional
        A task on this machine to kill while reading.
    """
    found: list[int] = []
    for batch in ctx.data_service(pipeline(paths, count, sharding), sharding=sharding):
        found += batch.numpy().tolist()
        if victim is not None and len(found) >= _PART_READ * count:
            kill_task(ctx, victim)
            victim = None
    return found


def expected(sharding: Sharding, workers: int, victim: str | None) -> tuple[int, int | None]:
    """Return the least and greatest number of times each number may arrive; None means no limit."""
    each = workers if sharding == "off" else 1
    if victim is None or (victim.startswith("dispatcher") and sharding != "dynamic"):
        return each, each
    if sharding == "dynamic":
        return 0, 1
    return each, None


def most_missing(count: int, workers: int, victim: str) -> int:
    """Return how many numbers may be missing where each arrives at most once.

    A data worker that dies loses the numbers it has received but not delivered. A dispatcher that
    dies loses one number for each pending request, because it records a split before it sends it
    (``GetSplit`` in TensorFlow's ``dispatcher_impl.cc``).
    """
    return workers if victim.startswith("dispatcher") else count // 2


def train(serve: Callable[[Any], Any], callbacks: Sequence[Any] = ()) -> list[float]:
    """Return the losses and then the weights of a fit on a pipeline with a fixed order.

    Parameters
    ----------
    serve : callable
        Takes the pipeline's dataset and returns the one to fit on.
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
