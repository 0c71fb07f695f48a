"""Why an operation of all ranks can't be completed."""

from __future__ import annotations


class PeerGone(ConnectionError):
    """Another rank has closed its connection: it has ended, or was ended."""


class RanksDiffer(RuntimeError):
    """Ranks are in different operations."""
