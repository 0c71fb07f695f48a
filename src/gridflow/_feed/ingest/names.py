"""Columns' names as Spark takes them."""

from __future__ import annotations


def quoted(column: str) -> str:
    """Return a name as Spark takes it, whatever is in it: ``a.b`` would be a field of ``a``."""
    return "`" + column.replace("`", "``") + "`"
