"""From arriving Arrow record batches to columns that are tensors: fixed shape, no nulls.

Runs in the agent, on every batch, so the common case (no nulls, equal lengths) copies nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa

from gridflow._feed.column import ColumnPlace, filled, null_rows, ragged, shaped, storage
from gridflow._feed.encodings import Form, Ragged, Sparse, opened
from gridflow._feed.types import is_list, is_text, leaf_type
from gridflow._spec import strategies
from gridflow.errors import DataError, InvalidArgument, SchemaError, did_you_mean

__all__ = [
    "ANY_LENGTH",
    "BOOLEAN",
    "SPARSE",
    "FeedOptions",
    "Findings",
    "TensorSpec",
    "normalise",
    "tensor_specs",
    "values_of",
]

#: Metadata of a field whose bytes 0 and 1 mean False and True: Arrow's own booleans are bits, which
#: numpy can't map.
BOOLEAN: Final = {b"gridflow.type": b"bool"}
#: Metadata of a field whose arrays have any length.
RAGGED: Final = {b"gridflow.shape": b"ragged"}
#: Metadata of a field with sparse vectors: their size.
SPARSE_SIZE: Final = b"gridflow.sparse"
#: In the shape of a row: each row has its own length.
ANY_LENGTH: Final = -1
#: In the shape of a row: followed by the size of sparse vectors.
SPARSE: Final = -2
#: The element type (a numpy dtype, or "string" for text and bytes) and the shape of one row.
TensorSpec = tuple["np.dtype[Any] | Literal['string']", tuple[int | None, ...]]

_RULES = ("error", "drop")


@dataclass(frozen=True)
class FeedOptions:
    """How rows become tensors.

    `nulls` ({"error", "drop"} or mapping of column to value): How to handle nulls, in a column or
        inside an array. ``"error"``: the column is left out, and using it is an error. ``"drop"``:
        a row with a null in any fed column is dropped, and counted in the ledger. A mapping sets
        the replacement for nulls, by column; other columns are as with ``"error"``. NaN is a
        number, not a null, and is kept.
    `columns` (mapping of column to Form): How arrays of any length, and maps, become tensors.
    """

    nulls: Literal["error", "drop"] | Mapping[str, Any] = "error"
    columns: Mapping[str, Form] = dataclass_field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.columns, Mapping):
            raise InvalidArgument(
                "columns= must be a dict of column to Ragged(), Padded(length), Sparse(size) or "
                f"Keys('a', 'b'); got {self.columns!r}."
            )
        object.__setattr__(self, "columns", dict(self.columns))  # the caller may change theirs
        for column, form in self.columns.items():
            if not isinstance(column, str) or not isinstance(form, Form):
                raise InvalidArgument(
                    f"columns={{{column!r}: {form!r}}} must be Ragged(), Padded(length), "
                    "Sparse(size) or Keys('a', 'b')."
                )
        if isinstance(self.nulls, Mapping):
            for column, value in self.nulls.items():
                if value is None or not isinstance(column, str):
                    msg = f"nulls={{{column!r}: {value!r}}} must map a column's name to a value."
                    raise InvalidArgument(msg)
        elif self.nulls not in _RULES:
            raise InvalidArgument(
                f"nulls must be 'error', 'drop' or a mapping of column to value, got "
                f"{self.nulls!r}.{did_you_mean(str(self.nulls), _RULES)}"
            )

    def check_columns(self, columns: Collection[str]) -> None:
        """Reject options for columns that aren't in any dataset.

        Raises `InvalidArgument`: The message lists the existing columns.
        """
        fills = self.nulls if isinstance(self.nulls, Mapping) else {}
        for column in self.columns:
            if not _is_there(column, columns):
                raise InvalidArgument(
                    f"columns= has an entry for {column!r}, which is not a column of the data: "
                    f"{', '.join(columns) or 'there are none'}.{did_you_mean(column, columns)}"
                )
        for column in fills:
            if not _is_there(column, columns):
                raise InvalidArgument(
                    f"nulls= has a value for {column!r}, which is not a column of the data: "
                    f"{', '.join(columns) or 'there are none'}.{did_you_mean(column, columns)}"
                )

    def still_out(self, left_out: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, str]]:
        """Return the columns that can't be fed and aren't named in ``columns``."""
        kept = {
            name: {c: why for c, why in reasons.items() if c not in self.columns}
            for name, reasons in left_out.items()
        }
        return {name: reasons for name, reasons in kept.items() if reasons}

    def check_strategy(self, strategy: str) -> None:
        """Reject encodings that a strategy's workers don't support."""
        if not strategies.of(strategy).hands_out_steps:
            return
        for column, form in self.columns.items():
            if isinstance(form, Ragged):
                raise InvalidArgument(
                    f"columns={{{column!r}: Ragged()}} isn't supported with strategy={strategy!r}, "
                    "whose workers read arrays of fixed length. Use Padded(length)."
                )
            if isinstance(form, Sparse):
                raise InvalidArgument(
                    f"columns={{{column!r}: {form}}} isn't supported with strategy={strategy!r}, "
                    "whose workers read dense vectors. Leave it out to feed dense vectors."
                )


@dataclass
class Findings:
    """What was found about a dataset's columns while its rows arrived.

    `left_out`: Columns that can't be fed, and why.
    `nulls`: Number of dropped rows with a null, by column.
    """

    left_out: dict[str, str] = dataclass_field(default_factory=dict)
    nulls: Counter[str] = dataclass_field(default_factory=Counter)


def normalise(
    batch: pa.RecordBatch,
    dataset: str,
    options: FeedOptions,
    expected: pa.Schema | None = None,
    findings: Findings | None = None,
) -> tuple[pa.RecordBatch, int]:
    """Return the batch with fixed shapes and no nulls, and the number of dropped rows.

    `batch`: Rows as they arrived.
    `dataset`: Its name, for errors.
    `options`: The rule for nulls.
    `expected`: The schema that this function returned for an earlier batch of the dataset; lengths
        of arrays and types must be the same in all batches.
    `findings`: If given, a column that can't be fed is left out from this batch on, and recorded
        here with the reason, as long as another column remains.
    Raises `DataError`: There is a null that no rule covers, or arrays change their length.
    Raises `SchemaError`: A type can't become a tensor.
    """
    found = findings or Findings()
    fed = {
        name: storage(column)
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
        if name not in found.left_out
    }
    columns, refused = opened(fed, options.columns, dataset)
    for name in found.left_out.keys() & columns.keys():
        del columns[name]

    def refuse(name: str, error: DataError | SchemaError) -> None:
        others = columns.keys() - {name}
        if findings is None or not others:
            raise error
        columns.pop(name, None)
        found.left_out[name] = str(error)

    for name, error in refused.items():
        refuse(name, error)

    fills = options.nulls if isinstance(options.nulls, Mapping) else {}
    drop: np.ndarray | None = None
    for name, column in list(columns.items()):
        null = null_rows(column)
        if null is None:
            continue
        where = ColumnPlace.of(dataset, name, expected)
        if name in fills:
            columns[name] = filled(column, fills[name], where, where.expected_type)
        elif options.nulls == "drop":
            drop = null if drop is None else drop | null
            found.nulls[name] += int(null.sum())
        else:
            refuse(name, _nulls_error(where, null))
    dropped = 0
    if drop is not None:
        keep = pa.array(~drop)
        dropped = int(drop.sum())
        columns.update({name: column.filter(keep) for name, column in columns.items()})

    arrays, fields = [], []
    for name, column in list(columns.items()):
        try:
            form = options.columns.get(name)
            is_ragged = isinstance(form, Ragged | Sparse)
            array = (ragged if is_ragged else shaped)(
                column, ColumnPlace.of(dataset, name, expected)
            )
        except (DataError, SchemaError) as error:
            refuse(name, error)
            continue
        # Borrowed rows, or rows from another rank, have been normalised before.
        is_boolean = pa.types.is_boolean(leaf_type(column.type)) or _was_bool(batch.schema, name)
        metadata = {**(BOOLEAN if is_boolean else {}), **_metadata_of(form)}
        fields.append(pa.field(name, array.type, metadata=metadata or None))
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields)), dropped


def _is_there(column: str, columns: Collection[str]) -> bool:
    """Return whether a name is a column or a path into one."""
    return any(column == each or column.startswith(f"{each}.") for each in columns)


def _metadata_of(form: Form | None) -> dict[bytes, bytes]:
    if isinstance(form, Sparse):
        return {SPARSE_SIZE: str(form.size).encode()}
    return RAGGED if isinstance(form, Ragged) else {}


def _was_bool(schema: pa.Schema, name: str) -> bool:
    place = schema.get_field_index(name)
    known = schema.field(place).metadata if place >= 0 else None
    return (known or {}).items() >= BOOLEAN.items()


def _nulls_error(where: ColumnPlace, null: np.ndarray) -> DataError:
    return DataError(
        f"{where} has nulls in {int(null.sum())} of {len(null)} rows of a batch. Fill them first, "
        f"or pass nulls='drop', or nulls={{{where.column!r}: value}} to fill them here."
    )


def tensor_specs(schema: pa.Schema) -> dict[str, TensorSpec]:
    """Return element type and shape of one row, by column, for a schema from `normalise`.

    The length of an array is None if no row has shown it yet, and `ANY_LENGTH` if each row has its
    own. The shape of sparse vectors is `SPARSE` and their size.
    """
    specs: dict[str, TensorSpec] = {}
    for field in schema:
        shape: list[int | None] = []
        kind = field.type
        while is_list(kind):
            is_ragged = (field.metadata or {}).items() >= RAGGED.items()
            unknown = ANY_LENGTH if is_ragged else None
            shape.append(kind.list_size if pa.types.is_fixed_size_list(kind) else unknown)
            kind = kind.value_type
        if field.metadata and SPARSE_SIZE in field.metadata:
            shape = [SPARSE, int(field.metadata[SPARSE_SIZE])]
        if is_text(kind):
            specs[field.name] = ("string", tuple(shape))
        elif field.metadata and field.metadata.get(b"gridflow.type") == b"bool":
            specs[field.name] = (np.dtype(np.bool_), tuple(shape))
        else:
            specs[field.name] = (np.dtype(kind.to_pandas_dtype()), tuple(shape))
    return specs


def values_of(column: pa.Array, spec: TensorSpec) -> np.ndarray | pa.Array:
    """Return the values of a column from `normalise`, by reference.

    Numbers are a numpy array of shape (rows, ...); text, bytes and ragged arrays are unchanged.
    """
    kind, shape = spec
    if isinstance(kind, str) or ANY_LENGTH in shape or SPARSE in shape:
        return column
    rows = len(column)
    for _ in shape:
        column = column.flatten()
    values: np.ndarray = column.to_numpy().view(kind)
    return values.reshape((rows, *(size or 0 for size in shape)))
