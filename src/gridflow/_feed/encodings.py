"""Encodings for columns that have no tensor by themselves: options of users, and their work.

Structs need no encoding: their fields are columns, named by path. Runs in the agent, on batches.

Also here: functions for ``map=`` that decode columns of bytes, images and numpy arrays.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gridflow._feed.column import offsets_of, storage
from gridflow._feed.types import is_list, is_text, leaf_type
from gridflow._spec.option_checks import choose, whole_number
from gridflow.errors import DataError, InvalidArgument, SchemaError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = [
    "ITEM",
    "Form",
    "Keys",
    "Padded",
    "Ragged",
    "Sparse",
    "array_decoder",
    "image_decoder",
    "opened",
    "packed",
]


class Form:
    """How a column becomes tensors, if its type alone doesn't determine it."""


@dataclass(frozen=True)
class Padded(Form):
    """Arrays of any length, truncated or padded to one length.

    Parameters
    ----------
    length : int
        The number of items per row; further items are cut off.
    value : optional
        The value that pads shorter rows at the end. Default: 0, ``False`` or an empty
        string.

    Examples
    --------
    >>> from gridflow import Padded, TensorflowDistributor
    >>> distributor = TensorflowDistributor(columns={"tokens": Padded(128)})
    """

    length: int
    value: Any = None

    def __post_init__(self) -> None:
        if isinstance(self.length, bool) or not isinstance(self.length, int) or self.length < 1:
            raise InvalidArgument(f"Padded needs a length of at least 1, got {self.length!r}.")


@dataclass(frozen=True)
class Ragged(Form):
    """Arrays of any length as a ``tf.RaggedTensor`` of shape (batch, None).

    For arrays of numbers, booleans, strings or bytes. Needs TensorFlow, and doesn't work under
    ``parameter_server``.
    """


@dataclass(frozen=True)
class Sparse(Form):
    """Vectors that are mostly zeros as a ``tf.SparseTensor`` of shape (batch, size), ``float32``.

    For Spark ML vectors, dense and sparse ones mixed, and for structs with the arrays ``indices``
    and ``values``. Needs TensorFlow, and doesn't work under ``parameter_server``. Without this
    encoding, vectors are dense.

    Parameters
    ----------
    size : int
        Size of the vectors, the same in all rows.

    Examples
    --------
    >>> from gridflow import Sparse, TensorflowDistributor
    >>> distributor = TensorflowDistributor(columns={"words": Sparse(100_000)})
    """

    size: int

    def __post_init__(self) -> None:
        is_number = isinstance(self.size, int) and not isinstance(self.size, bool)
        if not is_number or not 1 <= self.size < 1 << 31:
            raise InvalidArgument(
                f"Sparse needs the size of the vectors, from 1 to 2**31 - 1; got {self.size!r}."
            )


@dataclass(frozen=True, init=False)
class Keys(Form):
    """Values of chosen keys of a map, each as a separate column ``"map.key"``.

    Parameters
    ----------
    *names
        The keys.
    default : optional
        The value if a row's map lacks a key; by default a null, which is handled as ``nulls=``
        says.

    Examples
    --------
    >>> from gridflow import Keys, TensorflowDistributor
    >>> distributor = TensorflowDistributor(columns={"counts": Keys("clicks", "views", default=0)})
    """

    names: tuple[Any, ...]
    default: Any = None

    def __init__(self, *names: Any, default: Any = None) -> None:
        if not names:
            raise InvalidArgument("Keys needs at least one key: Keys('a', 'b').")
        twice = [name for i, name in enumerate(names) if name in names[:i]]
        if twice:
            raise InvalidArgument(f"Keys{names}: {twice[0]!r} is given twice.")
        object.__setattr__(self, "names", names)
        object.__setattr__(self, "default", default)


