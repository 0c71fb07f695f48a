"""Drivers start and follow jobs on an available target."""

from __future__ import annotations
