"""A checkpoint at a step that the ranks agree on while training runs.

The request comes from another thread and is answered at once, whatever the main thread is doing: a
step that waits for peers may take as long as they do.
"""

from __future__ import annotations

import threading


class Pause:
    """The steps of a training process, and which of them is followed by a checkpoint."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._ended = 0
        self._saves = self._asked = False
        #: Whether the process makes no step after the checkpoint.
        self.stays = False
        self._after: int | None = None

    # From the thread that hears the agent --------------------------------------------------------

    def ask(self) -> int | None:
        """Return the first step after which a checkpoint can be made, where this process waits.

        None if no fit is in progress that makes checkpoints; then nothing waits.
        """
        with self._changed:
            self._asked, self._after = self._saves, None
            return self._ended + 1 if self._saves else None

    def agree(self, step: int | None, *, stays: bool) -> None:
        """Set the last step before a checkpoint; None lets the process continue."""
        with self._changed:
            self._asked, self._after = step is not None, step
            self.stays = stays
            self._changed.notify_all()

    # From the main thread ------------------------------------------------------------------------

    def begin(self, *, saves: bool) -> None:
        """Note that a fit starts, and whether it makes checkpoints between steps."""
        with self._changed:
            self._saves = saves

    def end(self) -> None:
        """Note that the fit has ended."""
        self.begin(saves=False)

    def step_ended(self) -> bool:
        """Count a step; wait while the last step isn't agreed on.

        Returns
        -------
        bool
            Whether this is the last step, and a checkpoint must be made now.
        """
        with self._changed:
            self._ended += 1
            # The driver answers. If it is gone, so is the agent, which ends this process.
            self._changed.wait_for(lambda: not self._asked or self._after is not None)
            is_due = self._asked and self._after is not None and self._ended >= self._after
            if is_due:
                self._asked = False
            return is_due

    def stay(self) -> None:
        """If no more steps may be made, wait until the process is ended."""
        with self._changed:
            self._changed.wait_for(lambda: not self.stays)
