"""Functions for ``map=`` that decode columns of bytes: images, and numpy arrays."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gridflow._spec.option_checks import choose, whole_number
from gridflow.errors import DataError, InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["array_decoder", "image_decoder"]

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
