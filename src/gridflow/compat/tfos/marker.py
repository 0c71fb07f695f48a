"""Markers between the rows of a feed."""

from __future__ import annotations


class Marker:
    """Anything in a feed that isn't a row."""


class EndPartition(Marker):
    """The end of a partition's rows."""
