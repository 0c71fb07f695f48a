"""How a job is started and followed on a target that is there."""

from __future__ import annotations
