"""The file of a model returned by a training function."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gridflow.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

#: Kinds of results (`gridflow._keras.results`) that are models.
MODEL_KINDS: Final = ("keras", "tf_keras")


class KerasFile:
    """A ``.keras`` file and its metadata; see `gridflow.ml.model.TrainedModel`."""

    def __init__(self, header: Mapping[str, Any], folder: Path) -> None:
        if header["kind"] not in MODEL_KINDS:  # never read a pickle as a model
            raise InvalidArgument(
                f"this isn't the header of a Keras model, but of {header['kind']!r}."
            )
        self.header, self._folder = dict(header), folder
        self.path = folder / header["files"][0]
