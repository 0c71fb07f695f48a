"""The same training on every target: processes started with each target's own variables.

Only the names of the targets' networks are replaced, by ports of this host.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from environments import ENVIRONMENTS, on_this_host, processes
from jobs import flights

from gridflow.job import Role

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).parent / "programs" / "train.py"
DEADLINE = 240


def start(found, folder):
    """Start the processes of a job; gridflow's command runs from this interpreter."""
    running = []
    for role, index, env, words in found:
        assert words[0] == "gridflow"
        command = [sys.executable, "-m", "gridflow.cli", *words[1:]]
        with (folder / f"{role}-{index}.log").open("wb") as log:
            environ = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1", **env}
            running.append(subprocess.Popen(command, env=environ, stdout=log, stderr=log))
    return running


def train(target, folder):
    """Train on a target and return what each worker ended with."""
    job = flights(
        command=[sys.executable, str(PROGRAM), str(folder)], args=[], roles={"worker": Role(2)}
    )
    results = [folder / f"worker-{index}.json" for index in range(2)]
    running = start(on_this_host(processes(job, target)), folder)
    try:
        end = time.monotonic() + DEADLINE
        while not all(path.exists() for path in results) and time.monotonic() < end:
            assert all(p.poll() in {None, 0} for p in running), logs(folder)
            time.sleep(0.1)
        if target == "marathon":
            # Marathon would start an ended task again, so its launchers stay until they are told.
            for process in running:
                process.send_signal(signal.SIGTERM)
        assert [p.wait(timeout=DEADLINE) for p in running] == [0, 0], logs(folder)
    finally:
        for process in running:
            process.kill()
            process.wait()
    return [json.loads(path.read_text()) for path in results]


def logs(folder):
    return "\n".join(path.read_text() for path in sorted(folder.glob("*.log")))


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    return train("local", tmp_path_factory.mktemp("local"))


def test_local_trains_on_both_workers(reference):
    first, second = reference
    assert first == second
    assert first["workers"] == 2
    assert first["weights"] != [0.0, 0.0, 0.0]


@pytest.mark.parametrize("target", [name for name in ENVIRONMENTS if name != "local"])
def test_a_target_trains_as_local_does(target, reference, tmp_path):
    assert train(target, tmp_path) == reference