def opened(
    columns: Mapping[str, pa.Array], forms: Mapping[str, Form], dataset: str
) -> tuple[dict[str, pa.Array], dict[str, DataError | SchemaError]]:
    """Return the columns of a batch after expanding structs, maps and encodings.

    `columns, refused`: The columns that can be fed, as far as is known here; and the duplicates and
        those whose encoding doesn't fit their type.
    """
    if not forms and not any(_is_nested(column.type) for column in columns.values()):
        return dict(columns), {}
    found: dict[str, pa.Array] = {}
    refused: dict[str, DataError | SchemaError] = {}
    waiting = list(columns.items())[::-1]
    while waiting:
        name, column = waiting.pop()
        where = f"column {name!r} of dataset {dataset!r}"
        form = forms.get(name)
        try:
            parts = None
            if isinstance(form, Sparse):
                column = packed(storage(column), form.size, where)
            else:
                parts = _parts(name, storage(column), form, where)
            if isinstance(form, Padded):
                column = _padded(storage(column), form, where)
            elif isinstance(form, Ragged):
                check_ragged(storage(column).type, where)
        except (DataError, SchemaError) as error:
            refused[name] = error
            continue
        if parts is not None:
            waiting += parts[::-1]
            continue
        if name in found:
            refused[name] = SchemaError(
                f"{where} is a duplicate: a top-level column and a part of another column have "
                f"the same name. Rename one."
            )
            continue
        found[name] = storage(column)
    return {name: found[name] for name in found if name not in refused}, refused


def _parts(
    name: str, column: pa.Array, form: Form | None, where: str
) -> list[tuple[str, pa.Array]] | None:
    """Return the columns that a column consists of, or None."""
    if pa.types.is_struct(column.type):
        inner = zip(column.type, column.flatten(), strict=True)
        return [(f"{name}.{field.name}", array) for field, array in inner]
    if isinstance(form, Keys):
        return [(f"{name}.{key}", values) for key, values in _of_keys(column, form, where)]
    return None


def check_ragged(kind: pa.DataType, where: str) -> None:
    """Reject what can't become a ragged tensor."""
    if not is_list(kind) or is_list(kind.value_type) or _is_nested(kind.value_type):
        raise SchemaError(
            f"{where} has the type {kind}; Ragged() is for arrays of numbers, booleans, text or "
            "bytes. Flatten arrays of arrays first, or pad them."
        )


def _is_nested(kind: pa.DataType) -> bool:
    return bool(pa.types.is_struct(kind) or pa.types.is_map(kind))


def _of_keys(column: pa.Array, form: Keys, where: str) -> list[tuple[Any, pa.Array]]:
    if not pa.types.is_map(column.type):
        raise SchemaError(f"{where} has the type {column.type}; Keys(…) is for maps.")
    found = []
    for name in form.names:
        try:
            key = pa.scalar(name, column.type.key_type)
            values = _looked_up(column, key)
            if form.default is not None:
                values = pc.fill_null(values, pa.scalar(form.default, values.type))
        except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
            raise SchemaError(
                f"{where} has the type {column.type}; the key {name!r} or the default "
                f"{form.default!r} doesn't fit it ({error})."
            ) from error
        found.append((name, values))
    return found


def _looked_up(column: pa.Array, key: pa.Scalar) -> pa.Array:
    """Return the value of a key in each row (the last duplicate), or null."""
    offsets = column.offsets.to_numpy().astype(np.int64, copy=False)
    found = pc.equal(storage(column.keys), key).to_numpy(zero_copy_only=False)
    places = np.flatnonzero(found[offsets[0] : offsets[-1]]) + offsets[0]
    rows = np.searchsorted(offsets, places, side="right") - 1
    index = np.full(len(column), -1)
    index[rows] = places
    is_missing = index < 0
    if column.null_count:
        is_missing |= column.is_null().to_numpy(zero_copy_only=False)
    return storage(column.items).take(pa.array(index, mask=is_missing))


def _padded(column: pa.Array, form: Padded, where: str) -> pa.Array:
    kind = column.type
    if not is_list(kind) or is_list(kind.value_type) or _is_nested(kind.value_type):
        raise SchemaError(
            f"{where} has the type {kind}; Padded(…) is for arrays of numbers, booleans, text or "
            "bytes."
        )
    offsets = offsets_of(column)
    items, places = storage(column.values), np.arange(form.length)
    spare = _spare(items.type, form.value, where)
    # Beyond its own items, a row takes the spare item at the end.
    inside = places < np.diff(offsets)[:, None]
    index = np.where(inside, offsets[:-1, None] + places, len(items)).reshape(-1)
    values = pa.concat_arrays([items, spare]).take(pa.array(index))
    mask = column.is_null() if column.null_count else None
    return pa.FixedSizeListArray.from_arrays(values, form.length, mask=mask)


