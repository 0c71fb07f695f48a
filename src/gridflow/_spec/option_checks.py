"""Checks of single options. Their errors say what was given and what is allowed."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal, TypeVar, get_args

from gridflow.errors import InvalidArgument, did_you_mean

#: Seconds. TensorFlow itself waits forever for a missing peer at the start.
START_TIMEOUT: Final = 300.0
_UNITS: Final = {"MiB": 1 << 20, "GiB": 1 << 30, "MB": 10**6, "GB": 10**9}
LogChoice = Literal["all", "chief", "none"]
LOG_CHOICES: Final = get_args(LogChoice)
T = TypeVar("T")


def size_in_bytes(what: str, size: Any) -> int:
    """Return the bytes of a size such as ``"2GiB"``.

    Raises `InvalidArgument`: It isn't a size, has no unit, or is less than 1 MiB.
    """
    form = r"(\d{1,15}(?:\.\d{1,15})?)\s{0,9}([MG]i?B)"
    found = re.fullmatch(form, size) if isinstance(size, str) else None
    if found and found[2] in _UNITS:
        value = int(float(found[1]) * _UNITS[found[2]])
        if value >= 1 << 20:
            return value
    raise InvalidArgument(
        f"{what} must be a size of at least 1 MiB with its unit ({', '.join(_UNITS)}), "
        f"such as '2GiB'; got {size!r}."
    )


def choose(what: str, value: str, allowed: tuple[str, ...]) -> None:
    """Refuse a value that isn't allowed.

    Raises `InvalidArgument`: With the allowed values, and the closest of them.
    """
    if value not in allowed:
        names = ", ".join(repr(name) for name in allowed)
        hint = did_you_mean(value, allowed) if isinstance(value, str) else ""
        raise InvalidArgument(f"{what} must be one of {names}; got {value!r}.{hint}")


def read_environment(what: str, env: Any) -> dict[str, str]:
    """Check the types of environment variables, and return them.

    Raises `InvalidArgument`: They aren't names and values, both str.
    """
    if not isinstance(env, Mapping):
        raise InvalidArgument(f"{what} must be a dict of names to values, both str; got {env!r}.")
    for name, value in env.items():
        if not isinstance(name, str) or not isinstance(value, str) or "=" in name or not name:
            raise InvalidArgument(
                f"{what} must map names to values, both str; got {name!r}: {type(value).__name__}."
            )
        if "\0" in name + value:
            raise InvalidArgument(f"{what} has the byte 0, which ends a variable, in {name!r}.")
    return dict(env)


def read_words(what: str, command: Any) -> tuple[str, ...]:
    """Return the words of a command.

    Raises `InvalidArgument`: It is a single string, or contains something other than strings.
    """
    is_list = isinstance(command, Iterable) and not isinstance(command, str)
    texts = tuple(command) if is_list else ()
    if not is_list or not all(isinstance(word, str) for word in texts):
        raise InvalidArgument(
            f"{what} must be a list of words, such as ['python', 'train.py']; got {command!r}."
        )
    return texts


def path(what: str, value: Any) -> None:
    """Refuse anything except the path of a folder, which may have a scheme.

    Raises `InvalidArgument`: With the value.
    """
    if not isinstance(value, str | os.PathLike) or not os.fspath(value):
        raise InvalidArgument(f"{what} must be the path of a folder, a str or Path; got {value!r}.")


def batch_function(what: str, value: Any) -> None:
    """Refuse anything except a function, or None.

    Raises `InvalidArgument`: With the value.
    """
    if value is not None and not callable(value):
        raise InvalidArgument(f"{what} must be a function of batches; got {value!r}.")


def whole_number(what: str, value: Any, minimum: int, maximum: int | None = None) -> int:
    """Return the value if it is a whole number from the minimum to the maximum, if there is one.

    Raises `InvalidArgument`: Otherwise, with the value.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise InvalidArgument(
            f"{what} must be a whole number of at least {minimum}; got {value!r}."
        )
    if maximum is not None and value > maximum:
        raise InvalidArgument(f"{what} must be a whole number up to {maximum:,}; got {value!r}.")
    return value


def seconds(what: str, value: Any) -> float:
    """Return the value if it is a number of seconds, 0 included.

    Raises `InvalidArgument`: Otherwise, with the value.
    """
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not value >= 0 or math.isinf(value):
        raise InvalidArgument(f"{what} must be a number of seconds, 0 or more; got {value!r}.")
    return float(value)


def time_limit(what: str, value: Any) -> float:
    """Return the value if it is a number of seconds greater than 0.

    Raises `InvalidArgument`: Otherwise, with the value.
    """
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not value > 0 or math.isinf(value):
        raise InvalidArgument(f"{what} must be a number of seconds greater than 0; got {value!r}.")
    return float(value)


def boolean(what: str, value: Any) -> None:
    """Refuse anything except True and False.

    Raises `InvalidArgument`: With the value.
    """
    if not isinstance(value, bool):
        raise InvalidArgument(f"{what} must be True or False; got {value!r}.")


def option_group(what: str, value: Any, kind: type[T]) -> T:
    """Check the class of an option group, and return it; None: the defaults.

    Raises `InvalidArgument`: With the value.
    """
    if value is None:
        return kind()
    if not isinstance(value, kind):
        raise InvalidArgument(f"{what}= must be a {kind.__name__}(…); got {value!r}.")
    return value
