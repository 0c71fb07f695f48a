"""The checkpoint file: arrays and a JSON header in one ``.npz``, readable without pickle."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field, replace
from typing import IO, TYPE_CHECKING, Any, Final

import numpy as np

from gridflow._spec.backends import BACKENDS
from gridflow.errors import DataError, GridflowError, InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

FORMAT: Final = 2
#: The first one lacks what callbacks remember.
_READABLE: Final = (1, FORMAT)
_HEADER: Final = "header"
#: Groups of which nothing is learned: a metric may well be NaN.
_NOT_LEARNED: Final = ("metrics", "random", "callbacks", *BACKENDS)
#: Factors of the loss in mixed precision, which grow until a gradient isn't finite.
_SCALES: Final = ("dynamic_scale", "current_loss_scale")


@dataclass(frozen=True)
class Entry:
    """A variable's value.

    `group`: ``model``, ``optimizer``, ``metrics``, ``random``, ``averages`` (of local steps),
        ``callbacks``, or the backend's random states. After an interrupted step also this rank's
        part of ``means`` and ``sums`` (`gridflow._keras.resume.interrupted`).
    `name`: Path or name of the variable, for messages. Variables are matched by group and order,
        because Keras numbers layer names by what the process has created before.
    `is_trained`: Whether it is learned; others may be infinite, as a mask is.
    """

    group: str
    name: str
    value: np.ndarray
    is_trained: bool = True

    def is_finite(self) -> bool:
        """Return whether there is no NaN in it, and nothing infinite that was learned."""
        value = self.value
        if value.dtype.kind == "V":  # of ml_dtypes
            value = value.astype(np.float32)
        if value.dtype.kind not in "fc" or self.name.rpartition("/")[2].startswith(_SCALES):
            return True
        return bool(np.isfinite(value).all() if self.is_trained else not np.isnan(value).any())


@dataclass(frozen=True)
class Checkpoint:
    """The state of a training run between two steps.

    `flavour`: ``keras`` or ``tf_keras``.
    `fit`: Index of the call of ``fit`` in the training function, from 0.
    `epoch`, `step`: The epoch in progress and its completed steps; after the last step of an epoch,
        the next epoch and 0.
    `finished`: Whether that fit is over (a callback stopped it early).
    `batches`: Steps since this fit began, in all generations.
    `counters`: For each training dataset: the epoch and batch at which it resumes.
    `history`: Logs of the complete epochs of this fit; `epochs` has their numbers.
    `pulled`: Datasets that were read from files, and the version of these files.
    `dealt`: Which rows are done, in the middle of an epoch with parameter servers.
    `is_optimizer_built`: Whether the model's own optimizer was in use.
    `built`: For each optimizer beside the model's own: the variables that it was built for.
    `callbacks`, `before`: What callbacks remember (`gridflow._keras.resume.memory`), now and when
        the epoch began; ``before`` is empty between epochs. Their arrays are entries.
    `rates`: The optimizers' learning rates when the epoch began.
    """

    flavour: str
    fit: int
    epoch: int
    step: int
    finished: bool = False
    batches: int = 0
    counters: list[tuple[int, int]] = field(default_factory=list)
    history: dict[str, list[float]] = field(default_factory=dict)
    epochs: list[int] = field(default_factory=list)
    pulled: dict[str, str] = field(default_factory=dict)
    dealt: dict[str, Any] | None = None
    is_optimizer_built: bool = True
    built: list[list[int]] = field(default_factory=list)
    callbacks: dict[str, Any] = field(default_factory=dict)
    before: dict[str, Any] = field(default_factory=dict)
    rates: list[float] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)

    def group(self, name: str) -> list[Entry]:
        """Return the entries of a group, in order."""
        return [entry for entry in self.entries if entry.group == name]

    def arrays(self, group: str) -> dict[str, np.ndarray]:
        """Return the values of a group whose names are unique."""
        return {entry.name: entry.value for entry in self.group(group)}

    def refuse_other_files(self, pulled: Mapping[str, str]) -> None:
        """Reject resuming in the middle of files that have changed.

        `pulled`: The versions of the files now, by dataset.
        """
        for name, version in self.pulled.items():
            if pulled.get(name, version) != version:
                raise DataError(
                    f"the files of dataset {name!r} have changed since the checkpoint was made, so "
                    "training can't resume there: rows would be skipped or repeated. Then: "
                    f"{version}; now: {pulled[name]}. Restore the files, or start again with "
                    "another checkpoint_dir."
                )

    def not_finite(self) -> str:
        """Return the first variable of model and optimizers that isn't finite; empty if all are.

        Such a training can't recover, so nobody should resume from it.
        """
        return _not_finite(self.entries)

    def with_values(self, group: str, values: Sequence[np.ndarray]) -> Checkpoint:
        """Return it with other values of a group, in order."""
        rest = iter(values)
        entries = [
            replace(entry, value=next(rest)) if entry.group == group else entry
            for entry in self.entries
        ]
        return replace(self, entries=entries)

    def write_to(self, file: IO[bytes]) -> None:
        fields = {key: value for key, value in vars(self).items() if key != "entries"}
        entries = [
            {
                "group": entry.group,
                "name": entry.name,
                "dtype": entry.value.dtype.name,
                "is_trained": entry.is_trained,
            }
            for entry in self.entries
        ]
        header = json.dumps({"format": FORMAT, **fields, "entries": entries})
        arrays = {f"{i}": _storable(entry.value) for i, entry in enumerate(self.entries)}
        arrays[_HEADER] = np.frombuffer(header.encode(), dtype=np.uint8)
        np.savez(file, **arrays)  # type: ignore[arg-type]

    def write(self, path: Path) -> None:
        """Write the file atomically."""
        beside = path.with_name(path.name + ".part")
        with beside.open("wb") as file:
            self.write_to(file)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)

    @classmethod
    def read(cls, path: Path) -> Checkpoint:
        """Read a file.

        Raises `GridflowError`: It isn't a checkpoint, is damaged, or was written by a newer
            gridflow.
        Raises `FileNotFoundError`: The file doesn't exist (any more).
        """
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                header = json.loads(arrays[_HEADER].tobytes())
                _check_format(header.pop("format"), path)
                header["entries"] = list(_entries(header, arrays))
        except (GridflowError, FileNotFoundError):
            raise
        except Exception as error:
            # A damaged zip file raises errors of many types, none of which is documented.
            raise GridflowError(f"can't read {path} as a checkpoint: {error!r}") from error
        header["counters"] = [(int(epoch), int(batch)) for epoch, batch in header["counters"]]
        return cls(**header)


def not_finite_in(file: IO[bytes]) -> str:
    """Return the first variable in a file that isn't finite, without keeping them in memory.

    Empty as well if the file can't be interpreted here: the training process says why.
    """
    try:
        with np.load(file, allow_pickle=False) as arrays:
            return _not_finite(_entries(json.loads(arrays[_HEADER].tobytes()), arrays))
    except Exception:  # noqa: BLE001 (as in `Checkpoint.read`; or a type that needs ml_dtypes)
        return ""


def _entries(header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Iterator[Entry]:
    for i, each in enumerate(header["entries"]):
        value = _restored(arrays[f"{i}"], each["dtype"])
        # The first format doesn't say what is trained.
        yield Entry(each["group"], each["name"], value, each.get("is_trained", False))


def _not_finite(entries: Iterable[Entry]) -> str:
    learned = (each for each in entries if each.group not in _NOT_LEARNED)
    return next((each.name for each in learned if not each.is_finite()), "")


def check_same(
    there: Sequence[Entry], names: Sequence[str], shapes: Sequence[tuple[int, ...]], what: str
) -> None:
    """Reject entries that don't match their variables.

    Raises `InvalidArgument`: The number of variables or the shape of one differs.
    """
    hint = "The model, its optimizer and metrics must be created in the same way after a restart."
    if len(there) != len(names):
        raise InvalidArgument(
            f"the checkpoint has {len(there)} variables for the {what}, which now has "
            f"{len(names)}: {_listed([e.name for e in there])} against {_listed(names)}. {hint}"
        )
    for entry, name, shape in zip(there, names, shapes, strict=True):
        if entry.value.shape != tuple(shape):
            raise InvalidArgument(
                f"variable {name!r} of the {what} has shape {tuple(shape)}; in the checkpoint it "
                f"is {entry.name!r} with shape {entry.value.shape}. {hint}"
            )


def _check_format(version: int, path: Path) -> None:
    if version not in _READABLE:
        raise InvalidArgument(
            f"{path} has checkpoint format {version}; this gridflow reads "
            f"{' and '.join(map(str, _READABLE))}."
        )


def _listed(names: Sequence[str], most: int = 8) -> str:
    return ", ".join(names[:most]) + (", …" if len(names) > most else "")


def _storable(value: np.ndarray) -> np.ndarray:
    # numpy can't store the types that ml_dtypes adds (bfloat16, float8): store their bytes.
    return value.view(f"u{value.dtype.itemsize}") if value.dtype.kind == "V" else value


def _restored(value: np.ndarray, dtype: str) -> np.ndarray:
    if value.dtype.name == dtype:
        return value
    import ml_dtypes

    return value.view(getattr(ml_dtypes, dtype))
