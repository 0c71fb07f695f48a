"""Column names in Spark's syntax."""

from __future__ import annotations


def quoted(column: str) -> str:
    """Quote a column name: without quotes, ``a.b`` would be a field of ``a``."""
    return "`" + column.replace("`", "``") + "`"
