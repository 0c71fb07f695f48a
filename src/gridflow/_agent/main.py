"""An agent as a plain process, ``python -m gridflow._agent.main``; a pipe brings its payload."""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import sys
from typing import NoReturn

from gridflow._agent.agent import Agent
from gridflow._agent.guardian import PR_SET_PDEATHSIG


def main(parent: int | None = None) -> None:
    """Run one agent until its job ends, or its driver does.

    `parent`: The process that forked this one. It ends with that process. Default: the driver.
    """
    # From the parent's own pipe: no one else can write to it.
    payload, rank, rows, driver = pickle.load(sys.stdin.buffer)  # noqa: S301
    signal.signal(signal.SIGTERM, _end)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != (parent or driver):
        _end()
    Agent(payload, rank, owner=driver).run(() if rows is None else rows.batches())


def _end(*_: object) -> NoReturn:
    """Unwind, so that everything is cleaned up."""
    raise SystemExit(143)


if __name__ == "__main__":
    main()
