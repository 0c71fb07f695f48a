"""gridflow launch, as a container starts it."""

from __future__ import annotations

import os
import subprocess
import sys

from suite.waiting import patience

CLUSTER = {"chief": ["c:1"], "worker": ["a:1", "b:1"], "ps": ["p:1"]}
#: Everywhere where no controller ends the rest of a job.
ENDING = ("local", "compose", "swarm", "kubernetes", "docker")


def launch(*words, env=None, **options):
    """Start gridflow launch as a container would."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith("GRIDFLOW_")}
    return subprocess.Popen(
        [sys.executable, "-m", "gridflow.cli", "launch", *words],
        env={**environ, **(env or {"GRIDFLOW_ROLE": "worker", "GRIDFLOW_INDEX": "0"})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **options,
    )


def finished(*words, env=None):
    """Run gridflow launch to its end; return its exit code and output."""
    process = launch(*words, env=env)
    out, _ = process.communicate(timeout=patience())
    return process.returncode, out
