"""Images in a column of bytes, decoded where TensorFlow reads them: a function for ``map=``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gridflow.errors import InvalidArgument
from gridflow.spec.options import whole_number

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["decoder"]


def decoder(
    height: int, width: int, channels: int = 3, *, key: str | None = None
) -> Callable[..., Any]:
    """Return a function for ``map=`` that decodes and resizes a column of JPEG, PNG, GIF or BMP.

    It decodes by ``tf.io.decode_image`` (of a GIF the first picture) and resizes by
    ``tf.image.resize``, bilinearly, in the pipeline of ``tf.data``: several batches at a time.

    Parameters
    ----------
    height, width : int
        Of the tensors, in pixels.
    channels : {1, 3, 4}, default 3
        Grey, RGB or RGBA.
    key : str, optional
        Where ``x`` is a dict: which of its inputs holds the images.

    Returns
    -------
    callable
        Of ``x``, ``x, y`` or ``x, y, sample_weight``. In place of the bytes it returns ``float32``
        tensors of shape (batch, height, width, channels), with values from 0 to 255.

    Examples
    --------
    >>> from gridflow.images import decoder
    >>> def rows(ctx):
    ...     return ctx.dataset(batch_size=32, features="jpeg", label="y", map=decoder(224, 224))
    """
    size = (whole_number("height", height, 1), whole_number("width", width, 1))
    if channels not in {1, 3, 4}:
        raise InvalidArgument(f"channels must be 1, 3 or 4, got {channels!r}.")

    def decode(x: Any, *others: Any) -> Any:
        import tensorflow as tf

        def one(content: Any) -> Any:
            image = tf.io.decode_image(content, channels, expand_animations=False)
            return tf.image.resize(image, size)

        def all_of(contents: Any) -> Any:
            spec = tf.TensorSpec((*size, channels), tf.float32)
            return tf.map_fn(one, contents, fn_output_signature=spec)

        if key is not None:
            if key not in x:
                raise InvalidArgument(f"key={key!r} is none of the inputs {', '.join(x)}.")
            x = {**x, key: all_of(x[key])}
        else:
            x = all_of(x)
        return (x, *others) if others else x

    return decode
