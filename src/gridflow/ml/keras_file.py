"""The file of a model that a training function returned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gridflow.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

#: Kinds of results (`gridflow._keras.results`) that are models.
MODEL_KINDS: Final = ("keras", "tf_keras")


class KerasFile:
    """A ``.keras`` file, and what is known of it; see `gridflow.ml.model.TrainedModel`."""

    def __init__(self, header: Mapping[str, Any], folder: Path) -> None:
        if header["kind"] not in MODEL_KINDS:  # no pickle comes to be read as a model
            raise InvalidArgument(f"the header is not of a Keras model, but of {header['kind']!r}.")
        self.header, self._folder = dict(header), folder
        self.path = folder / header["files"][0]
