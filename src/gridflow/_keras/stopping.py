"""A ``fit`` that a callback ends on some ranks: all end it after the same step, or epoch.

A rank that stops alone leaves the others in a step that never ends. So one that wants to stop asks
first, and waits; those that want to go on are asked at which point they could. Points are counted,
two for each step: its end (2, 4, 6 …), and the end of an epoch that it may be the last of (3, 5, 7
…). The answer is the last point that any has named: none has gone beyond it.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from gridflow._wire.ranks import CanStop

if TYPE_CHECKING:
    from collections.abc import Callable

    from gridflow._wire.commands import AskToStop, StopAt


class Stopping:
    """The points at which fits of this process can end.

    Parameters
    ----------
    send : callable
        Takes what the driver is to hear.
    """

    def __init__(self, send: Callable[[CanStop], object]) -> None:
        self._send = send
        self._changed = threading.Condition()
        self._fit, self._point, self._is_in_fit = -1, 0, False
        #: Whether this rank has named a point and waits there, and the one that was agreed on.
        self._is_asked = False
        self._agreed: int | None = None

    # From the thread that hears the agent --------------------------------------------------------

    def ask(self, told: AskToStop) -> None:
        """Name the next point, if the fit is still in progress; there this rank waits."""
        with self._changed:
            if self._is_asked:
                return
            can = self._is_in_fit and told.fit == self._fit
            self._is_asked = can
            self._send(CanStop(told.fit, self._point + 1 if can else -1))

    def agree(self, told: StopAt) -> None:
        """Let the fit end at a point."""
        with self._changed:
            if told.fit == self._fit:
                self._agreed = told.point
                self._changed.notify_all()

    # From the main thread ------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin a fit that takes all ranks."""
        with self._changed:
            self._fit, self._point, self._is_in_fit = self._fit + 1, 0, True
            self._is_asked, self._agreed = False, None

    def end(self) -> None:
        """End it."""
        with self._changed:
            self._is_in_fit = False

    def reach(self, *, ends_epoch: bool, wants: bool) -> bool:
        """Come to the end of a step, or of an epoch; return whether all stop here."""
        with self._changed:
            self._point = self._point | 1 if ends_epoch else (self._point | 1) + 1
            if wants and not self._is_asked:
                self._is_asked = True
                self._send(CanStop(self._fit, self._point, wants=True))
            # The driver answers; if it is gone, so is the agent, and that ends this process.
            self._changed.wait_for(lambda: not self._is_asked or self._agreed is not None)
            return self._agreed is not None and self._point >= self._agreed
