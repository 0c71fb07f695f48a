"""The targets, one module each, with their shared parts (`base`) and names (`registry`)."""

from __future__ import annotations
