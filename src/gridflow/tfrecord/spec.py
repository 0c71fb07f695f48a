"""The description that ``tf.io.parse_example`` wants, made from a schema."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gridflow.errors import InvalidArgument, MissingDependency, SchemaError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_SPARK_KINDS: Final = {
    "boolean": "int64",
    "byte": "int64",
    "short": "int64",
    "integer": "int64",
    "long": "int64",
    "float": "float32",
    "double": "float32",
    "string": "string",
    "binary": "string",
}


@dataclass(frozen=True)
class _Column:
    name: str
    kind: str
    depth: int


def _tensorflow() -> Any:
    try:
        import tensorflow as tf
    except ImportError as error:
        raise MissingDependency(
            "tensorflow is needed here; pip install 'gridflow[tensorflow]'."
        ) from error
    return tf


def _spark_column(name: str, type_: Any) -> _Column:
    depth = 0
    while isinstance(type_, dict) and type_.get("type") == "array":
        type_, depth = type_["elementType"], depth + 1
    if isinstance(type_, dict) and str(type_.get("class", "")).endswith("VectorUDT"):
        return _Column(name, "float32", depth + 1)
    text = str(type_)
    kind = "float32" if text.startswith("decimal") else _SPARK_KINDS.get(text.partition("(")[0])
    if kind is None:
        raise SchemaError(f"column {name!r} has the type {text}, which a feature can't hold.")
    return _Column(name, kind, depth)


def _arrow_column(field: Any) -> _Column:
    import pyarrow as pa

    type_, depth = field.type, 0
    while pa.types.is_list(type_) or pa.types.is_large_list(type_):
        type_, depth = type_.value_type, depth + 1
    if pa.types.is_integer(type_) or pa.types.is_boolean(type_):
        return _Column(field.name, "int64", depth)
    if pa.types.is_floating(type_) or pa.types.is_decimal(type_):
        return _Column(field.name, "float32", depth)
    for is_text in (pa.types.is_string, pa.types.is_binary, pa.types.is_large_string):
        if is_text(type_):
            return _Column(field.name, "string", depth)
    raise SchemaError(f"column {field.name!r} has the type {type_}, which a feature can't hold.")


def _columns(schema: Any) -> list[_Column]:
    schema = getattr(schema, "schema", schema)  # a DataFrame, or a table of Arrow
    if callable(getattr(schema, "json", None)):
        fields = json.loads(schema.json())["fields"]
        return [_spark_column(field["name"], field["type"]) for field in fields]
    if hasattr(schema, "names") and hasattr(schema, "field"):
        return [_arrow_column(field) for field in schema]
    msg = f"a Spark DataFrame, its schema, or a pyarrow.Schema is required, got {type(schema)}."
    raise InvalidArgument(msg)


def _check_names(what: str, names: Iterable[str], columns: Sequence[_Column]) -> None:
    known = [column.name for column in columns]
    for name in names:
        if name not in known:
            msg = f"{what} names {name!r}, the columns are {', '.join(known)}."
            raise InvalidArgument(msg + did_you_mean(name, known))


def _feature(
    tf: Any, column: _Column, shapes: Mapping[str, Sequence[int]], defaults: Mapping[str, Any]
) -> Any:
    dtype = getattr(tf, column.kind)
    default = defaults.get(column.name)
    if column.name in shapes or column.depth == 0:
        shape = list(shapes.get(column.name, ()))
        return tf.io.FixedLenFeature(shape, dtype, default)
    return tf.io.RaggedFeature(dtype)


def feature_spec(
    schema: Any,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    defaults: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Describe the columns of Examples for ``tf.io.parse_example``.

    Parameters
    ----------
    schema
        A Spark DataFrame or its schema, or a ``pyarrow.Schema``: the one that was written.
    shapes
        Shapes of array columns whose length is always the same; then they become dense tensors.
        Other arrays become ragged ones.
    defaults
        Values for nulls, by column. (A null isn't stored; without a default,
        ``parse_example`` refuses a record in which a feature of fixed shape is missing.)

    Returns
    -------
    dict
        ``tf.io.FixedLenFeature`` for single values and columns in ``shapes``,
        ``tf.io.RaggedFeature`` for other arrays. Integers and booleans are ``tf.int64``, floats,
        doubles, decimals and ML vectors ``tf.float32``, strings and binary ``tf.string``.

    Raises
    ------
    SchemaError
        If a column is an array of arrays (see `sequence_feature_spec`) or has no kind.

    Examples
    --------
    >>> import pyarrow as pa
    >>> spec = feature_spec(pa.schema([("label", pa.int64())]))
    >>> spec["label"].dtype.name
    'int64'
    """
    columns = _columns(schema)
    shapes, defaults = shapes or {}, defaults or {}
    _check_names("shapes", shapes, columns)
    _check_names("defaults", defaults, columns)
    tf = _tensorflow()
    for column in columns:
        if column.depth > 1:
            msg = f"column {column.name!r} is an array of arrays: use sequence_feature_spec."
            raise SchemaError(msg)
    return {column.name: _feature(tf, column, shapes, defaults) for column in columns}


def sequence_feature_spec(
    schema: Any,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    defaults: Mapping[str, Any] | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Describe SequenceExamples: the context's features and the feature lists.

    For ``tf.io.parse_sequence_example(records, context_features=…, sequence_features=…)``.
    Parameters as in `feature_spec`; arrays of arrays are the feature lists, and ``shapes`` gives
    the shape of their steps.
    """
    columns = _columns(schema)
    shapes, defaults = shapes or {}, defaults or {}
    _check_names("shapes", shapes, columns)
    _check_names("defaults", defaults, columns)
    tf = _tensorflow()
    context = {c.name: _feature(tf, c, shapes, defaults) for c in columns if c.depth < 2}  # noqa: PLR2004
    lists: dict[str, Any] = {}
    for column in columns:
        if column.depth == 2:  # noqa: PLR2004 -- an array of arrays
            dtype = getattr(tf, column.kind)
            lists[column.name] = (
                tf.io.FixedLenSequenceFeature(list(shapes[column.name]), dtype)
                if column.name in shapes
                else tf.io.RaggedFeature(dtype)
            )
    return context, lists
