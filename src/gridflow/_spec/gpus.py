"""How many GPUs a task needs, whole or in parts, and how much of their memory. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final

from gridflow._spec.cluster import TRAINING_ROLES
from gridflow._spec.option_checks import boolean, size_in_bytes
from gridflow.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gridflow._spec.cluster import Task


#: The name of Spark's resource, as in ``spark.task.resource.gpu.amount``.
GPU: Final = "gpu"
#: The variable that decides which GPUs a process sees.
VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
#: How many tasks may share one GPU.
_MOST_SHARES: Final = 10
#: ``0.33`` is meant as a third.
_TOLERANCE: Final = 0.0051


@dataclass(frozen=True)
class GpuNeed:
    """The GPUs of one task.

    `count`: How many; None: those that Spark's task resources assign to it, perhaps none.
    `shares`: How many tasks share each of them.
    """

    count: int | None = None
    shares: int = 1

    @property
    def amount(self) -> Fraction | None:
        """The number of GPUs that it uses; a fraction if it shares one."""
        return None if self.count is None else Fraction(self.count, self.shares)

    def __str__(self) -> str:
        if self.count is None:
            return "as assigned by Spark"
        return f"1/{self.shares}" if self.shares > 1 else str(self.count)

    @classmethod
    def parse(cls, what: str, value: Any) -> GpuNeed:
        """Read ``gpus=``: None, a whole number, or one of the fractions 1/2 to 1/10.

        Raises `InvalidArgument`: For anything else; the message says what is allowed.
        """
        if value is None:
            return cls()
        number = isinstance(value, int | float | Fraction) and not isinstance(value, bool)
        if number and 0 <= value < math.inf:
            if value == int(value):
                return cls(int(value))
            near = round(1 / value)
            if 1 < near <= _MOST_SHARES and abs(float(value) - 1 / near) < _TOLERANCE:
                return cls(1, near)
        parts = ", ".join(f"{1 / shares:.3g}" for shares in range(2, _MOST_SHARES + 1))
        raise InvalidArgument(
            f"{what} must be a whole number of GPUs per task, or a part of one that tasks can "
            f"share evenly: {parts}; got {value!r}."
        )


@dataclass(frozen=True, kw_only=True)
class GpuOptions:
    """How a task uses the memory of its GPUs.

    Parameters
    ----------
    memory : str, optional
        Memory that a task may use of each GPU, such as ``"2GiB"``. Default: all of it, or the
        task's part of a shared GPU.
    allow_growth : bool, default False
        Allocate memory as needed, without a limit.

    Raises
    ------
    InvalidArgument
        The size has no unit, or both options are given.
    """

    memory: str | None = None
    allow_growth: bool = False

    def __post_init__(self) -> None:
        boolean("GpuOptions(allow_growth=)", self.allow_growth)
        if self.memory is not None and self.allow_growth:
            raise InvalidArgument(
                "GpuOptions takes either memory= or allow_growth=True; got both, with "
                f"memory={self.memory!r}. TensorFlow supports a limit that is allocated at "
                "once, or growth without a limit."
            )
        if self.memory is not None:
            size_in_bytes("GpuOptions(memory=)", self.memory)

    @property
    def memory_in_bytes(self) -> int | None:
        """The memory limit as a number; None without a limit."""
        return None if self.memory is None else size_in_bytes("GpuOptions(memory=)", self.memory)


def check_role(name: str, gpus: Any) -> None:
    """Refuse GPUs for a role that never gets any.

    Raises `InvalidArgument`: Also for an invalid number.
    """
    if GpuNeed.parse(f"gpus of role {name!r}", gpus).count and name not in TRAINING_ROLES:
        raise InvalidArgument(
            f"tasks of role {name!r} can't have GPUs; got gpus={gpus!r}. Give GPUs to "
            f"{' and '.join(TRAINING_ROLES)}."
        )


def describe(tasks: Sequence[Task], needs: Sequence[GpuNeed]) -> str:
    """Return the GPUs of all tasks as a line of a plan."""
    words: dict[str, list[str]] = {}
    for task, need in zip(tasks, needs, strict=True):
        words.setdefault(str(need), []).append(str(task))
    return "; ".join(f"{', '.join(names)}: {need}" for need, names in words.items())


def group(
    places: Iterable[int], needs: Sequence[GpuNeed], *, together: bool
) -> list[tuple[tuple[int, ...], GpuNeed]]:
    """Group tasks into stages with the same need; ``together``: one stage with the largest need."""
    found: dict[GpuNeed, list[int]] = {}
    for place in places:
        found.setdefault(needs[place] if needs else GpuNeed(), []).append(place)
    if together and len(found) > 1:
        most = max(found, key=lambda need: need.amount or 0)
        return [(tuple(sorted(p for each in found.values() for p in each)), most)]
    return [(tuple(each), need) for need, each in found.items()]