def _spare(kind: pa.DataType, value: Any, where: str) -> pa.Array:
    if value is None:
        value = "" if is_text(kind) else 0
        if pa.types.is_boolean(leaf_type(kind)):
            value = False
    if isinstance(value, str) and pa.types.is_binary(kind):
        value = value.encode()
    try:
        return pa.array([value], kind)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        raise SchemaError(f"{where}: the value {value!r} of Padded doesn't fit: {error}") from error


# Sparse vectors: rows that are mostly zeros, stored and fed as their nonzero values.
#
# Each value is packed with its index into eight bytes, the index in the upper four. So a row is a
# list, handled like those of ragged columns. Values are ``float32``, as in dense vectors.

#: The type of a value with its index; lists fed by users never have it.
ITEM = pa.uint64()
_PLACES, _VALUES = "indices", "values"


def packed(column: pa.Array, size: int, where: str) -> pa.Array:
    """Return vectors as lists of values with their indices.

    `column`: Structs with ``indices`` and ``values`` as in Spark's vectors (a row without indices
        is dense), arrays of ``size`` numbers, or a result of this function.
    `size`: Size of the vectors.
    `where`: What to call the column.
    Raises `SchemaError`: The type isn't supported.
    Raises `DataError`: A vector has another size, or its indices aren't ascending.
    """
    kind = column.type
    if is_list(kind) and kind.value_type == ITEM:
        return column
    if is_list(kind) and _is_number(kind.value_type):
        places, vectors = None, column
    elif pa.types.is_struct(kind) and kind.get_field_index(_VALUES) >= 0:
        vectors = storage(column.field(_VALUES))
        places = storage(column.field(_PLACES)) if kind.get_field_index(_PLACES) >= 0 else None
        if not (is_list(vectors.type) and _is_number(vectors.type.value_type)):
            raise _unfit(kind, where)
    else:
        raise _unfit(kind, where)
    null = _are_null(column) | _are_null(vectors)
    begins, lengths = _extents(vectors, null)
    rows = np.repeat(np.arange(len(column)), lengths)
    within = np.arange(len(rows)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    items = storage(vectors.values).cast(pa.float32(), safe=False)
    values = _plain(items, np.repeat(begins, lengths) + within, where)
    is_dense = np.ones(len(column), bool) if places is None else _are_null(places)
    if places is None or is_dense.all():
        index = within
    else:
        firsts, counts = _extents(places, is_dense | null)
        if ((counts != lengths) & ~is_dense & ~null).any():
            raise DataError(f"{where} has a vector with different numbers of indices and values.")
        at = np.where(is_dense[rows], 0, np.repeat(firsts, lengths) + within)
        known = np.asarray(storage(places.values).to_numpy(zero_copy_only=False), np.int64)
        index = np.where(is_dense[rows], within, known[at] if len(known) else within)
    _check(index, rows, is_dense, size, where)
    _check_sizes(column, lengths, is_dense & ~null, null, size, where)
    bits = values.view(np.uint32)
    # Zeros of dense rows are dropped; a negative zero, bit by bit, isn't one.
    kept = ~is_dense[rows] | (bits != 0)
    content = (index[kept].astype(np.uint64) << np.uint64(32)) | bits[kept].astype(np.uint64)
    ends = np.concatenate([[0], np.cumsum(np.bincount(rows[kept], minlength=len(column)))])
    return pa.LargeListArray.from_arrays(
        pa.array(ends.astype(np.int64)),
        pa.array(content, ITEM),
        mask=pa.array(null) if null.any() else None,
    )


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_floating(kind) or pa.types.is_integer(kind)) and kind != ITEM


