"""Arrow tables from TFRecord files and back, for data that fits into memory."""

from __future__ import annotations

import os
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from gridflow._spec.option_checks import whole_number
from gridflow.errors import DataError, InvalidArgument, SchemaError, did_you_mean
from gridflow.tfrecord.example import Example, MalformedExample, parse_example, serialize_example
from gridflow.tfrecord.framing import CorruptRecord, read_frames, write_records

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gridflow.tfrecord.example import Values

RECORD_TYPES: Final = ("Example", "SequenceExample", "ByteArray")
BYTES_COLUMN: Final = "byteArray"
#: From the narrowest kind to the widest.
_KINDS: Final = (pa.int64(), pa.float32(), pa.binary())


def check_record_type(record_type: str) -> str:
    """Return the record type in its usual spelling."""
    for known in RECORD_TYPES:
        if known.lower() == record_type.lower():
            return known
    msg = f"record_type must be one of {', '.join(RECORD_TYPES)}, got {record_type!r}."
    raise InvalidArgument(msg + did_you_mean(record_type, RECORD_TYPES))


def _limit(limit: int | None) -> int | None:
    return None if limit is None else whole_number("limit", limit, 0)


def _paths(paths: Any) -> list[str]:
    one = isinstance(paths, str | os.PathLike)
    return [os.fspath(path) for path in ([paths] if one else paths)]


def read_examples(
    paths: Any, *, sequence: bool = False, compression: str | None = None
) -> Iterator[Example]:
    """Give the parsed records of files; the first bad one raises with its file and offset."""
    for path in _paths(paths):
        for index, (offset, record) in enumerate(read_frames(path, compression=compression)):
            try:
                yield parse_example(record, sequence=sequence)
            except MalformedExample as error:
                msg = f"{error} ({path}, record {index} at byte {offset})."
                raise CorruptRecord(msg, path, offset, index) from error


def _kind(values: Values) -> int | None:
    if values is None:
        return None
    if isinstance(values, list):
        return 2
    return 1 if values.dtype.kind == "f" else 0


def infer_schema(
    paths: Any,
    *,
    record_type: str = "Example",
    compression: str | None = None,
    limit: int | None = None,
) -> pa.Schema:
    """Find the types of all features; columns are sorted by name.

    Int64List gives int64, FloatList float32, BytesList binary; a list if some record has more than
    one value, a list of lists for a feature list. Where records differ, the wider kind and the
    deeper nesting win. Features that never have a kind are left out.

    Parameters
    ----------
    paths
        One local file, or several.
    record_type
        ``"Example"``, ``"SequenceExample"`` or ``"ByteArray"``.
    compression
        See `read_records`.
    limit
        Look only at so many records.
    """
    limit = _limit(limit)
    if check_record_type(record_type) == "ByteArray":
        return pa.schema([pa.field(BYTES_COLUMN, pa.binary())])
    sequence = check_record_type(record_type) == "SequenceExample"
    context: dict[str, tuple[int, int]] = {}
    lists: dict[str, tuple[int, int]] = {}

    def add(found: dict[str, tuple[int, int]], name: str, values: Values, depth: int) -> None:
        kind = _kind(values)
        if kind is not None:
            old_kind, old_depth = found.get(name, (0, 0))
            found[name] = max(old_kind, kind), max(old_depth, depth)

    examples = read_examples(paths, sequence=sequence, compression=compression)
    for example in islice(examples, limit):
        for name, values in example.features.items():
            add(context, name, values, int(values is not None and len(values) > 1))
        for name, steps in example.feature_lists.items():
            for values in steps:
                add(lists, name, values, 2)
    fields = []
    for name, (kind, depth) in sorted((lists | context).items()):
        type_ = _KINDS[kind]
        for _ in range(depth):
            type_ = pa.list_(type_)
        fields.append(pa.field(name, type_))
    return pa.schema(fields)


