"""How the ranks agree on a step after which they make a checkpoint together. Pure.

Reading a model needs all ranks that train it together, at the same step, but commands reach ranks
at different times. So each is asked first, and stops after the step that it names. The last of
these steps is one that all ranks can still reach.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from gridflow._coordinator import events as ev
from gridflow._wire import commands

#: Before asking again when the ranks could not save: they may be between two fits.
_AGAIN_SECONDS: Final = 5.0


@dataclass
class CheckpointBarrier:
    """One requested checkpoint.

    Parameters
    ----------
    ranks : tuple of int
        The ranks that make it together; the first writes it.
    generation : int
    patience : float
        Seconds for all to answer; those that have answered are stopped.
    stays : bool
        Whether they stop after it.
    """

    ranks: tuple[int, ...]
    generation: int
    patience: float
    stays: bool
    _answers: dict[int, int | None] = field(default_factory=dict)
    _asked_at: float | None = None
    _ask_at: float = 0.0
    _step: int | None = None

    def tick(self, at: float) -> list[ev.Instruction]:
        """Ask, or give up waiting for the answers."""
        if self._step is not None:
            return []
        if self._asked_at is None:
            return self._ask(at) if at >= self._ask_at else []
        return self._go_on(at) if at > self._asked_at + self.patience else []

    def answered(self, at: float, rank: int, step: int | None) -> list[ev.Instruction]:
        """Take a rank's answer; the last answer decides."""
        if self._asked_at is None or rank not in self.ranks:
            return []
        self._answers[rank] = step
        if len(self._answers) < len(self.ranks):
            return []
        known = [step for step in self._answers.values() if step is not None]
        if len(known) < len(self.ranks):
            return self._go_on(at)
        self._step, self._asked_at = max(known), None
        return [self._save_after(self._step, stays=self.stays)]

    def _ask(self, at: float) -> list[ev.Instruction]:
        self._asked_at = at
        self._answers.clear()
        return [ev.Send(commands.AskToSave(self.generation), self.ranks)]

    def _go_on(self, at: float) -> list[ev.Instruction]:
        self._asked_at, self._ask_at = None, at + _AGAIN_SECONDS
        return [self._save_after(None, stays=False)]

    def _save_after(self, step: int | None, *, stays: bool) -> ev.Send:
        return ev.Send(commands.SaveAfter(self.generation, step, stays), self.ranks)
