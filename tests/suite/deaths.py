"""Deaths of tasks, from outside."""

from __future__ import annotations

from types import SimpleNamespace

from gridflow.testing.deaths import process_of
from suite.waiting import wait_for


def kill_as_it_starts(handle, task):
    """Kill a process before all have met."""
    job = SimpleNamespace(job=handle._run.job.id)

    def process_that_starts():
        return handle.state == "starting" and process_of(job, task)

    wait_for(process_that_starts, task, ignoring=(ProcessLookupError,)).kill()
