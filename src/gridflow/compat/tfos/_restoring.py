"""Loads a TensorFlow 1 checkpoint with its graph (``.meta``) as a function."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gridflow.errors import GridflowError, InvalidArgument, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Sequence


class Restored:
    """A folder's newest checkpoint, restored into a session.

    `model_dir`: The folder, or the checkpoint itself.
    `inputs`, `outputs`: Names of tensors in the graph, with or without ``:0``.
    `inputs`, `outputs`: Tensors by name, without ``:0``.
    Raises `GridflowError`: If there is no checkpoint, or it has no graph.
    Raises `InvalidArgument`: If the graph has no such tensor.
    """

    def __init__(self, model_dir: str, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        import tensorflow as tf

        checkpoint = _newest(model_dir)
        graph = tf.Graph()
        with graph.as_default():
            saver = tf.compat.v1.train.import_meta_graph(f"{checkpoint}.meta", clear_devices=True)
            self._session = tf.compat.v1.Session(graph=graph)
            if saver is not None:  # None if the graph has no variables
                saver.restore(self._session, checkpoint)
        self.inputs = {_bare(name): _tensor(graph, name) for name in inputs}
        self.outputs = {_bare(name): _tensor(graph, name) for name in outputs}

    def run(self, **inputs: Any) -> dict[str, Any]:
        """Return the outputs for a batch."""
        import numpy as np

        values = {self.inputs[name]: np.asarray(value) for name, value in inputs.items()}
        found: dict[str, Any] = self._session.run(self.outputs, values)
        return found


def _newest(model_dir: str) -> str:
    import tensorflow as tf

    exists = tf.io.gfile.exists
    found = model_dir if exists(f"{model_dir}.meta") else tf.train.latest_checkpoint(model_dir)
    if found is None:
        raise GridflowError(
            f"model_dir={model_dir!r} contains no checkpoint of tf.compat.v1.train.Saver. For a "
            "SavedModel, use setExportDir()."
        )
    if not exists(f"{found}.meta"):
        raise GridflowError(
            f"the checkpoint {found} has no graph ({found}.meta), because TensorFlow 2 doesn't "
            "write one. Export the model with compat.export_saved_model(model, export_dir, True), "
            "and pass its folder to setExportDir()."
        )
    return str(found)


def _bare(name: str) -> str:
    return name.removesuffix(":0")


def _tensor(graph: Any, name: str) -> Any:
    try:
        return graph.get_tensor_by_name(name if ":" in name else f"{name}:0")
    except (KeyError, ValueError) as error:
        operations = graph.get_operations()
        open_ones = [
            each.name
            for each in operations
            if each.type.startswith("Placeholder") and not each.name.startswith("save")  # Saver's
        ]
        raise InvalidArgument(
            f"the checkpoint's graph has no tensor {name!r}; its placeholders are "
            f"{', '.join(open_ones) or 'none'}.{did_you_mean(name, [o.name for o in operations])}"
        ) from error
