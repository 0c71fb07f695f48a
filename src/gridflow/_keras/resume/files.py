"""The checkpoint files of a process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gridflow.errors import GridflowError

if TYPE_CHECKING:
    from pathlib import Path

    from gridflow._keras.resume.checkpoint_file import Checkpoint
    from gridflow._keras.runtime import Runtime
    from gridflow._spec.place import Place

#: Files kept on the local disk: the last may still be in transfer to the driver.
_KEPT: Final = 3


class CheckpointFiles:
    """Writes checkpoints in the background, and hands them to the driver."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._files: list[Path] = []

    def write(self, made: Checkpoint, place: Place, *, is_awaited: bool) -> None:
        """Write a checkpoint, unless one of its variables isn't finite.

        `is_awaited`: Whether the driver has asked for it.
        """
        self._runtime.writer.submit(lambda: self._write(made, place, is_awaited=is_awaited))

    def _write(self, made: Checkpoint, place: Place, *, is_awaited: bool) -> None:
        variable = made.not_finite()  # here, as it takes longer than to copy the variables
        if variable:
            self._refuse(variable, place, is_awaited=is_awaited)
            return
        path = self._runtime.work_dir / f"checkpoint-{place.fit}-{place.epoch}-{place.step}.npz"
        made.write(path)
        self._runtime.checkpoint(path, place, is_awaited=is_awaited)
        self._files = [each for each in self._files if each != path] + [path]
        while len(self._files) > _KEPT:
            self._files.pop(0).unlink(missing_ok=True)

    def _refuse(self, variable: str, place: Place, *, is_awaited: bool) -> None:
        """Make no checkpoint, so that the last one with finite values stays the newest."""
        if self._runtime.saves_sections:  # whoever pushes rows waits until they are covered
            raise GridflowError(
                f"the variable {variable!r} isn't finite (NaN or infinity) after the rows of this "
                "section, so there is no checkpoint that covers them. Look for values in them "
                "that aren't finite, or lower the learning rate."
            )
        self._runtime.not_finite(place, variable, is_awaited=is_awaited)
