"""Colours for terminals; plain text everywhere else."""

from __future__ import annotations

import os
from typing import Final, TextIO

from gridflow._spec.printable import is_terminal

_COLOURS: Final = {"red": "31", "yellow": "33", "green": "32", "dim": "2"}


def paint(text: str, colour: str, stream: TextIO) -> str:
    """Return coloured text if the stream is a terminal with colours, otherwise plain text.

    ``NO_COLOR`` (https://no-color.org) and ``TERM=dumb`` turn colours off.

    `stream`: Where the text goes.
    """
    if not is_terminal(stream) or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return text
    return f"\033[{_COLOURS[colour]}m{text}\033[0m"
