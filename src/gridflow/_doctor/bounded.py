"""Calls that may never return: name lookups, network file systems, a cluster without room."""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


def within(seconds: float, function: Callable[[], T]) -> T:
    """Return what a function returns within some seconds.

    A call that takes longer is left to itself, in a daemon thread.

    Raises `TimeoutError`: It takes longer.
    Raises `Exception`: Whatever the function raises.
    """
    answers: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()

    def call() -> None:
        try:
            answers.put((function(), None))
        except BaseException as error:  # noqa: BLE001  (raised again in the caller's thread)
            answers.put((None, error))

    threading.Thread(target=call, name="gridflow-doctor", daemon=True).start()
    try:
        answer, error = answers.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError(f"no answer within {seconds:g} s") from None
    if error is not None:
        raise error
    return answer  # type: ignore[return-value]  # None only where the function returned it
