"""The patch for models that Keras 3 on other backends builds with a batch that it then loses."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from gridflow._keras.array_data import ArrayDataset
from gridflow._keras.patches import private_parts
from gridflow._keras.patches.methods import Layer, wrap
from gridflow._keras.patches.registry import Patch
from gridflow._spec.backends import BACKENDS


class _ReadOnceError(Exception):
    """Raised by a probe's data if it is read before training."""


class _MustNotBeRead(ArrayDataset):
    """Stands for the data of ``fit``, of a model whose metrics aren't built."""

    def __init__(self) -> None:
        """Hold no rows."""

    def __iter__(self) -> Any:
        raise _ReadOnceError

    def sample(self) -> Any:
        """Return a placeholder batch without rows of the data."""
        raise _SampledError


class _SampledError(Exception):
    """Raised if the probe's model would be built from a placeholder batch."""


def _building_reads_a_batch() -> bool:
    home, name = private_parts.building()
    model = SimpleNamespace(
        _flatten_layers=list,
        _get_unbuilt_components=lambda: (False, True, False, False),
        _compile_metrics=SimpleNamespace(built=False),
        _compile_loss=None,
        optimizer=None,
        _symbolic_build=lambda **_: None,
    )
    data = _MustNotBeRead()
    iterators = {f"get_{kind}_iterator": lambda: iter(data) for kind in (*BACKENDS[1:], "numpy")}
    adapter = SimpleNamespace(py_dataset=data, **iterators)
    iterator = type("Data", (), {"data_adapter": adapter, "__iter__": lambda _: iter(data)})()
    try:
        getattr(home, name)(model, iterator=iterator)
    except _ReadOnceError:
        return True
    except _SampledError:
        return False
    return False


def _patch() -> None:
    def build(original: Any, self: Any, iterator: Any = None, data_batch: Any = None) -> None:
        adapter: Any = getattr(iterator, "data_adapter", None)
        data: Any = getattr(adapter, "py_dataset", None)
        if isinstance(data, ArrayDataset):
            data_batch = data.sample()
        original(self, iterator=iterator, data_batch=data_batch)

    wrap(*private_parts.building(), build, Layer.BUG)


def fix() -> Patch:
    return Patch(
        "building draws no batch",
        "keras",
        "the batch that a model is built with is missing in its first epoch",
        _building_reads_a_batch,
        _patch,
    )
