"""Ends a ``fit`` on all ranks after the same step or epoch if a callback stops it on some.

A rank that stops alone would leave the others in a step that never ends. So a rank that wants to
stop asks first and waits, and the others are asked at which point they could stop. Points are
numbered, two for each step: its end (2, 4, 6 …), and the end of the epoch that it may complete (3,
5, 7 …). The answer is the latest point that any rank has named: none has passed it.
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
        Sends messages to the driver.
    """

    def __init__(self, send: Callable[[CanStop], object]) -> None:
        self._send = send
        self._changed = threading.Condition()
        self._fit, self._point, self._is_in_fit = -1, 0, False
        #: Whether this rank has named a point and waits there, and the agreed point.
        self._is_asked = False
        self._agreed: int | None = None

    # From the thread that hears the agent --------------------------------------------------------

    def ask(self, told: AskToStop) -> None:
        """Name the next point, where this rank will wait, if the fit is still in progress."""
        with self._changed:
            if self._is_asked:
                return
            can = self._is_in_fit and told.fit == self._fit
            self._is_asked = can
            self._send(CanStop(told.fit, self._point + 1 if can else -1))

    def agree(self, told: StopAt) -> None:
        """End the fit at a point."""
        with self._changed:
            if told.fit == self._fit:
                self._agreed = told.point
                self._changed.notify_all()

    # From the main thread ------------------------------------------------------------------------

    def begin(self) -> None:
        """Start a fit that involves all ranks."""
        with self._changed:
            self._fit, self._point, self._is_in_fit = self._fit + 1, 0, True
            self._is_asked, self._agreed = False, None

    def end(self) -> None:
        """End the fit."""
        with self._changed:
            self._is_in_fit = False

    def reach(self, *, ends_epoch: bool, wants: bool) -> bool:
        """Reach the end of a step or epoch; return whether all ranks stop here."""
        with self._changed:
            self._point = self._point | 1 if ends_epoch else (self._point | 1) + 1
            if wants and not self._is_asked:
                self._is_asked = True
                self._send(CanStop(self._fit, self._point, wants=True))
            # The driver answers. If it is gone, so is the agent, which ends this process.
            self._changed.wait_for(lambda: not self._is_asked or self._agreed is not None)
            return self._agreed is not None and self._point >= self._agreed
