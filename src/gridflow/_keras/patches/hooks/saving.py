"""Makes saving by several ranks to one path safe: each complete file replaces the last one.

Keras 3 opens the path itself. So two ranks would conflict, through a lock of HDF5 or by mixing
their bytes in one file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from keras.src.saving import saving_lib
from keras.src.utils import file_utils

from gridflow._files.local import replacing
from gridflow._keras.patches.methods import Layer, wrap
from gridflow._keras.patches.registry import Hook
from gridflow._keras.runtime import present

_WEIGHTS: Final = ".weights.h5"


def _are_several() -> bool:
    runtime = present()
    return runtime is not None and runtime.num_workers > 1


def _is_file_here(path: Any, ending: str) -> bool:
    is_path = isinstance(path, str | Path)
    return is_path and str(path).endswith(ending) and not file_utils.is_remote_path(str(path))


def _write_aside() -> None:
    def save_model_aside(
        save_model: Any, model: Any, filepath: Any, *args: Any, **kwargs: Any
    ) -> None:
        if not _is_file_here(filepath, ".keras"):
            save_model(model, filepath, *args, **kwargs)
            return
        with replacing(filepath, ".keras") as beside:
            save_model(model, str(beside), *args, **kwargs)

    def save_weights_aside(
        save_weights_only: Any, model: Any, filepath: Any, max_shard_size: Any = None, **kwargs: Any
    ) -> None:
        # Shards are several files.
        if max_shard_size is not None or not _is_file_here(filepath, _WEIGHTS):
            save_weights_only(model, filepath, max_shard_size, **kwargs)
            return
        with replacing(filepath, _WEIGHTS) as beside:
            save_weights_only(model, str(beside), max_shard_size, **kwargs)

    wrap(saving_lib, "save_model", save_model_aside, Layer.ROUTE)
    wrap(saving_lib, "save_weights_only", save_weights_aside, Layer.ROUTE)


def hook() -> Hook:
    """Return the hook of Keras 3, on all of its backends."""
    return Hook("ranks may save to one path", _write_aside, _are_several)
