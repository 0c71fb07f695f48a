"""The settings of a run that driver, agents and tasks share. Checked when made."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, fields
from typing import Any, Final, Literal, get_args

from gridflow.errors import InvalidArgument, did_you_mean

#: Five minutes: the time between two tries in a notebook.
WARM_SECONDS: Final = 300.0
#: Bytes. Minutes of rows for most models, and nothing that a disk would notice.
SPOOL_LIMIT: Final = 1 << 30
#: Two minutes by default, as Spark waits for an executor.
_AGENTS_PATIENCE: Final = 12
#: Seconds: what makes a driver stand still knows no heartbeats.
_LEAST_PATIENCE: Final = 60.0
_UNITS: Final = {"MiB": 1 << 20, "GiB": 1 << 30, "MB": 10**6, "GB": 10**9}
LogChoice = Literal["all", "chief", "none"]
LOG_CHOICES: Final = get_args(LogChoice)


def size_in_bytes(what: str, size: Any) -> int:
    """Return the bytes of a size such as ``"2GiB"``.

    Raises
    ------
    InvalidArgument
        It is none, has no unit, or is less than a MiB.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([MG]i?B)", size) if isinstance(size, str) else None
    if found and found[2] in _UNITS:
        value = int(float(found[1]) * _UNITS[found[2]])
        if value >= 1 << 20:
            return value
    raise InvalidArgument(
        f"{what}= is a size of at least 1 MiB with its unit ({', '.join(_UNITS)}), "
        f"such as '2GiB'; got {size!r}."
    )


def choose(what: str, value: str, allowed: tuple[str, ...]) -> None:
    """Refuse a value that isn't among the allowed ones.

    Raises
    ------
    InvalidArgument
        With the allowed values, and the nearest of them.
    """
    if value not in allowed:
        names = ", ".join(repr(name) for name in allowed)
        hint = did_you_mean(value, allowed) if isinstance(value, str) else ""
        raise InvalidArgument(f"{what} must be one of {names}; got {value!r}.{hint}")


@dataclass(frozen=True)
class Deadlines:
    """How long things may take, in seconds. Nothing waits without one of these.

    Attributes
    ----------
    start_timeout : float
        For all tasks to register, and again for all to come up (TensorFlow's own start waits for
        ever when a peer is missing).
    heartbeat_timeout : float
        Silence of an agent, or a frozen training process, after which the task counts as failed.
    step_timeout : float or None
        Time without a step in ``fit``, ``evaluate`` and ``predict``; None: no limit.
    shutdown_timeout : float
        For everything to end after success, failure or an interrupt; then it is killed.
    run_timeout : float or None
        For the whole job, from its start, restarts included; None: no limit.

    The time in which the driver itself stood still doesn't count in any of them.
    """

    start_timeout: float = 300.0
    heartbeat_timeout: float = 10.0
    step_timeout: float | None = 1800.0
    shutdown_timeout: float = 30.0
    run_timeout: float | None = None

    @property
    def driver_timeout(self) -> float:
        """Silence of a driver after which agents end, unless they learn before that it is gone.

        They are more patient with it than it is with them: one that is stopped, or suspended with
        its machine, finds them alive when it goes on.
        """
        return max(_LEAST_PATIENCE, _AGENTS_PATIENCE * self.heartbeat_timeout)

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None and field.name in {"step_timeout", "run_timeout"}:
                continue
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not value > 0 or math.isinf(value):
                raise InvalidArgument(
                    f"{field.name} is a number of seconds greater than 0; got {value!r}."
                )


def read_environment(what: str, env: Any) -> dict[str, str]:
    """Return variables, after a look at their types.

    Raises
    ------
    InvalidArgument
        They aren't names and values, both str.
    """
    for name, value in dict(env).items():
        if not isinstance(name, str) or not isinstance(value, str) or "=" in name or not name:
            raise InvalidArgument(
                f"{what} maps names to values, both str; got {name!r}: {type(value).__name__}."
            )
    return dict(env)


def read_words(what: str, command: Any) -> tuple[str, ...]:
    """Return the words of a command.

    Raises
    ------
    InvalidArgument
        It is one text, or holds something else.
    """
    texts = () if isinstance(command, str) else tuple(command)
    if isinstance(command, str) or not all(isinstance(word, str) for word in texts):
        raise InvalidArgument(
            f"{what} is a list of words, such as ['python', 'train.py']; got {command!r}."
        )
    return texts


def whole_number(what: str, value: Any, minimum: int) -> int:
    """Return the value if it is a whole number of at least the minimum.

    Raises
    ------
    InvalidArgument
        Otherwise, with the value.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise InvalidArgument(f"{what} is a whole number of at least {minimum}; got {value!r}.")
    return value


def seconds(what: str, value: Any) -> float:
    """Return the value if it is a number of seconds, 0 included.

    Raises
    ------
    InvalidArgument
        Otherwise, with the value.
    """
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not value >= 0 or math.isinf(value):
        raise InvalidArgument(f"{what} is a number of seconds, 0 or more; got {value!r}.")
    return float(value)
