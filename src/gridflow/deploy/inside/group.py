"""A job's commands as one group of gridflow's own runtime: on this machine, or on Spark.

The runtime gathers as many tasks as the job has; the task of rank r becomes the r-th role and index
and starts the job's command beside it, through ``gridflow launch``.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gridflow.errors import GridflowError
from gridflow.spec.cluster import EVALUATOR, Task

if TYPE_CHECKING:
    from gridflow.context import TrainingContext
    from gridflow.launch.base import Launcher
    from gridflow.result import Result


@dataclass(frozen=True)
class Group:
    """What the tasks of a group run.

    Attributes
    ----------
    counts : dict of str to int
        Tasks by role, in the order of the ranks.
    commands : dict of str to tuple of str
        By role; empty for a standard server.
    env : dict of str to dict
        By role.
    classic_flags : bool
        Hand the four classic flags to the programs as well.
    finish : dict of str to list of str
        Where servers hear that training is over, by role.
    """

    counts: dict[str, int]
    commands: dict[str, tuple[str, ...]]
    env: dict[str, dict[str, str]] = field(default_factory=dict)
    classic_flags: bool = False
    finish: dict[str, list[str]] = field(default_factory=dict)

    @property
    def members(self) -> list[Task]:
        """The tasks in the order of the ranks."""
        return [Task(role, index) for role, count in self.counts.items() for index in range(count)]

    def run(self, launcher: Launcher | None, *, restarts: int, **settings: Any) -> Result:
        """Run the group to its end.

        Parameters
        ----------
        launcher : Launcher or None
            None is the active Spark session's.
        restarts : int
            How often the whole group is started again.
        **settings
            Further parameters of `gridflow.TensorflowDistributor`.
        """
        from gridflow.distributor import TensorflowDistributor

        distributor = TensorflowDistributor(
            num_workers=len(self.members),
            strategy="none",
            launcher=launcher,
            max_restarts=restarts,
            step_timeout=None,
            progress=False,
            **settings,
        )
        return distributor.run(run_task, self)


def run_task(ctx: TrainingContext, group: Group) -> str:
    """Run one task's command, in one of the runtime's processes; return who it was."""
    members = group.members
    own = members[ctx.rank]
    places = [ctx.cluster_spec.address(task) for task in ctx.cluster_spec.ranks]
    cluster: dict[str, list[str]] = {}
    for task, address in zip(members, places, strict=True):
        if task.role != EVALUATOR:
            cluster.setdefault(task.role, []).append(address)
    environ = {
        **os.environ,
        **group.env.get(own.role, {}),
        "GRIDFLOW_ROLE": own.role,
        "GRIDFLOW_INDEX": str(own.index),
        "GRIDFLOW_CLUSTER": json.dumps(cluster),
        "GRIDFLOW_FINISH": json.dumps(group.finish),
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    environ.pop("TF_CONFIG", None)
    words = [sys.executable, "-m", "gridflow.cli", "launch"]
    words += ["--classic-flags"] if group.classic_flags else []
    command = group.commands[own.role]
    words += ["--", *command] if command else []
    code = subprocess.run(words, env=environ, check=False).returncode
    if code:
        number = code - 128
        why = f" (signal {signal.Signals(number).name})" if number in set(signal.Signals) else ""
        what = " ".join(command) or "the standard server"
        raise GridflowError(f"{own} ended with exit code {code}{why}: {what}")
    return str(own)
