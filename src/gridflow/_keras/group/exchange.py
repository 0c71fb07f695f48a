"""What ranks exchange, as operations of TensorFlow.

An exchange is a Python function in the graph, which calls the process's group. Nothing that is
traced depends on who is in the group.

Where the exchange of gradients was built in C, it is an operation of TensorFlow. What it leaves to
Python, such as an exchange with other hosts, goes through `gridflow._collectives.host` as without
it: a traced step mustn't depend on who is in the group.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import tensorflow as tf

from gridflow._collectives import errors, native
from gridflow._collectives.parts import checksum_of
from gridflow.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gridflow._collectives.host import HostGroup


_FLOAT32 = np.dtype(np.float32)


@functools.cache
def _loaded() -> tuple[Any, ctypes.CDLL] | None:
    """Return the module that TensorFlow makes of the library, and the library; or None."""
    path = native.path_of("exchange_tensorflow")
    if path is None:
        return None
    try:
        module = tf.load_op_library(str(path))
    except tf.errors.OpError:  # not for this TensorFlow
        return None
    library = native.load(path)
    if library is None:
        return None
    for how, words in errors.formats().items():
        library.gridflow_say(how, ctypes.c_char_p(words))
    return module, library


def mean_of_rows() -> Callable[..., Any] | None:
    """Return the operation, or None."""
    loaded = _loaded()
    return None if loaded is None else loaded[0].gridflow_mean_of_rows


class InUse:
    """The group through which the operation exchanges values."""

    def __init__(self, group: HostGroup | None) -> None:
        self._group = group
        loaded = _loaded()
        if loaded is None:
            return
        if group is not None:
            self._in_python = native.InPython(self._add_up)  # C refers to it
            group.state.in_python = self._in_python
        loaded[1].gridflow_use(None if group is None else ctypes.byref(group.state))

    def _add_up(self, given: Any) -> int:
        """Exchange what C leaves to Python; return how that ends."""
        assert self._group is not None
        arrays = given.contents
        try:
            sums, weights = self._group.add_up(
                [_array(arrays, arrays.given, place) for place in range(arrays.count)],
                dtype=_FLOAT32,
                weight=arrays.weight,
                checksum=arrays.checksum,
            )
        except Exception as error:  # noqa: BLE001 (C can't raise it: the operation fails with it)
            words = f"{type(error).__name__}: {error}"
            self._group.state.failure = words.encode()[: native.FAILURE_BYTES - 1]
            return native.IN_PYTHON
        for place, found in enumerate(sums):
            _array(arrays, arrays.sums, place)[...] = found
        for rank, weight in enumerate(weights):
            arrays.weights[rank] = weight
        return native.DONE


def _array(arrays: Any, where: Any, place: int) -> np.ndarray[Any, Any]:
    length = arrays.lengths[place]
    if not length:
        return np.empty(0, np.float32)
    address = ctypes.cast(where[place], ctypes.POINTER(ctypes.c_float))
    return np.ctypeslib.as_array(address, (length,))


#: Exchanged as they are; other types of floating-point numbers as one of them.
_WIDE: Final = (tf.float32, tf.float64)
_CPU: Final = "/device:CPU:0"
#: Whether what is computed or traced now exchanges nothing.
_is_alone: bool = False


def is_alone() -> bool:
    """Return whether what is computed or traced now exchanges nothing."""
    return _is_alone


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Exchange nothing in a block: compute as if all ranks had this rank's values."""
    global _is_alone  # noqa: PLW0603 (one for all threads)
    before, _is_alone = _is_alone, True
    try:
        yield
    finally:
        _is_alone = before


