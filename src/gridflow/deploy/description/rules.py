"""Syntax of names, quantities and durations, shared by the description and the lint."""

from __future__ import annotations

import re
import unicodedata
from decimal import Decimal
from typing import Final

from gridflow._spec.network import LAST_PORT
from gridflow._spec.printable import shortened
from gridflow.errors import InvalidArgument

MAX_LABEL: Final = 63
#: YAML's parsers take a key of at most 1,024 characters.
MAX_ENV_NAME: Final = 1_000
#: What Linux passes to a program in one piece (MAX_ARG_STRLEN), its end included.
MAX_WORD: Final = 1 << 17

_DNS_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?\Z")
_DNS_SUBDOMAIN: Final = re.compile(
    r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*\Z"
)
_QUALIFIED: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?\Z")
_ENV_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_PORT_NAME: Final = re.compile(r"(?=.*[a-z])[a-z0-9]([-a-z0-9]*[a-z0-9])?\Z")
_IMAGE: Final = re.compile(
    r"[a-z0-9]+(?:[._-]+[a-z0-9]+)*(?::[0-9]+)?(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?(?:@sha256:[0-9a-f]{64})?\Z"
)
_QUANTITY: Final = re.compile(
    r"(\d{1,40}(?:\.\d{1,40})?|\.\d{1,40})(m|k|[MGTPE]|[KMGTPE]i|[eE][+-]?\d{1,5})?\Z"
)
_LEAST_MEMORY: Final = 1 << 20
#: Kubernetes counts bytes in 64 bits.
_MOST_MEMORY: Final = 1 << 63
_DURATION: Final = re.compile(r"(\d{1,12})(s|m|h|d)?\Z")
_POWERS: Final = {
    "m": Decimal("0.001"),
    "": Decimal(1),
    "k": Decimal(10) ** 3,
    "M": Decimal(10) ** 6,
    "G": Decimal(10) ** 9,
    "T": Decimal(10) ** 12,
    "P": Decimal(10) ** 15,
    "E": Decimal(10) ** 18,
} | {f"{unit}i": Decimal(1024) ** power for power, unit in enumerate("KMGTPE", start=1)}
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def dns_label(text: str, *, letter_first: bool = False) -> str | None:
    """Return why a text isn't a DNS label (RFC 1123; RFC 1035 with ``letter_first``), or None."""
    if len(text) > MAX_LABEL:
        return f"{text!r} has {len(text)} characters; a DNS label has at most {MAX_LABEL}."
    if _DNS_LABEL.match(text) and not (letter_first and text[:1].isdigit()):
        return None
    better = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    if letter_first:
        better = better.lstrip("0123456789-")
    hint = f" Did you mean {better!r}?" if better and better != text else ""
    first = "begins with a letter" if letter_first else "begins with a letter or digit"
    return f"{text!r} is not a DNS label: it {first} and contains only a-z, 0-9 and '-'.{hint}"


def dns_subdomain(text: str) -> str | None:
    """Return why a text isn't a DNS subdomain (the syntax of most object names), or None."""
    limit = 253
    if len(text) <= limit and _DNS_SUBDOMAIN.match(text):
        return None
    return f"{text!r} is not a DNS name: a-z, 0-9, '-' and '.', at most {limit} characters."


def label_key(text: str) -> str | None:
    """Return why a text can't be the key of a label or annotation, or None."""
    prefix, slash, name = text.rpartition("/")
    if slash and (reason := dns_subdomain(prefix)):
        return f"the prefix of {text!r} is wrong: {reason}"
    if len(name) <= MAX_LABEL and _QUALIFIED.match(name):
        return None
    return (
        f"{text!r} is not a label key: [prefix/]name, the name with letters, digits, '-', '_', "
        "'.', "
        f"at most {MAX_LABEL} characters."
    )


def label_value(text: str) -> str | None:
    """Return why a text can't be the value of a label, or None."""
    if not text or (len(text) <= MAX_LABEL and _QUALIFIED.match(text)):
        return None
    return (
        f"{text!r} is not a label value: letters, digits, '-', '_', '.', beginning and ending "
        "with a "
        f"letter or digit, at most {MAX_LABEL} characters. Put longer texts into annotations."
    )


def env_name(text: str) -> str | None:
    """Return why a text can't name an environment variable, or None."""
    if len(text) > MAX_ENV_NAME:
        return (
            f"{shortened(text, 60)!r} has {len(text):,} characters; a variable's name has at most "
            f"{MAX_ENV_NAME:,}."
        )
    if _ENV_NAME.match(text):
        return None
    return f"{text!r} is not a variable name: letters, digits and '_', no digit first."


