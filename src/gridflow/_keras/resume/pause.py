"""A checkpoint at a step that is agreed on while the training runs.

The process is asked from another thread, and answers at once, whatever its main thread is doing: a
step that waits for peers can take as long as they stand still.
"""

from __future__ import annotations

import threading


class Pause:
    """The steps of a training process, and which of them is to be followed by a checkpoint."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._ended = 0
        self._saves = self._asked = False
        #: Whether no step is made after the checkpoint.
        self.stays = False
        self._after: int | None = None

    # From the thread that hears the agent --------------------------------------------------------

    def ask(self) -> int | None:
        """Return the first step at whose end a checkpoint can be made; there this process waits.

        None: no fit is in progress that would make one, and nothing waits.
        """
        with self._changed:
            self._asked, self._after = self._saves, None
            return self._ended + 1 if self._saves else None

    def agree(self, step: int | None, *, stays: bool) -> None:
        """Let that step be the last before a checkpoint; None: let all go on."""
        with self._changed:
            self._asked, self._after = step is not None, step
            self.stays = stays
            self._changed.notify_all()

    # From the main thread ------------------------------------------------------------------------

    def begin(self, *, saves: bool) -> None:
        """Note that a fit begins, and whether it makes checkpoints between two steps."""
        with self._changed:
            self._saves = saves

    def end(self) -> None:
        """Note that it has ended."""
        self.begin(saves=False)

    def step_ended(self) -> bool:
        """Count a step; stand still as long as it isn't agreed which is the last.

        Returns
        -------
        bool
            Whether it is this one: a checkpoint is to be made now.
        """
        with self._changed:
            self._ended += 1
            # The driver answers; if it is gone, so is the agent, and that ends this process.
            self._changed.wait_for(lambda: not self._asked or self._after is not None)
            is_due = self._asked and self._after is not None and self._ended >= self._after
            if is_due:
                self._asked = False
            return is_due

    def stay(self) -> None:
        """Wait for the end of this process where no step is to be made any more."""
        with self._changed:
            self._changed.wait_for(lambda: not self.stays)
