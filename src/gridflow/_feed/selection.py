"""Which columns become which tensors: forms of ``features``, ``label``, ``sample_weight``. Pure.

========================================  =====================================================
form                                      what the model gets
========================================  =====================================================
``"x"`` or ``["x"]``                      the tensor of column x
``["a", "b"]``                            a dict of the columns' tensors, by name
``[["a", "b", "c"]]``                     one float32 matrix (batch, 3) of the stacked
                                          columns; an array of length 4 takes 4 columns
``{"input": "a", "other": ["b", "c"]}``   a dict by the given names; a list is stacked as above
========================================  =====================================================
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gridflow._feed.normalize import ANY_LENGTH, SPARSE
from gridflow.errors import DataError, InvalidArgument, SchemaError, did_you_mean

if TYPE_CHECKING:
    from gridflow._feed.normalize import TensorSpec

__all__ = ["Columns", "Selection", "Tensor", "Weights", "named", "refuse_left_out", "select"]

#: The forms of ``features`` and ``label``, see the table in the module's docstring.
Columns = str | Sequence[str | Sequence[str]] | Mapping[str, str | Sequence[str]]
#: The form of ``sample_weight``: a column, or one for each label, by the label's name.
Weights = str | Mapping[str, str]


@dataclass(frozen=True)
class Tensor:
    """One tensor of a batch.

    `columns`: The source columns.
    `dtype`: Type of an element.
    `row_shape`: Shape without the batch axis.
    `stacked`: Whether its columns are stacked.
    `widths`: The width of each stacked column.
    """

    columns: tuple[str, ...]
    dtype: Any
    row_shape: tuple[int, ...]
    stacked: bool = False
    widths: tuple[int, ...] = ()

    @property
    def is_text(self) -> bool:
        """Whether it holds text or bytes."""
        return isinstance(self.dtype, str)

    @property
    def is_ragged(self) -> bool:
        """Whether each row has its own length, including lists of nonzero values."""
        return ANY_LENGTH in self.row_shape or self.is_sparse

    @property
    def is_sparse(self) -> bool:
        """Whether it holds nonzero values with indices; its shape has the size."""
        return SPARSE in self.row_shape

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        return np.dtype(object) if self.is_text else self.dtype


@dataclass(frozen=True)
class Selection:
    """The tensors of a batch, and their structure.

    `parts`: One for x, and for y and the sample weight if requested: a single key, or a dict of
        name to key. A key is an index into ``tensors``.
    `tensors`: All of them, each once.
    """

    parts: tuple[int | dict[str, int], ...]
    tensors: tuple[Tensor, ...]

    @property
    def columns(self) -> list[str]:
        return list(dict.fromkeys(c for tensor in self.tensors for c in tensor.columns))

    @property
    def texts(self) -> list[str]:
        """The columns that hold text or bytes."""
        return list(
            dict.fromkeys(c for tensor in self.tensors if tensor.is_text for c in tensor.columns)
        )

    def pack(self, flat: Sequence[Any]) -> Any:
        """Arrange one item per tensor in the structure that Keras expects: x alone, or a tuple."""
        packed = tuple(
            {name: flat[key] for name, key in part.items()}
            if isinstance(part, dict)
            else flat[part]
            for part in self.parts
        )
        return packed if len(packed) > 1 else packed[0]


def named(*forms: object) -> list[str]:
    """Return the columns that forms of the table in the module's docstring use, each once.

    Examples
    --------
    >>> named({"a": "x", "b": ["y", "z"]}, [["x", "w"]], None)
    ['x', 'y', 'z', 'w']
    """
    found: dict[str, None] = {}
    waiting = list(reversed(forms))
    while waiting:
        form = waiting.pop()
        if isinstance(form, str):
            found[form] = None
        elif isinstance(form, Mapping):
            waiting += reversed(list(form.values()))
        elif isinstance(form, Sequence):
            waiting += reversed(form)
    return list(found)


def refuse_left_out(columns: Sequence[str], left_out: Mapping[str, str]) -> None:
    """Reject columns that aren't fed, with the reason.

    Raises `SchemaError`: Names the first of them.
    """
    for column in columns:
        for name, reason in left_out.items():
            if column == name or column.startswith(f"{name}."):  # or a part of it
                raise SchemaError(reason)


def select(
    specs: Mapping[str, TensorSpec],
    features: Columns,
    label: Columns | None = None,
    sample_weight: Weights | None = None,
    dataset: str = "data",
) -> Selection:
    """Find the columns.

    `specs`: The existing columns, as returned by `gridflow._feed.normalize.tensor_specs`.
    `features`, `label`: See the table in the module's docstring; without a label, there is only x.
    `sample_weight`: A column with one number per row; or a dict with one for each label. Requires a
        label.
    `dataset`: Its name, for errors.
    Raises `SchemaError`: A column doesn't exist or can't be stacked.
    Raises `InvalidArgument`: The form isn't in the table.
    """
    if sample_weight is not None:
        _check_weights(sample_weight, label)
    tensors: list[Tensor] = []

    def add(columns: object, argument: str) -> int:
        tensors.append(_tensor(specs, columns, argument, dataset))
        return len(tensors) - 1

    def part(form: Columns, argument: str) -> int | dict[str, int]:
        if isinstance(form, str):
            return add(form, argument)
        if isinstance(form, Mapping) and form:
            return {str(name): add(columns, argument) for name, columns in form.items()}
        if isinstance(form, Sequence) and len(form) == 1:
            return add(form[0], argument)
        if isinstance(form, Sequence) and form and all(isinstance(c, str) for c in form):
            return {str(column): add(column, argument) for column in form}
        raise InvalidArgument(
            f"{argument} must be a column, a list of columns, a list that holds one list of "
            f"columns to stack, or a dict of input name to column(s); got {form!r}."
        )

    parts = [part(features, "features")]
    if label is not None:
        parts.append(part(label, "label"))
    if sample_weight is not None:
        parts.append(part(sample_weight, "sample_weight"))
    return Selection(tuple(parts), tuple(tensors))


def _check_weights(sample_weight: object, label: Columns | None) -> None:
    if isinstance(sample_weight, str) and label is not None:
        return
    labels: list[str] = []
    if isinstance(label, Mapping) or (isinstance(label, list | tuple) and len(label) > 1):
        labels = [str(name) for name in label]
    weights = sample_weight if isinstance(sample_weight, Mapping) else {}
    is_by_label = set(weights) == set(labels) != set()
    if is_by_label and all(isinstance(column, str) for column in weights.values()):
        return
    raise InvalidArgument(
        "sample_weight must be one column, or for several labels a dict with a column for each of "
        f"them: {dict.fromkeys(labels or ['a', 'b'], '…')}. It needs a label, whose loss it "
        f"weights; got sample_weight={sample_weight!r}, label={label!r}."
    )


def _tensor(
    specs: Mapping[str, TensorSpec], columns: object, argument: str, dataset: str
) -> Tensor:
    if isinstance(columns, str):
        dtype, shape = _spec(specs, columns, argument, dataset)
        return Tensor((columns,), dtype, shape)
    if (
        not isinstance(columns, Sequence)
        or not columns
        or not all(isinstance(c, str) for c in columns)
    ):
        raise InvalidArgument(
            f"{argument} has {columns!r} where a column or a list of columns is expected."
        )
    widths = []
    for column in columns:
        dtype, shape = _spec(specs, column, argument, dataset)
        if isinstance(dtype, str):
            raise SchemaError(
                f"{argument}: column {column!r} of dataset {dataset!r} holds text, which can't be "
                f"stacked with {', '.join(c for c in columns if c != column)} into one matrix of "
                f"numbers. Use a separate input for it."
            )
        if SPARSE in shape:
            raise SchemaError(
                f"{argument}: column {column!r} of dataset {dataset!r} is sparse, which can't be "
                "stacked with others. Use a separate input for it, or feed it as a dense vector."
            )
        if ANY_LENGTH in shape:
            raise SchemaError(
                f"{argument}: column {column!r} of dataset {dataset!r} is ragged, which can't be "
                "stacked with others. Use a separate input for it, or feed it as Padded(length)."
            )
        widths.append(math.prod(shape))
    return Tensor(
        tuple(columns), np.dtype(np.float32), (sum(widths),), stacked=True, widths=tuple(widths)
    )


def _spec(
    specs: Mapping[str, TensorSpec], column: str, argument: str, dataset: str
) -> tuple[Any, tuple[int, ...]]:
    if column not in specs:
        raise SchemaError(
            f"{argument}: dataset {dataset!r} has no column {column!r}. It has: "
            f"{', '.join(specs) or 'no known columns, because it has neither rows nor a schema'}."
            f"{did_you_mean(column, specs)}"
        )
    dtype, shape = specs[column]
    known = tuple(size for size in shape if size is not None)
    if len(known) < len(shape):
        raise DataError(
            f"{argument}: dataset {dataset!r} has no row that shows the length of the arrays in "
            f"column {column!r}."
        )
    return dtype, known
