"""The targets, a module each, with their common parts (`base`) and names (`registry`)."""

from __future__ import annotations
