"""Makes text of others safe for a terminal, an error or a notebook. Pure.

What a task prints or raises can contain control sequences that move the cursor, set the window's
title, or rewrite lines above. Only colours are kept.
"""

from __future__ import annotations

import re
from typing import Any, Final

#: Control characters of both sets (C0 and C1) except tabs and line ends, and those that reorder
#: characters.
_CONTROLS: Final = r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]"
_COLOUR: Final = r"\x1b\[[0-9;:]*m"
_ANY: Final = re.compile(_CONTROLS)
#: Defined by ECMA-48, in 7 and in 8 bits. An unterminated one loses only its start and becomes
#: text. No part can match a control character, where the next one may begin, so matching is linear.
_SEQUENCE: Final = re.compile(
    rf"(?!{_COLOUR})(?:"
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|"  # a control sequence
    r"(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x00-\x1f\x7f-\x9f]*(?:\x07|\x1b\\|\x9c)|"  # a string
    r"\x1b[ -/]*[0-~]|"
    rf"{_CONTROLS})"
)
_COLOURS: Final = re.compile(_COLOUR)
_RESET: Final = "\x1b[0m"
_IS_RESET: Final = re.compile(r"\x1b\[[0;:]*m")


def printable(text: str) -> str:
    r"""Return a text without control sequences; lines, tabs and colours stay.

    Colours are reset at its end.

    Examples
    --------
    >>> printable("\x1b[31mred \x9b2Jand \x1b]0;a title\x07more")
    '\x1b[31mred and more\x1b[0m'
    """
    if _ANY.search(text) is None:
        return text
    text = _SEQUENCE.sub("", text)
    colours = _COLOURS.findall(text)
    is_coloured = bool(colours) and _IS_RESET.fullmatch(colours[-1]) is None
    return text + _RESET if is_coloured else text


def plain(text: str) -> str:
    r"""Return a text without control sequences, colours included: for HTML, which has its own.

    Examples
    --------
    >>> plain("\x1b[31mred\x1b[0m \x9b2Jand\tplain")
    'red and\tplain'
    """
    return _COLOURS.sub("", printable(text))


def shortened(text: str, most: int) -> str:
    """Shorten a text to at most `most` characters, keeping its beginning and end.

    Examples
    --------
    >>> shortened("a" * 60 + "z" * 60, 60)
    'aaaaaaaaaaaaaaa … 90 characters left out … zzzzzzzzzzzzzzz'
    """
    if len(text) <= most:
        return text
    room = most - len(_left_out(len(text)))
    half = max(0, room // 2)
    return f"{text[:half]}{_left_out(len(text) - 2 * half)}{text[len(text) - half :]}"


def _left_out(characters: int) -> str:
    return f" … {characters:,} characters left out … "


def is_terminal(stream: Any) -> bool:
    """Return whether a stream is a terminal; False for objects that can't tell."""
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError, OSError):  # None, some object, a closed file
        return False