def word(text: str) -> str | None:
    """Return why a program can't be passed a text (a word, or ``NAME=value``), or None."""
    if "\0" in text:
        return "can't hold a NUL character."
    size = len(text.encode(errors="surrogatepass")) + 1
    if size > MAX_WORD:
        return (
            f"has {size:,} bytes; Linux passes at most {MAX_WORD:,} in one piece. Put it into a "
            "file."
        )
    return None


def port_name(text: str) -> str | None:
    """Return why a text can't name a container's or Service's port, or None."""
    limit = 15
    if len(text) <= limit and _PORT_NAME.match(text) and "--" not in text:
        return None
    return (
        f"{text!r} is not a port name: a-z, 0-9 and '-', a letter in it, at most {limit} "
        "characters."
    )


def port_number(port: int) -> str | None:
    """Return why a number isn't a port, or None."""
    return None if 1 <= port <= LAST_PORT else f"a port must be from 1 to {LAST_PORT}, got {port}."


def image(text: str) -> str | None:
    """Return why a text isn't a container image reference, or None."""
    if _IMAGE.match(text):
        return None
    return f"{text!r} is not an image: [registry[:port]/]name[:tag][@sha256:digest], in lower case."


def absolute_path(text: str) -> str | None:
    """Return why a text isn't an absolute path in a container, or None."""
    if not text.startswith("/"):
        return f"a path in the container must begin with '/', got {text!r}."
    if ".." in text.split("/") or ":" in text:
        return f"a path in the container can't contain '..' or ':', got {text!r}."
    return printable(text)


def printable(text: str) -> str | None:
    """Return that a text contains a line break or another control character, or None."""
    if any(unicodedata.category(each) in {"Cc", "Zl", "Zp"} for each in text):
        return f"contains a line break or another control character: {text!r}."
    return None


def quantity(text: str) -> Decimal:
    """Return the value of a Kubernetes quantity like ``500m``, ``2`` or ``4Gi``.

    Raises
    ------
    InvalidArgument
        If the text isn't a quantity.
    """
    match = _QUANTITY.match(text)
    if not match:
        if text.endswith("K") and _QUANTITY.match(f"{text}i"):
            reason = f"{text!r} is not a quantity: 'k' is 1000, 'Ki' is 1024."
            hint = f" Did you mean {text + 'i'!r}?" if quantity(f"{text}i") >= _LEAST_MEMORY else ""
            raise InvalidArgument(reason + hint)
        raise InvalidArgument(
            f"{text!r} is not a quantity: a number and one of m, k, M, G, T, Ki, Mi, Gi, Ti, "
            "for example '500m' (cpu) or '4Gi' (memory)."
        )
    number, unit = match.group(1), match.group(2) or ""
    if unit[:1] in {"e", "E"} and unit[1:] not in {"", "i"}:
        return Decimal(number + unit)
    return Decimal(number) * _POWERS[unit]


def cpu(text: str) -> str | None:
    """Return why a text isn't a number of cores, or None."""
    try:
        cores = quantity(text)
    except InvalidArgument as error:
        return str(error)
    if cores <= 0:
        return f"cpu must be more than 0, got {text!r}."
    too_many = 100_000
    if cores >= too_many:
        return f"cpu counts cores, got {text!r}; half a core is '500m'."
    return None


def memory(text: str) -> str | None:
    """Return why a text isn't an amount of memory, or None."""
    try:
        size = quantity(text)
    except InvalidArgument as error:
        return str(error)
    if size <= 0:
        return f"memory must be more than 0, got {text!r}."
    if size >= _MOST_MEMORY:
        return f"memory must be less than 8Ei, got {text!r}."
    if size < _LEAST_MEMORY:
        better = re.sub(r"[a-zA-Z].*", "", text) + "Gi"
        hint = f" Did you mean {better!r}?" if quantity(better) >= _LEAST_MEMORY else ""
        return f"memory counts bytes, got {text!r} = {size} bytes; at least 1Mi is needed.{hint}"
    return None


def seconds(text: str) -> int:
    """Return the seconds of a duration like ``90``, ``90s``, ``30m``, ``2h`` or ``1d``.

    Raises
    ------
    InvalidArgument
        If the text isn't a duration.
    """
    match = _DURATION.match(text)
    if not match:
        raise InvalidArgument(f"{text!r} is not a duration: seconds, or like 90s, 30m, 2h, 1d.")
    return int(match.group(1)) * _SECONDS[match.group(2) or "s"]