def read_table(
    paths: Any,
    *,
    schema: pa.Schema | None = None,
    columns: Sequence[str] | None = None,
    record_type: str = "Example",
    compression: str | None = None,
    limit: int | None = None,
) -> pa.Table:
    """Read files into an Arrow table.

    Parameters
    ----------
    paths
        One local file, or several.
    schema
        The columns; by default what `infer_schema` finds, which reads the files once more.
    columns
        Only these columns, in this order.
    record_type, compression
        See `infer_schema`.
    limit
        Read only so many records.

    Raises
    ------
    DataError
        If a feature doesn't fit its column, or (`CorruptRecord`) a record is damaged; or if no
        record has a value, because a table without columns can't hold rows.
    """
    kind = check_record_type(record_type)
    limit = _limit(limit)
    if kind == "ByteArray":
        records = (
            record for p in _paths(paths) for _, record in read_frames(p, compression=compression)
        )
        return pa.table({BYTES_COLUMN: pa.array(islice(records, limit), pa.binary())})
    if schema is None:
        schema = infer_schema(paths, record_type=kind, compression=compression, limit=limit)
    if columns is not None:
        for name in columns:
            if name not in schema.names:
                msg = f"there is no column {name!r}; there are {', '.join(schema.names)}."
                raise SchemaError(msg + did_you_mean(name, schema.names))
        schema = pa.schema([schema.field(name) for name in columns])
    examples = read_examples(paths, sequence=kind == "SequenceExample", compression=compression)
    cells: list[list[Any]] = [[] for _ in schema]
    for example in islice(examples, limit):
        if not schema.names and columns is None:
            msg = "the records have no values, and a table without columns can't hold rows; "
            raise DataError(msg + "read_records gives their bytes.")
        for field, column in zip(schema, cells, strict=True):
            column.append(_cell(example, field))
    arrays = []
    for field, column in zip(schema, cells, strict=True):
        try:
            arrays.append(pa.array(column, _storage(field.type)).cast(field.type))
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
            raise DataError(f"column {field.name!r} ({field.type}): {error}") from error
    return pa.table(arrays, schema=schema)


def _cell(example: Example, field: pa.Field) -> Any:
    if field.name in example.features:
        values = example.features[field.name]
        if values is None:
            return None
        values = _fit(values, field)
        if _depth(field.type):
            return values
        if len(values) > 1:
            msg = f"column {field.name!r} ({field.type}) has a record with {len(values)} values; "
            raise DataError(msg + "declare it as a list.")
        return values[0] if len(values) else None
    steps = example.feature_lists.get(field.name)
    if steps is None:
        return None
    return [None if values is None else _fit(values, field) for values in steps]


def _fit(values: Any, field: pa.Field) -> Any:
    """Return values as Arrow takes them for a column, or raise if their kind is another one."""
    leaf = _leaf(field.type)
    fits = {
        0: pa.types.is_integer(leaf) or pa.types.is_boolean(leaf),
        1: pa.types.is_floating(leaf) or pa.types.is_decimal(leaf),
        2: _is_bytes(leaf),
    }
    kind = _kind(values)
    if kind is not None and not fits[kind]:
        name = ("an Int64List", "a FloatList", "a BytesList")[kind]
        raise DataError(f"column {field.name!r} ({field.type}) has a record with {name}.")
    if pa.types.is_boolean(leaf):
        if not np.isin(values, (0, 1)).all():
            raise DataError(f"column {field.name!r} ({field.type}) has a value other than 0 and 1.")
        return values.astype(bool)
    return values


def _leaf(type_: pa.DataType) -> pa.DataType:
    while pa.types.is_list(type_) or pa.types.is_large_list(type_) or _is_fixed_list(type_):
        type_ = type_.value_type
    return type_


def _storage(type_: pa.DataType) -> pa.DataType:
    """Return the type that Arrow makes of float32 values, to be cast to a column's own."""
    if pa.types.is_decimal(type_) or pa.types.is_float16(type_):
        return pa.float64()
    if pa.types.is_list(type_):
        return pa.list_(_storage(type_.value_type))
    if pa.types.is_large_list(type_):
        return pa.large_list(_storage(type_.value_type))
    if _is_fixed_list(type_):
        return pa.list_(_storage(type_.value_type), type_.list_size)
    return type_


