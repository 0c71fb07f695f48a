"""What a run would do, without launching anything."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gridflow._spec.cluster import Task
    from gridflow._spec.option_groups import Deadlines

_LEFT_OUT: Final = "left out"


@dataclass(frozen=True)
class Plan:
    """What `TensorflowDistributor.run` would do, without launching anything.

    Attributes
    ----------
    tasks : tuple of Task
        By rank; those that train come first. Each task uses one slot.
    strategy : str
    target : str
        Where they would run.
    slots : int or None
        Task slots there; None if unknown.
    function_bytes : int
        Size of the function as it would be sent to each task.
    datasets : tuple of str
    start_timeout : float
        Seconds.
    deadlines : Deadlines
    gpus : tuple of float or None
        GPUs of each task; None: those that Spark assigns to it.
    details : dict
        The launcher's further findings.
    backend : str
    left_out : mapping of dataset to mapping of column to reason
        Columns that can't be fed because of their types. Only requesting one is an error.
    """

    tasks: tuple[Task, ...]
    strategy: str
    target: str
    slots: int | None
    function_bytes: int
    datasets: tuple[str, ...]
    start_timeout: float
    deadlines: Deadlines
    gpus: tuple[float | None, ...] = ()
    details: dict[str, str] = field(default_factory=dict)
    backend: str = "tensorflow"
    left_out: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def __str__(self) -> str:
        rows = self._rows()
        width = max(map(len, (*rows, _LEFT_OUT)))
        lines = [f"{name:<{width}}  {value}" for name, value in rows.items()]
        lines += [f"{_LEFT_OUT:<{width}}  {reason}" for reason in self._reasons()]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        from gridflow._spec import markup

        reasons = " ".join(self._reasons())
        return markup.facts({**self._rows(), **({_LEFT_OUT: reasons} if reasons else {})})

    def _reasons(self) -> list[str]:
        return [reason for columns in self.left_out.values() for reason in columns.values()]

    def _rows(self) -> dict[str, str]:
        return {
            "target": self.target,
            "tasks": ", ".join(map(str, self.tasks)),
            "slots": "unknown" if self.slots is None else str(self.slots),
            "strategy": self.strategy,
            "backend": self.backend,
            "datasets": ", ".join(self.datasets) or "none",
            "function": f"{self.function_bytes:,} bytes",
            "start_timeout": f"{self.start_timeout:g} s",
            **self.details,
        }