def _unfit(kind: pa.DataType, where: str) -> SchemaError:
    return SchemaError(
        f"{where} has the type {kind}; Sparse(size) is for Spark's vectors, for structs with the "
        "arrays indices and values, and for arrays of numbers."
    )


def _are_null(column: pa.Array) -> np.ndarray:
    found: np.ndarray = column.is_null().to_numpy(zero_copy_only=False)
    return found


def _extents(lists: pa.Array, without: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the start of each list in the items, and its length; 0 for excluded ones."""
    offsets = offsets_of(lists).astype(np.int64, copy=False)
    return offsets[:-1], np.where(without, 0, np.diff(offsets))


def _plain(items: pa.Array, at: np.ndarray, where: str) -> np.ndarray:
    taken = items.take(pa.array(at))
    if taken.null_count:
        raise DataError(f"{where} has a vector that contains a null: fill it first.")
    values: np.ndarray = taken.to_numpy(zero_copy_only=False)
    return np.ascontiguousarray(values, np.float32)


def _check(
    index: np.ndarray, rows: np.ndarray, is_dense: np.ndarray, size: int, where: str
) -> None:
    outside = (index < 0) | (index >= size)
    if outside.any():
        raise DataError(
            f"{where} has a vector with a value at index {int(index[outside][0])}, but is fed as "
            f"Sparse({size}): pass the size of its vectors."
        )
    is_same = rows[1:] == rows[:-1]
    if (is_same & (np.diff(index) <= 0) & ~is_dense[rows[1:]]).any():
        raise DataError(f"{where} has a vector whose indices aren't ascending: sort them first.")


def _check_sizes(
    column: pa.Array,
    lengths: np.ndarray,
    is_dense: np.ndarray,
    null: np.ndarray,
    size: int,
    where: str,
) -> None:
    told = lengths[is_dense]
    if pa.types.is_struct(column.type) and column.type.get_field_index("size") >= 0:
        sizes = column.field("size")
        known = sizes.is_valid().to_numpy(zero_copy_only=False) & ~null & ~is_dense
        said = sizes.filter(pa.array(known)).to_numpy(zero_copy_only=False)
        told = np.concatenate([told, said.astype(np.int64)])
    if (wrong := told[told != size]).size:
        raise DataError(
            f"{where} has a vector of size {int(wrong[0])}, but is fed as Sparse({size}): all "
            "vectors need the same size."
        )


#: Types that ``tf.io.decode_raw`` and numpy read.
_DECODED: Final = (
    *("float16", "float32", "float64", "bool"),
    *("uint8", "uint16", "int8", "int16", "int32", "int64"),
)
#: What a file of ``np.save`` begins with, and where the text of its header may begin.
_SAVED: Final = b"\x93NUMPY"
_SAVED_TEXT: Final = 10


def image_decoder(
    height: int, width: int, channels: int = 3, *, key: str | None = None
) -> Callable[..., Any]:
    """Return a function for ``map=`` that decodes and resizes a column of JPEG, PNG, GIF or BMP.

    It decodes with ``tf.io.decode_image`` (for a GIF, the first frame) and resizes bilinearly with
    ``tf.image.resize``, in the ``tf.data`` pipeline, several batches at a time.

    Parameters
    ----------
    height, width : int
        Size of the tensors, in pixels.
    channels : {1, 3, 4}, default 3
        Grey, RGB or RGBA.
    key : str, optional
        If ``x`` is a dict: the key of the images.

    Returns
    -------
    callable
        A function of ``x``, ``x, y`` or ``x, y, sample_weight``. It replaces the bytes with
        ``float32`` tensors of shape (batch, height, width, channels) and values from 0 to 255.

    Examples
    --------
    >>> from gridflow.data import image_decoder
    >>> def rows(ctx):
    ...     decode = image_decoder(224, 224)
    ...     return ctx.dataset(batch_size=32, features="jpeg", label="y", map=decode)
    """
    size = (whole_number("height", height, 1), whole_number("width", width, 1))
    if channels not in {1, 3, 4}:
        raise InvalidArgument(f"channels must be 1, 3 or 4; got {channels!r}.")

    def decode(x: Any, *others: Any) -> Any:
        import tensorflow as tf

        def one(content: Any) -> Any:
            image = tf.io.decode_image(content, channels, expand_animations=False)
            return tf.image.resize(image, size)

        def all_of(contents: Any) -> Any:
            spec = tf.TensorSpec((*size, channels), tf.float32)
            return tf.map_fn(one, contents, fn_output_signature=spec)

        return _replaced(x, others, key, all_of)

    return decode


def array_decoder(
    shape: Sequence[int], dtype: str = "float32", *, key: str | None = None
) -> Callable[..., Any]:
    """Return a function for ``map=`` that decodes a column of numpy arrays stored as bytes.

    Parameters
    ----------
    shape : sequence of int
        Shape of each array.
    dtype : str, default "float32"
        Its type, by numpy's name.
    key : str, optional
        If ``x`` is a dict: the key of the arrays.

    Returns
    -------
    callable
        A function of ``x``, ``x, y`` or ``x, y, sample_weight``. It replaces the bytes that
        ``np.save`` or ``tobytes`` wrote (in C order) with tensors of shape (batch, *shape).
        Bytes of another size, or of another shape or type in ``np.save``'s header, are an error.

    Examples
    --------
    >>> import numpy as np
    >>> from gridflow.data import array_decoder
    >>> rows = np.array([np.ones((2, 3), "uint8").tobytes()], object)
    >>> array_decoder((2, 3), "uint8")(rows).shape
    (1, 2, 3)
    """
    sizes = tuple(whole_number("shape", size, 1) for size in shape)
    choose("dtype", dtype, _DECODED)
    kind = np.dtype(dtype).newbyteorder("<")
    size = kind.itemsize * math.prod(sizes)
    header = f"'descr': {kind.str!r}, 'fortran_order': False, 'shape': {sizes!r}"
    wrong = (
        f"array_decoder({sizes}, {dtype!r}): a row has other bytes than those of such an array in "
        f"C order, {size:,} of them or np.save's"
    )

    def of_tensors(contents: Any) -> Any:
        import tensorflow as tf

        lengths = tf.strings.length(contents)
        ahead = tf.maximum(lengths - size, 0)
        before = tf.strings.substr(contents, tf.zeros_like(lengths), ahead)
        # A header holds bytes that are no text before its own.
        begin = tf.minimum(_SAVED_TEXT, ahead)
        text = tf.strings.substr(before, begin, ahead - begin)
        is_saved = tf.strings.regex_full_match(text, f"(?s).*{re.escape(header)}.*")
        is_saved &= tf.strings.substr(before, 0, len(_SAVED)) == _SAVED
        check = tf.debugging.assert_equal(is_saved | (lengths == size), True, wrong)
        with tf.control_dependencies([check] if check is not None else []):
            own = tf.strings.substr(contents, ahead, tf.fill(tf.shape(lengths), size))
        return tf.reshape(tf.io.decode_raw(own, dtype), (-1, *sizes))

    def of_arrays(contents: Any) -> Any:
        found = np.empty((len(contents), *sizes), kind)
        for place, content in enumerate(contents):
            before, own = content[:-size], content[-size:]
            is_saved = before[: len(_SAVED)] == _SAVED and header.encode() in before
            if len(own) < size or (before and not is_saved):
                raise DataError(f"{wrong}.")
            found[place] = np.frombuffer(own, kind).reshape(sizes)
        return found

    def decode(x: Any, *others: Any) -> Any:
        def all_of(contents: Any) -> Any:
            is_array = isinstance(contents, np.ndarray)  # from a PyDataset
            return of_arrays(contents) if is_array else of_tensors(contents)

        return _replaced(x, others, key, all_of)

    return decode


def _replaced(x: Any, others: tuple[Any, ...], key: str | None, decode: Callable[..., Any]) -> Any:
    """Return what a function of batches returns, with ``x``, or the part of it, decoded."""
    if key is None:
        x = decode(x)
    elif key not in x:
        raise InvalidArgument(f"unknown key={key!r}; the inputs are {', '.join(x)}.")
    else:
        x = {**x, key: decode(x[key])}
    return (x, *others) if others else x
