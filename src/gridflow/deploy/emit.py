"""Writes documents as JSON, or as YAML that all parsers read in the same way.

Parsers disagree about plain scalars (``yes``, ``0o7``, ``1e3``, ``12:30``), so a string is only
written without quotes if no parser can take it for anything else.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

from gridflow._spec.printable import shortened
from gridflow.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterator

_SAFE: Final = re.compile(r"[A-Za-z_/][A-Za-z0-9_./-]*(?::[A-Za-z0-9_./-]+)*\Z")
_WORDS: Final = frozenset({"true", "false", "yes", "no", "on", "off", "y", "n", "null", "nan"})
_ESCAPES: Final = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r", "\0": "\\0"}
_NO_YAML: Final = re.compile(r"[\x7f-\x84\x86-\x9f\ufeff\ufffe\uffff]")
_LONG_FLOW: Final = 8
_LONGEST_KEY: Final = 1024
_LAST_OF_BMP: Final = 0xFFFF


def to_yaml(documents: list[Any]) -> str:
    """Return documents as one YAML stream; equal values give identical bytes."""
    return "---\n".join("".join(_block(document, 0)) for document in documents)


def to_json(document: Any) -> str:
    """Return a document as indented JSON."""
    text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    # For these characters, YAML isn't a superset of JSON.
    return _NO_YAML.sub(lambda found: f"\\u{ord(found.group()):04x}", text)


def _block(value: Any, depth: int) -> Iterator[str]:
    pad = "  " * depth
    if isinstance(value, dict) and value:
        for key, child in value.items():
            yield f"{pad}{_key(key)}:{_inline(child, depth)}"
            if _nested(child):
                yield from _block(child, depth if isinstance(child, list) else depth + 1)
    elif isinstance(value, list) and value:
        for child in value:
            if _nested(child):
                lines = "".join(_block(child, depth + 1))
                yield f"{pad}- {lines[len(pad) + 2 :]}"
            else:
                yield f"{pad}-{_inline(child, depth)}"
    else:
        yield f"{pad}{_inline(value, depth).lstrip(' ')}"


def _key(key: Any) -> str:
    text = scalar(key)
    if len(text) > _LONGEST_KEY:
        raise InvalidArgument(
            f"the key {shortened(str(key), 60)!r} has {len(text):,} characters; YAML's parsers "
            f"take at most {_LONGEST_KEY:,}. Shorten it."
        )
    return text


def _nested(value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and not _flows(value)
    return isinstance(value, dict) and bool(value)


def _flows(value: list[Any]) -> bool:
    return len(value) > _LONG_FLOW and all(type(item) is int for item in value)


def _inline(value: Any, depth: int) -> str:
    if _nested(value):
        return "\n"
    if isinstance(value, (list, dict)):
        return (
            " " + (json.dumps(value) if value else "[]" if isinstance(value, list) else "{}") + "\n"
        )
    if isinstance(value, str) and _literal(value):
        pad = "  " * (depth + 1)
        mark = "|" if value.endswith("\n") else "|-"
        lines = value.removesuffix("\n").split("\n")
        return f" {mark}\n" + "".join(f"{pad}{line}\n" if line else "\n" for line in lines)
    return f" {scalar(value)}\n"


def scalar(value: Any) -> str:
    """Return a YAML scalar on one line."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        # YAML 1.1 takes 1e-07 for a string, because it has no dot.
        mantissa, e, exponent = json.dumps(value).partition("e")
        return mantissa + (".0" if e and "." not in mantissa else "") + e + exponent
    if not isinstance(value, str):
        return json.dumps(value)
    if _SAFE.match(value) and value.lower() not in _WORDS:
        return value
    return '"' + "".join(_character(c) for c in value) + '"'


def _character(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    if _printable(character):
        return character
    code = ord(character)
    return f"\\u{code:04x}" if code <= _LAST_OF_BMP else f"\\U{code:08x}"


def _printable(character: str) -> bool:
    return character.isprintable() and character != "\ufeff"


def _literal(text: str) -> bool:
    if "\n" not in text.rstrip("\n") or text.endswith("\n\n") or text[0] in " \n":
        return False
    lines = text.split("\n")
    return all(_printable(c) for line in lines for c in line) and not any(
        line.endswith(" ") for line in lines
    )