class GroupExchange:
    """The exchanges of one process, in the same order on all ranks.

    `wire`: The type in which gradients of float32 are exchanged. Default: their own.
    `group`: Functions that have been traced use the one that is here when they run. None: this
        rank is the only one, or has yet to join the others.
    `is_joining`: Whether variables keep the first values that this rank gives them: it takes
        another one's place, and will get the values that the others have.
    `may_join_later`: Whether it may become so if a rank is lost as variables are made.
    """

    def __init__(
        self, group: HostGroup | None, rank: int = 0, size: int = 1, wire: Any = None
    ) -> None:
        self.group = group
        self.is_joining = self.may_join_later = False
        self.rank, self.size = rank, size
        self._wire = None if wire is None else np.dtype(wire.as_numpy_dtype)
        self._is_compiling = False
        with tf.init_scope(), tf.device(_CPU):
            # TensorFlow orders only operations that read or write the same variable.
            self._order = tf.Variable(0.0, trainable=False, name="order_of_exchanges")

    @property
    def group(self) -> Any:
        """The group through which values are exchanged."""
        return self._group

    @group.setter
    def group(self, group: HostGroup | None) -> None:
        self._group = group
        self._in_use = InUse(group)

    @property
    def place(self) -> int:
        """The place of this rank among those that are there."""
        return 0 if self.group is None else int(self.group.rank)

    @property
    def members(self) -> int:
        """How many ranks are there."""
        return self.size if self.group is None else int(self.group.size)

    def _is_alone(self) -> bool:
        return is_alone() or self.size == 1 or self.group is None

    @contextlib.contextmanager
    def compiling(self) -> Iterator[None]:
        """Refuse exchanges in a block, which XLA compiles."""
        self._is_compiling = True
        try:
            yield
        finally:
            self._is_compiling = False

    def mean(self, grads: Sequence[Any], rows: Any) -> list[Any]:
        """Return the means of gradients over the rows of all ranks, in one exchange.

        `grads`: Of this rank's rows.
        `rows`: How many those are.
        """
        if self._is_alone():
            return list(grads)
        rows = tf.cast(rows, tf.int64)
        in_c = mean_of_rows()
        there = [each for each in grads if each is not None]
        if in_c is None or not there or self._wire or not all(map(_is_plain, there)):
            return self._combined(grads, rows, wire=self._wire)
        checksum = checksum_of([tuple(each.shape) for each in there])
        with tf.device(_CPU):
            found = in_c(values=there, rows=rows, order=self._order.handle, checksum=checksum)
        means = iter(found)
        return [None if each is None else next(means) for each in grads]

    def sums(self, values: Sequence[Any], *, means: bool = False) -> list[Any]:
        """Return the sums of numbers over all ranks, or their means.

        Those of floating-point numbers take one exchange.
        """
        found = [with_tensors(each) for each in values]
        if self._is_alone():
            return found if means else [_times(each, self.size) for each in found]
        real = [place for place, each in enumerate(found) if each.dtype.is_floating]
        weight = tf.constant(1, tf.int64) if means else None
        sums = self._combined([found[place] for place in real], weight)
        for place, each in zip(real, sums, strict=True):
            found[place] = each
        for place in sorted(set(range(len(found))) - set(real)):
            found[place] = self._whole_numbers(found[place], means=means)
        return found

    def _whole_numbers(self, value: Any, *, means: bool) -> Any:
        if isinstance(value, tf.IndexedSlices):
            raise NotImplementedError("slices of whole numbers can't be added up")
        number = tf.cast(value, tf.int32) if value.dtype == tf.bool else value

        def add_up(mine: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
            total = self.group.all_reduce(np.asarray(mine))
            return [total // np.asarray(self.group.size, total.dtype) if means else total]

        (total,) = self._call(add_up, [number], [number.dtype])
        total.set_shape(value.shape)
        return total

    def _combined(
        self, values: Sequence[Any], rows: Any = None, wire: np.dtype[Any] | None = None
    ) -> list[Any]:
        """Return sums, or means over rows if they are given."""
        values = [None if each is None else with_tensors(each) for each in values]
        there = [place for place, each in enumerate(values) if each is not None]
        sparse = [place for place in there if isinstance(values[place], tf.IndexedSlices)]
        dense = [place for place in there if place not in sparse]
        if not dense and not sparse:
            return values
        types = [wide(values[p].dtype) for p in (*dense, *sparse)]
        is_double = tf.float64 in types
        exchanged = np.dtype(np.float64 if is_double else np.float32)
        sent = exchanged if is_double or wire is None else wire

        def exchange(*given: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
            weight = None if rows is None else int(given[0])
            given = given[0 if rows is None else 1 :]
            arrays, slices = given[: len(dense)], given[len(dense) :]
            sums, weights = self.group.add_up(
                [np.asarray(each) for each in arrays], dtype=sent, weight=weight
            )
            sums = [each.astype(exchanged, copy=False) for each in sums]
            return [*sums, *self._gathered(slices, exchanged, _share(weight, weights))]

        given = [values[p] for p in dense]
        outputs = [tf.as_dtype(exchanged)] * len(dense)
        for place in sparse:
            given += [values[place].values, values[place].indices]
            outputs += [tf.as_dtype(exchanged), values[place].indices.dtype]
        found = self._call(exchange, given if rows is None else [rows, *given], outputs)
        for place, each in zip(dense, found, strict=False):
            each.set_shape(values[place].shape)
            values[place] = tf.cast(each, values[place].dtype)
        rest = iter(found[len(dense) :])
        for place in sparse:
            old = values[place]
            numbers, indices = next(rest), next(rest)
            numbers.set_shape([None, *old.values.shape[1:]])
            indices.set_shape([None])
            numbers = tf.cast(numbers, old.values.dtype)
            values[place] = tf.IndexedSlices(numbers, indices, old.dense_shape)
        return values

    def _gathered(
        self,
        slices: Sequence[np.ndarray[Any, Any]],
        dtype: np.dtype[Any],
        share: float,
    ) -> list[np.ndarray[Any, Any]]:
        """Return the slices of all ranks: one exchange for their numbers, one for all of them."""
        if not slices:
            return []
        values = [np.multiply(each, share, dtype=dtype) for each in slices[::2]]
        content = b"".join(
            each.tobytes() for pair in zip(values, slices[1::2], strict=True) for each in pair
        )
        widths = [
            (int(np.prod(each.shape[1:])) * dtype.itemsize, indices.itemsize)
            for each, indices in zip(values, slices[1::2], strict=True)
        ]
        counts = np.array([len(each) for each in values], np.int64)
        lengths = self.group.all_gather(counts).tolist()
        sizes = [
            sum(n * (wide + narrow) for n, (wide, narrow) in zip(each, widths, strict=True))
            for each in lengths
        ]
        mine = np.frombuffer(content.ljust(max(sizes), b"\0"), np.uint8)
        everyone = self.group.all_gather(mine) if len(mine) else [mine for _ in sizes]
        found: list[list[np.ndarray[Any, Any]]] = [[] for _ in slices]
        for rank, raw in enumerate(everyone):
            at, whole = 0, raw.tobytes()
            for place, count in enumerate(lengths[rank]):
                shape = (count, *values[place].shape[1:])
                numbers, indices = (count * width for width in widths[place])
                part = np.frombuffer(whole[at : at + numbers], dtype).reshape(shape)
                found[2 * place].append(part)
                at += numbers
                kind = slices[2 * place + 1].dtype
                found[2 * place + 1].append(np.frombuffer(whole[at : at + indices], kind))
                at += indices
        return [np.concatenate(each) for each in found]

    def concatenated(self, values: Any, axis: int = 0) -> Any:
        """Return the values of all ranks by rank, which may differ in size along an axis."""
        values = tf.convert_to_tensor(values)
        if self._is_alone():
            return tf.concat([values] * self.size, axis)
        if values.dtype in {tf.bool, tf.bfloat16}:
            known = tf.uint8 if values.dtype == tf.bool else tf.float32
            return tf.cast(self.concatenated(tf.cast(values, known), axis), values.dtype)
        turned = values if axis == 0 else tf.experimental.numpy.moveaxis(values, axis, 0)
        (found,) = self._call(self._gather, [turned], [values.dtype])
        found.set_shape([None, *turned.shape[1:]])
        return found if axis == 0 else tf.experimental.numpy.moveaxis(found, 0, axis)

    def _gather(self, mine: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
        mine = np.asarray(mine)
        if mine.dtype == object:
            return [self._gather_texts(mine)]
        sizes = self.group.all_gather(np.array([len(mine)], np.int64)).reshape(-1)
        whole = np.zeros((int(sizes.max()), *mine.shape[1:]), mine.dtype)
        whole[: len(mine)] = mine
        everyone = self.group.all_gather(whole)
        return [np.concatenate([e[:s] for e, s in zip(everyone, sizes, strict=True)])]

    def _gather_texts(self, mine: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        lengths = np.array([len(each) for each in mine.reshape(-1)], np.int64)
        (every,) = self._gather(lengths)
        (content,) = self._gather(np.frombuffer(b"".join(mine.reshape(-1)), np.uint8))
        ends = np.cumsum(every)
        texts = [content[end - n : end].tobytes() for end, n in zip(ends, every, strict=True)]
        found = np.array([*texts, None], object)[:-1]
        return found.reshape(-1, *mine.shape[1:])

    def of_chief(self, value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return the value of the first rank of those that are there. Not for graphs."""
        if self.size == 1 or self.group is None:
            return np.asarray(value, order="C")
        found: np.ndarray[Any, Any] = self.group.of_rank(value, 0)
        return found

    def _call(
        self,
        function: Callable[..., Sequence[np.ndarray[Any, Any]]],
        values: Sequence[Any],
        types: Sequence[Any],
    ) -> list[Any]:
        """Call a function on arrays, after all earlier calls on this rank."""
        if self._is_compiling:
            raise InvalidArgument(
                "with jit_compile=True, ranks exchange nothing but gradients on CPUs: no losses "
                "with masks, mean_with_sample_weight or sums, and no synchronized "
                "BatchNormalization. Leave jit_compile out."
            )
        with tf.device(_CPU):
            if tf.executing_eagerly():
                found = function(*(each.numpy() for each in values))
                return [tf.constant(each, kind) for each, kind in zip(found, types, strict=True)]
            before = tf.raw_ops.ReadVariableOp(resource=self._order.handle, dtype=tf.float32)
            outputs: list[Any]
            *outputs, after = tf.numpy_function(
                lambda *given: (*function(*given[:-1]), given[-1]),
                [*values, before],
                [*types, tf.float32],
            )
            tf.raw_ops.AssignVariableOp(resource=self._order.handle, value=after)
        return outputs


def _is_plain(value: Any) -> bool:
    """Return whether a value is a tensor of a graph that can be exchanged as it is."""
    return (
        not tf.executing_eagerly()
        and tf.is_tensor(value)
        and not isinstance(value, tf.IndexedSlices)
        and value.dtype == tf.float32
        and value.shape.is_fully_defined()
    )


def with_tensors(value: Any) -> Any:
    """Return a value as a tensor, and slices as they are."""
    return value if isinstance(value, tf.IndexedSlices) else tf.convert_to_tensor(value)


def _times(value: Any, factor: int) -> Any:
    if isinstance(value, tf.IndexedSlices):
        return tf.IndexedSlices(_times(value.values, factor), value.indices, value.dense_shape)
    return value * tf.cast(factor, value.dtype)


def wide(dtype: Any) -> Any:
    """Return the type in which numbers of a floating-point type are weighted and added up."""
    return dtype if dtype in _WIDE else tf.float32


def _share(weight: int | None, weights: Sequence[int]) -> float:
    """Return how much this rank's slices count."""
    if weight is None:
        return 1.0
    return weight / sum(weights) if weight else 0.0
