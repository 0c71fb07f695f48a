"""What Keras 3 lacks on JAX and torch when several processes train one model.

Keras leaves it to the user that all processes begin with the same weights; and to build a model it
draws a batch of the data, which would be missing in the first epoch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from keras.src.trainers import epoch_iterator, trainer

from gridflow.keras.array_data import ArrayDataset
from gridflow.keras.fixes import Fix

if TYPE_CHECKING:
    from collections.abc import Callable

#: Who fits, what it builds a model by, and what counts the steps of an epoch.
FIT: Final = (trainer.Trainer, "_symbolic_build", epoch_iterator.EpochIterator)
_SHARES = "_gridflow_shares_weights"
_GOES_ON: Final = "_gridflow_goes_on"


def building() -> Fix:
    """Return the cure for models that are built with a batch that is then lost."""

    def seen() -> bool:
        return not getattr(trainer.Trainer._symbolic_build, "_gridflow", False)

    def cure() -> None:
        original = trainer.Trainer._symbolic_build

        def _symbolic_build(self: Any, iterator: Any = None, data_batch: Any = None) -> None:
            adapter: Any = getattr(iterator, "data_adapter", None)
            data: Any = getattr(adapter, "py_dataset", None)
            if isinstance(data, ArrayDataset):
                data_batch = adapter._standardize_batch(data.sample())
            original(self, iterator=iterator, data_batch=data_batch)
            share = self.__dict__.pop(_SHARES, None)
            if share is not None:
                share(self.variables)

        _symbolic_build._gridflow = True  # type: ignore[attr-defined]
        trainer.Trainer._symbolic_build = _symbolic_build

    return Fix(
        "building draws no batch",
        "keras",
        "the batch that a model is built with is missing in its first epoch",
        seen,
        cure,
    )


def ending() -> Fix:
    """Return the cure for an epoch of ``steps_per_epoch`` that ends where the rows do."""

    def cure() -> None:
        original = epoch_iterator.EpochIterator.__init__

        def __init__(self: Any, x: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            steps = kwargs.get("steps_per_epoch")
            # Only fit speaks of class weights. To evaluate and to predict, each row comes once.
            if steps and "class_weight" in kwargs and isinstance(x, ArrayDataset):
                self._gridflow_pass = len(x)
                x = x.endless()
            original(self, x, *args, **kwargs)

        epoch_iterator.EpochIterator.__init__ = __init__
        setattr(epoch_iterator.EpochIterator, _GOES_ON, True)

    return Fix(
        "steps_per_epoch",
        "keras",
        "an epoch of steps_per_epoch ends before, where the data of a worker end",
        lambda: not hasattr(epoch_iterator.EpochIterator, _GOES_ON),
        cure,
    )


def same_weights(
    cls: type, broadcast: Callable[[list[Any]], None], seen: Callable[[], bool]
) -> Fix:
    """Return the cure for processes that begin a fit with weights of their own.

    Parameters
    ----------
    cls : type
        The backend's trainer.
    broadcast : callable
        Gives a list of variables the values that they have on the chief. Called by all ranks.
    seen : callable
        Whether there are several processes.
    """

    def cure() -> None:
        original = cls.fit  # type: ignore[attr-defined]

        def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
            # Past Keras's own __setattr__, which would track it as a part of the model.
            object.__setattr__(self, _SHARES, broadcast)
            return original(self, *args, **kwargs)

        cls.fit = fit  # type: ignore[attr-defined]

    return Fix(
        "all begin with the chief's weights",
        "keras",
        "each process trains a model that began with other weights",
        seen,
        cure,
    )
