"""Errors of collective operations."""

from __future__ import annotations


class PeerGone(ConnectionError):
    """Another rank has closed its connection, because it ended or was ended."""


class RanksDiffer(RuntimeError):
    """Ranks called different operations."""
