"""Exchanges by TensorFlow's own collective operations: NCCL, where each rank has a GPU of its own.

Gradients travel as one tensor, weighted, which never leaves the GPUs.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from gridflow._keras.group.exchange import is_alone, wide, with_tensors
from gridflow._keras.patches.private_parts import part

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


class CollectiveExchange:
    """The exchanges of one process; see `GroupExchange`, whose methods these are.

    `strategy`: TensorFlow's own, which has started its server.
    `wire`: The type in which gradients of float32 are exchanged. Default: their own.
    `most`: Bytes that travel as one tensor; 0: any number.
    """

    #: Ranks can't be replaced in TensorFlow's own group.
    is_joining = may_join_later = False

    def __init__(self, strategy: Any, wire: Any = None, most: int = 0) -> None:
        self._wire, self._most = wire, most
        self._owner = strategy  # keeps the server
        (self._launcher,) = part(part(strategy.extended, "_cross_device_ops"), "_launchers")
        self.rank = self.place = int(part(strategy.extended, "_id_in_cluster"))
        self.size = self.members = int(strategy.num_replicas_in_sync)

    def compiling(self) -> contextlib.AbstractContextManager[None]:
        """Return a context that changes nothing: XLA compiles NCCL's operations."""
        return contextlib.nullcontext()

    def mean(self, grads: Sequence[Any], rows: Any) -> list[Any]:
        """Return the means of gradients over the rows of all ranks."""
        if is_alone():
            return list(grads)
        *sums, total = self._combined([*grads, rows], rows)
        return [_divided(each, total) for each in sums]

    def sums(self, values: Sequence[Any], *, means: bool = False) -> list[Any]:
        """Return the sums of numbers over all ranks, or their means."""
        given = [with_tensors(each) for each in values]
        if is_alone():
            return given if means else [_times(each, self.size) for each in given]
        sums = self._combined(given, None)
        return [_divided(each, self.size) for each in sums] if means else sums

    def _combined(self, values: Sequence[Any], rows: Any) -> list[Any]:
        """Return sums of values, weighted by rows except for the last one, which is the rows."""
        found = list(values)
        there = [place for place, each in enumerate(values) if each is not None]
        sparse = [place for place in there if isinstance(values[place], tf.IndexedSlices)]
        dense = [place for place in there if place not in sparse]
        sent = {}
        for place in there:
            is_rows = rows is not None and place == len(values) - 1
            sent[place] = values[place] if rows is None or is_rows else _times(values[place], rows)
            if rows is not None and not is_rows and self._wire and place in dense:
                sent[place] = tf.cast(sent[place], self._wire)
        for kind, places in self._packs({place: sent[place] for place in dense}):
            flat = tf.concat([tf.reshape(sent[place], [-1]) for place in places], 0)
            narrow = tf.cast(flat, tf.int32) if kind == tf.bool else flat
            total = self._launcher.all_reduce(narrow)
            parts = tf.split(total, [tf.size(sent[place]) for place in places], num=len(places))
            for place, each in zip(places, parts, strict=True):
                shaped = tf.reshape(each, tf.shape(sent[place]))
                shaped.set_shape(sent[place].shape)
                kept = shaped if kind == tf.bool else tf.cast(shaped, values[place].dtype)
                found[place] = kept
        for place in sparse:
            found[place] = self._launcher.all_reduce_indexed_slices(sent[place])
        return found

    def _packs(self, values: Mapping[int, Any]) -> Iterator[tuple[Any, list[int]]]:
        """Yield types, and the places of values of that type that travel as one tensor."""
        for kind in dict.fromkeys(each.dtype for each in values.values()):
            pack, size = list[int](), 0
            for place, each in values.items():
                if each.dtype != kind:
                    continue
                more = (each.shape.num_elements() or 0) * kind.size
                if pack and self._most and size + more > self._most:
                    yield kind, pack
                    pack, size = [], 0
                pack, size = [*pack, place], size + more
            yield kind, pack

    def concatenated(self, values: Any, axis: int = 0) -> Any:
        """Return the values of all ranks by rank, which may differ in size along an axis."""
        values = tf.convert_to_tensor(values)
        if is_alone():
            return tf.concat([values] * self.size, axis)
        if tf.executing_eagerly():  # which TensorFlow refuses
            return tf.function(self.concatenated, autograph=False)(values, axis)
        return self._launcher.all_gather(values, axis)

    def of_chief(self, value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return the value of the first rank. Not for graphs."""
        mine = np.asarray(value)
        sent = mine.astype(np.int32) if mine.dtype == bool else mine
        total = self._launcher.all_reduce(tf.constant(np.zeros_like(sent) if self.rank else sent))
        found: np.ndarray[Any, Any] = total.numpy().astype(mine.dtype).reshape(mine.shape)
        return found


def _times(value: Any, factor: Any) -> Any:
    """Return a value times a factor, in a type in which that doesn't overflow."""
    if isinstance(value, tf.IndexedSlices):
        return tf.IndexedSlices(_times(value.values, factor), value.indices, value.dense_shape)
    value = tf.cast(value, wide(value.dtype)) if value.dtype.is_floating else value
    factor = tf.cast(factor, value.dtype)
    # The mean over no rows may be 0 / 0.
    return tf.math.multiply_no_nan(value, factor) if value.dtype.is_floating else value * factor


def _divided(value: Any, total: Any) -> Any:
    if value is None:
        return None
    if isinstance(value, tf.IndexedSlices):
        return tf.IndexedSlices(_divided(value.values, total), value.indices, value.dense_shape)
    total = tf.cast(total, value.dtype)
    return tf.math.divide_no_nan(value, total) if value.dtype.is_floating else value // total