def _is_fixed_list(type_: pa.DataType) -> bool:
    return bool(pa.types.is_fixed_size_list(type_))


def _is_bytes(type_: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(type_)
        or pa.types.is_large_binary(type_)
        or pa.types.is_string(type_)
        or pa.types.is_large_string(type_)
    )


def _depth(type_: pa.DataType) -> int:
    depth = 0
    while type_ != (inner := getattr(type_, "value_type", type_)):
        type_, depth = inner, depth + 1
    return depth


def _numpy_type(field: pa.Field) -> Any:
    """Return the dtype of a column's lists, None for bytes, or raise for what has no kind."""
    leaf = _leaf(field.type)
    if pa.types.is_integer(leaf) or pa.types.is_boolean(leaf):
        return np.uint64 if pa.types.is_uint64(leaf) else np.int64
    if pa.types.is_floating(leaf) or pa.types.is_decimal(leaf):
        is_wide = pa.types.is_float64(leaf) or pa.types.is_decimal(leaf)
        return np.float64 if is_wide else np.float32
    if _is_bytes(leaf):
        return None
    msg = f"column {field.name!r} has the type {field.type}, which an Example can't hold; "
    raise SchemaError(msg + "cast it to a number, a string or a list of those.")


def _byte_arrays(table: pa.Table) -> list[bytes]:
    """Return the records of a table with one binary column."""
    if table.num_columns != 1 or not pa.types.is_binary(table.schema.field(0).type):
        raise SchemaError(f"a ByteArray has one binary column, got {table.schema}.")
    if table.column(0).null_count:
        name = table.schema.names[0]
        raise DataError(f"column {name!r} has a null, which can't be stored as a record.")
    records: list[bytes] = table.column(0).to_pylist()
    return records


def write_table(
    table: pa.Table,
    path: str | os.PathLike[str],
    *,
    record_type: str = "Example",
    compression: str | None = None,
) -> int:
    """Write an Arrow table into one file, and return the number of records.

    An existing file is replaced once the new one is complete; after an error it is unchanged.

    Booleans and integers become Int64Lists, floats and decimals FloatLists (32 bits), strings and
    binary BytesLists, lists lists, lists of lists feature lists. A null is left out; a null inside
    a list is an error, as a list can't hold it.

    Raises
    ------
    SchemaError
        If a column has a type without a kind, or a list of lists in an Example, or two columns have
        the same name.
    DataError
        If a list or a column of records (``"ByteArray"``) holds a null, or a number doesn't fit
        into 64 bits (uint64) or 32 (doubles).
    """
    kind = check_record_type(record_type)
    if kind == "ByteArray":
        return write_records(path, _byte_arrays(table), compression=compression)
    names = table.schema.names
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise SchemaError(f"two columns have the name {twice[0]!r}; rename one of them.")
    types = {field.name: _numpy_type(field) for field in table.schema}
    depths = {field.name: _depth(field.type) for field in table.schema}
    for name, depth in depths.items():
        if depth > (2 if kind == "SequenceExample" else 1):
            msg = f"column {name!r} ({table.schema.field(name).type}) is nested too deep for "
            raise SchemaError(msg + f"{kind}; a SequenceExample holds lists of lists.")

    def values(name: str, cell: Any) -> Any:
        if cell is None or any(value is None for value in cell):
            raise DataError(f"column {name!r} has a null inside a list, which can't be stored.")
        return list(cell) if types[name] is None else np.array(cell, types[name])

    def records() -> Iterator[bytes]:
        for batch in table.to_batches(1024):
            for row in batch.to_pylist():
                features = {}
                lists = {}
                for name, cell in row.items():
                    if cell is None:
                        continue
                    if depths[name] == 2:  # noqa: PLR2004 -- a list of lists
                        lists[name] = [values(name, step) for step in cell]
                    else:
                        features[name] = values(name, cell if depths[name] else [cell])
                yield serialize_example(features, lists if kind == "SequenceExample" else None)

    return write_records(path, records(), compression=compression)
