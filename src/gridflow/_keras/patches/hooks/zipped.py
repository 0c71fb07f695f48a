"""Says what ``tf.data.Dataset.zip`` does to datasets of rows: it pairs batches, not rows.

Each dataset has its own order, and Spark deals out the rows of each DataFrame on its own, so that
features in one and labels in the other almost never meet. Mirrored strategies and parameter servers
have datasets of other types, which TensorFlow can't zip.
"""

from __future__ import annotations

import functools
import warnings
from typing import Any, Final

import tensorflow as tf

from gridflow._feed.dataset.source import Source, source_of
from gridflow._keras.patches.methods import Layer, wrap
from gridflow._keras.patches.private_parts import inputs_of
from gridflow._keras.patches.registry import Hook
from gridflow._keras.servers.data import WorkerDataset
from gridflow.errors import InvalidArgument

_INSTEAD: Final = (
    "Features, labels and weights that belong together are columns of one dataset: join the "
    "DataFrames before run(data=…), by a key, or by their order with Spark 4.3's df.zip(other)."
)


def _zip(original: Any, *args: Any, **kwargs: Any) -> Any:
    given = tf.nest.flatten((args, kwargs.get("datasets")))
    for each in given:
        if isinstance(each, WorkerDataset) or (
            source_of(each) is not None and not isinstance(each, tf.data.Dataset)
        ):
            raise InvalidArgument(f"{type(each).__name__}s can't be zipped. {_INSTEAD}")
    sources = [source for each in given for source in _sources(each)]
    if len({_order(source) for source in sources}) > 1:
        names = sorted({repr(source.reader.dataset) for source in sources})
        warnings.warn(
            f"zip pairs the batches of {' and '.join(names)} as they come, not their rows: each "
            f"has an order of its own. {_INSTEAD}",
            stacklevel=3,
        )
    return original(*args, **kwargs)


def _sources(dataset: Any) -> list[Source]:
    """Return where the rows of a dataset come from."""
    if not isinstance(dataset, tf.data.Dataset):
        return []
    found = map(source_of, inputs_of(dataset))
    return [source for source in found if source is not None]


def _order(source: Source) -> tuple[Any, ...]:
    """Return what decides which rows are in which batch."""
    names = ("batch_size", "tail", "shuffle", "seed", "first_steps")
    return (source.reader.dataset, *(getattr(source, name, None) for name in names))


@functools.cache
def _install() -> None:
    """Do it once for both flavours of Keras."""
    wrap(tf.data.Dataset, "zip", _zip, Layer.CHECK)


def hook() -> Hook:
    return Hook("datasets of rows aren't zipped without a word", _install)
