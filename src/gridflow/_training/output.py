"""What a training process prints, whatever its function has made of its streams.

It may have closed one, set it to None, or replaced it by an object that can only write.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Literal, NoReturn


def write(stream: Literal["stdout", "stderr"], text: str) -> None:
    """Print to a stream if that is possible."""
    with contextlib.suppress(Exception):
        getattr(sys, stream).write(text)


def flush() -> None:
    """Flush both streams as far as that is possible."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def leave(code: int) -> NoReturn:
    """End this process at once, with all that was printed."""
    flush()
    os._exit(code)
