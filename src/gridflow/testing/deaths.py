"""Kill tasks, to test how a job handles it."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from gridflow._agent.folder import task_prefix
from gridflow._agent.process import TRAINING_PROGRAM
from gridflow._spec.cluster import Task
from gridflow._wire.channel import AGENT_VARIABLE

if TYPE_CHECKING:
    import psutil

    from gridflow._training.context import TrainingContext


def agent_of_this_task() -> int:
    """Return the process id of the calling task's agent.

    On Spark the agent is a Python worker; its ancestors are Spark's Python daemon and the executor.

    Raises
    ------
    KeyError
        If the caller isn't a training process.
    """
    return int(os.environ[AGENT_VARIABLE])


def kill_task(ctx: TrainingContext, task: str) -> int:
    """Kill the training process of a task of this job with SIGKILL, as the OOM killer would.

    Parameters
    ----------
    ctx : TrainingContext
        Context of the calling task.
    task : str
        Name of the task, such as ``"worker:1"``. It must run on the caller's machine.

    Returns
    -------
    int
        Id of the killed process.

    Raises
    ------
    InvalidArgument
        If `task` isn't a task name.
    ProcessLookupError
        If the task has no process on this machine.
    """
    process = process_of(ctx, task)
    process.kill()
    return int(process.pid)


def process_of(ctx: TrainingContext, task: str) -> psutil.Process:
    """Return the training process of a task of this job, as `kill_task` finds it."""
    import psutil

    prefix = task_prefix(ctx.job, Task.parse(task))
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            # Compare all arguments: the guardian's command line contains the program, too.
            if process.cmdline()[1:] == TRAINING_PROGRAM and prefix in process.cwd():
                return process
    raise ProcessLookupError(f"{task} has no training process on this machine")
