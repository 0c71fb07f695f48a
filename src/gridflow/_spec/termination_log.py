"""Why a container ends, told where Kubernetes reads it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

#: Where the kubelet reads why a container ended; another one by this variable.
TERMINATION_LOG: Final = "/dev/termination-log"
TERMINATION_VARIABLE: Final = "GRIDFLOW_TERMINATION_LOG"
#: The kubelet reads no more of it.
_MOST_BYTES: Final = 4096


def leave_message(text: str) -> None:
    """Say why this container ends, where Kubernetes reads it; nothing happens elsewhere.

    The kubelet makes the file, and shows at most 4096 bytes of it: the beginning of a text says
    what failed, its end why.
    """
    place = message_place()
    if place is not None:
        with contextlib.suppress(OSError):
            place.write_bytes(_shortened(text.strip().encode(errors="replace")))


def message_place() -> Path | None:
    """Return the file for `leave_message`, None where there is none."""
    place = Path(os.environ.get(TERMINATION_VARIABLE) or TERMINATION_LOG)
    return place if place.is_file() else None


def _shortened(text: bytes) -> bytes:
    if len(text) <= _MOST_BYTES:
        return text
    gap = "\n…\n".encode()
    first = _MOST_BYTES // 4
    cut = text[:first] + gap + text[first + len(gap) - _MOST_BYTES :]
    # What was cut in the middle of a letter is left out.
    return cut.decode(errors="ignore").encode()
