"""No test holds up a run for ever: where its time limit doesn't end it, its process ends.

pytest-timeout raises an error in the main thread. A test that waits again on that error's way out,
as pyspark does for the job that it was to give up, goes on for ever and isn't named.
"""

from __future__ import annotations

import faulthandler

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key

#: From the error of pytest-timeout on: for what a test and its fixtures clean up.
_GRACE = 90.0


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item):
    """Show where all threads are, and end the process; xdist names the test and goes on."""
    mark = item.get_closest_marker("timeout")
    limit = float(mark.args[0] if mark else item.config.getini("timeout"))
    stderr = item.config.stash[fault_handler_stderr_fd_key]
    faulthandler.dump_traceback_later(limit + _GRACE, file=stderr, exit=True)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()
