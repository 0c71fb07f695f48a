"""Every target, each in a module of its own."""

from __future__ import annotations
