"""Which steps are profiled, and where profiles lie among event files, for TensorBoard to find."""

from __future__ import annotations

from typing import Any, Final

from gridflow._spec.option_checks import whole_number
from gridflow.errors import InvalidArgument

#: A profile of more steps than this takes gigabytes.
MOST_STEPS: Final = 1_000


def folder_of(first: int, last: int) -> str:
    """Return the folder below that of the event files."""
    return f"plugins/profile/steps-{first}-{last}"


def check(steps: Any) -> tuple[int, int]:
    """Return the first and the last step to profile.

    Raises `InvalidArgument`: It isn't a pair of them, or there are too many.
    """
    if not isinstance(steps, tuple | list) or len(steps) != 2:  # noqa: PLR2004
        raise InvalidArgument(
            f"steps must be the first and the last step, such as (100, 110); got {steps!r}."
        )
    first = whole_number("the first step", steps[0], 1)
    last = whole_number("the last step", steps[1], first)
    if last - first >= MOST_STEPS:
        raise InvalidArgument(
            f"steps must be at most {MOST_STEPS:,}, as each adds megabytes; got {steps!r}."
        )
    return first, last
