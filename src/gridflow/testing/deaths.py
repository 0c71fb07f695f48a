"""Deaths of tasks, to see what a job makes of them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from gridflow._agent.folder import task_prefix
from gridflow._agent.process import TRAINING_PROGRAM
from gridflow._spec.cluster import Task
from gridflow._wire.channel import AGENT_VARIABLE

if TYPE_CHECKING:
    from gridflow._training.context import TrainingContext


def agent_of_this_task() -> int:
    """Return the process id of the agent of the task that calls it.

    On Spark it is a Python worker, whose parents are Spark's Python daemon and the executor.

    Raises
    ------
    KeyError
        The caller isn't a training process.
    """
    return int(os.environ[AGENT_VARIABLE])


def kill_task(ctx: TrainingContext, task: str) -> int:
    """Kill the training process of a task of this job, as SIGKILL or a lack of memory would.

    Parameters
    ----------
    ctx : TrainingContext
        Of the caller's task.
    task : str
        Such as ``"worker:1"``; it must run on the caller's machine.

    Returns
    -------
    int
        The process's id.

    Raises
    ------
    InvalidArgument
        `task` is not the name of a task.
    ProcessLookupError
        The task has no process on this machine.
    """
    import psutil

    prefix = task_prefix(ctx.job, Task.parse(task))
    for process in psutil.process_iter():
        try:
            # Behind the interpreter: the guardian's command line names the program, too.
            if process.cmdline()[1:] == TRAINING_PROGRAM and prefix in process.cwd():
                process.kill()
                return int(process.pid)
        except psutil.Error:
            continue
    raise ProcessLookupError(f"{task} has no training process on this machine.")
