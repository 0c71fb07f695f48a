"""What starts inside a container: nothing here imports more than the standard library at first."""

from __future__ import annotations
