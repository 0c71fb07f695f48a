"""Calls that differ between versions of TensorFlow and Keras, for a node's main function."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from gridflow._agent.folder import temporary_folder
from gridflow._files.local import move


def export_saved_model(model: Any, export_dir: str, is_chief: bool = False) -> None:
    """Export a Keras model as a SavedModel; all nodes must call it.

    Parameters
    ----------
    model : keras.Model
        A model of Keras 3, or of tf_keras (``TF_USE_LEGACY_KERAS=1``).
    export_dir : str
        The folder to export to.
    is_chief : bool, default False
        Whether to keep the export. Other nodes must take part, because Keras may need them, and
        discard theirs.
    """
    if is_chief and "://" in export_dir:
        _export(model, export_dir)
        return
    if is_chief:
        _replace(model, Path(export_dir))
        return
    with tempfile.TemporaryDirectory(prefix="worker_model") as folder:
        _export(model, folder)


def _replace(model: Any, folder: Path) -> None:
    """Export into a folder; an older export stays until the new one is complete."""
    folder.mkdir(parents=True, exist_ok=True)
    with temporary_folder(".gridflow-export-", folder) as beside:
        _export(model, str(beside / "new"))
        # Move saved_model.pb last: its presence marks a complete export.
        for part in sorted((beside / "new").iterdir(), key=lambda p: p.name == "saved_model.pb"):
            move(part, folder / part.name)


def _export(model: Any, folder: str) -> None:
    if any(base.__module__.startswith("tf_keras.") for base in type(model).__mro__):
        model.save(folder, save_format="tf")
    else:
        model.export(folder, verbose=False)


def disable_auto_shard(options: Any) -> None:
    """Turn off auto-sharding in a ``tf.data.Options``: Spark has distributed the rows already."""
    import tensorflow as tf

    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF


def is_gpu_available() -> bool:
    """Return whether TensorFlow sees a GPU."""
    import tensorflow as tf

    return bool(tf.config.list_physical_devices("GPU"))
