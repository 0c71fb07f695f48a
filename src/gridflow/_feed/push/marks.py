"""Which rows of a stream the checkpoints cover on one rank. Pure.

A checkpoint may never arrive at the driver. So each is remembered until the driver has confirmed
two later ones: a group can only resume from these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from gridflow._spec.place import Place

__all__ = ["Mark", "Marks"]

#: Checkpoints that the driver keeps: the newest and the previous one.
_KEPT: Final = 2


class Mark(NamedTuple):
    """A checkpoint, the rows that it covers, and the section that comes next."""

    place: Place | None
    rows: int
    section: int


class Marks:
    """The checkpoints from which a group may resume.

    Examples
    --------
    >>> marks = Marks()
    >>> marks.made(Mark((0, 0, 1), 10, 0))
    >>> marks.made(Mark((0, 0, 2), 20, 0))
    >>> marks.arrived((0, 0, 1))
    >>> marks.covered((0, 0, 1), Mark(None, 25, 0)).rows  # training since then is lost
    10
    """

    def __init__(self) -> None:
        self._beginning = Mark(None, 0, 0)
        self._made: list[Mark] = []
        self._arrived: list[Place] = []

    def begin_with(self, section: int) -> None:
        """Record the first section of the stream here."""
        self._beginning = Mark(None, 0, section)

    def made(self, mark: Mark) -> None:
        """Record a new checkpoint."""
        self._made.append(mark)

    def arrived(self, place: Place) -> None:
        """Record that the driver has a checkpoint; forget those that it no longer keeps."""
        self._arrived = sorted({*self._arrived, place})[-_KEPT:]
        known = [at for at, mark in enumerate(self._made) if mark.place == self._arrived[0]]
        if len(self._arrived) == _KEPT and known:
            del self._made[: known[-1]]

    @property
    def oldest(self) -> Mark:
        """The oldest checkpoint from which a group may resume, or the beginning."""
        is_known = len(self._arrived) == _KEPT and self._made[:1]
        if is_known and self._made[0].place == self._arrived[0]:
            return self._made[0]
        return self._beginning

    def covered(self, resume: Place | None, now: Mark) -> Mark:
        """Return what a checkpoint covers; None stands for no checkpoint.

        `now`: What has been read so far.
        """
        if resume is None:
            return self._beginning
        for mark in reversed(self._made):
            if mark.place == resume:
                return mark
        older = [mark for mark in self._made if mark.place is not None and mark.place < resume]
        if older or resume in self._arrived:
            # This rank's process ended before it could say what the checkpoint covers. Assume
            # everything that it had read; otherwise it would train on some rows twice.
            return now
        return self._beginning  # made before rows of this stream arrived here

    def go_on(self, resume: Place | None, mark: Mark, rows: int) -> None:
        """Forget checkpoints after `resume`, from which training resumes with this many rows."""
        self._made = [each for each in self._made if each.rows <= mark.rows]
        self._arrived = [each for each in self._arrived if resume is not None and each < resume]
        if resume is not None:
            self._made.append(Mark(resume, rows, mark.section))
            self._arrived = [*self._arrived, resume][-_KEPT:]
