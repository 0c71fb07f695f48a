"""Prediction with pandas functions, for Spark before 4.1."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gridflow._feed.types import leaf_type
from gridflow.errors import SchemaError
from gridflow.ml.serving import predictions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql.types import DataType

    from gridflow.ml.serving import ServedModel


def pandas_function(model: ServedModel, kind: DataType, batch_size: int, nulls: str) -> Any:
    """Return Spark's function of columns."""
    from collections.abc import Iterator as It

    import pandas as pd
    from pyspark.sql import functions

    def predict(batches: Iterator[Any]) -> Iterator[Any]:
        columns = (
            tuple(_to_arrow(column) for column in (batch if isinstance(batch, tuple) else (batch,)))
            for batch in batches
        )
        for found in predictions(model, columns, batch_size, nulls):
            yield _to_pandas(found)

    returned = pd.DataFrame if kind.typeName() == "struct" else pd.Series
    predict.__annotations__ = {"batches": It[tuple[pd.Series, ...]], "return": It[returned]}  # type: ignore[valid-type]
    made: Any = functions  # its stubs lack iterators of tuples
    return made.pandas_udf(predict, kind)


def _to_arrow(column: Any) -> Any:
    """Convert a pandas column to Arrow; a struct is a DataFrame."""
    import pandas as pd
    import pyarrow as pa

    if isinstance(column, pd.DataFrame):
        struct = pa.RecordBatch.from_pandas(column, preserve_index=False).to_struct_array()
        for field in struct.flatten():
            _without_times(field)
        return struct
    return _without_times(pa.Array.from_pandas(column))


def _without_times(column: Any) -> Any:
    """Reject timestamps, which Spark converts to the session's time zone for pandas.

    Raises
    ------
    SchemaError
        The column has timestamps.
    """
    import pyarrow as pa

    if pa.types.is_timestamp(leaf_type(column.type)):
        raise SchemaError(
            "timestamps can't be a model's input before Spark 4.1, because Spark passes them in "
            "the session's time zone. Pass unix_micros(column), the number used in training."
        )
    return column


def _to_pandas(column: Any) -> Any:
    import pandas as pd
    import pyarrow as pa

    if pa.types.is_struct(column.type):
        fields = {field.name: _to_pandas(column.field(i)) for i, field in enumerate(column.type)}
        return pd.DataFrame(fields)
    is_nested = pa.types.is_nested(column.type)
    return (
        pd.Series(column.to_pylist(), dtype=object)
        if is_nested
        else column.to_pandas(integer_object_nulls=True)
    )
