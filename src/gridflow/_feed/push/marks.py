"""What checkpoints cover of a stream's rows on one rank. Pure.

A checkpoint that was made needn't arrive at the driver. So each is remembered until the driver has
said that it has two later ones: those are all that a group may go on from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from gridflow._spec.place import Place

__all__ = ["Mark", "Marks"]

#: Checkpoints that the driver keeps: the newest, and the one before it.
_KEPT: Final = 2


class Mark(NamedTuple):
    """A checkpoint, the rows that it covers, and the section that comes next."""

    place: Place | None
    rows: int
    section: int


class Marks:
    """The checkpoints that a group may go on from.

    Examples
    --------
    >>> marks = Marks()
    >>> marks.made(Mark((0, 0, 1), 10, 0))
    >>> marks.made(Mark((0, 0, 2), 20, 0))
    >>> marks.arrived((0, 0, 1))
    >>> marks.covered((0, 0, 1), Mark(None, 25, 0)).rows  # what is trained on since is lost
    10
    """

    def __init__(self) -> None:
        self._beginning = Mark(None, 0, 0)
        self._made: list[Mark] = []
        self._arrived: list[Place] = []

    def begin_with(self, section: int) -> None:
        """Note the section that the stream begins with here."""
        self._beginning = Mark(None, 0, section)

    def made(self, mark: Mark) -> None:
        """Take note of a checkpoint that is made."""
        self._made.append(mark)

    def arrived(self, place: Place) -> None:
        """Take note that the driver has a checkpoint; forget those that it keeps no longer."""
        self._arrived = sorted({*self._arrived, place})[-_KEPT:]
        known = [at for at, mark in enumerate(self._made) if mark.place == self._arrived[0]]
        if len(self._arrived) == _KEPT and known:
            del self._made[: known[-1]]

    @property
    def oldest(self) -> Mark:
        """The oldest that a group may go on from, or the beginning."""
        is_known = len(self._arrived) == _KEPT and self._made[:1]
        if is_known and self._made[0].place == self._arrived[0]:
            return self._made[0]
        return self._beginning

    def covered(self, resume: Place | None, now: Mark) -> Mark:
        """Return what a checkpoint covers, or none.

        Parameters
        ----------
        resume : Place or None
        now : Mark
            What was taken by now.
        """
        if resume is None:
            return self._beginning
        for mark in reversed(self._made):
            if mark.place == resume:
                return mark
        older = [mark for mark in self._made if mark.place is not None and mark.place < resume]
        if older or resume in self._arrived:
            # This rank's process ended before it could say what the checkpoint covers: all that it
            # had taken, or else it would train on some rows twice.
            return now
        return self._beginning  # it was made before rows of this stream came here

    def go_on(self, resume: Place | None, mark: Mark, rows: int) -> None:
        """Forget what was made after `resume`, from which training goes on with so many rows."""
        self._made = [each for each in self._made if each.rows <= mark.rows]
        self._arrived = [each for each in self._arrived if resume is not None and each < resume]
        if resume is not None:
            self._made.append(Mark(resume, rows, mark.section))
            self._arrived = [*self._arrived, resume][-_KEPT:]
