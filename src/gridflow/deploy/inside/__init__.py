"""Programs that start inside containers, initially importing only the standard library."""

from __future__ import annotations
