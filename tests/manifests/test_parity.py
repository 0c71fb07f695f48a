"""The same training on every target: who is who by each target's own variables, and the training.

What a target decides is who each process is, which is compared for all of them. Training itself is
tried on two, whose processes are started with the target's variables; ``--all`` trains on every
one. Only the names of the targets' networks are replaced, by ports of this host.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from environments import ENVIRONMENTS, mesos_words, on_this_host, processes
from jobs import flights

from gridflow._spec.cluster import in_order
from gridflow.deploy import Role, TensorBoard, render
from gridflow.deploy.drivers.in_process import run_in_process
from gridflow.deploy.inside.identity import identify
from suite.waiting import patience, wait_for

PROGRAM = Path(__file__).parent / "programs" / "train.py"

OTHERS = [name for name in ENVIRONMENTS if name != "local"]


def identities(target):
    """Return who each process of a job is, and whom it knows, by role and index."""
    roles = {"chief": Role(), "worker": Role(2), "ps": Role(2), "evaluator": Role()}
    job = flights(command=["python", "train.py"], args=[], roles=roles)
    found = {}
    for _, _, env, words in processes(job, target):
        who = identify(env, words)
        known = {role: in_order(hosts) for role, hosts in who.cluster.items()}
        assert who.own_address in [*known.get(who.role, []), None]
        found[str(who)] = known
    return found


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
        wait_for(
            lambda: (
                all(path.exists() for path in results)
                or any(process.poll() not in {None, 0} for process in running)
            ),
            "what the workers have learned",
            seen=lambda: logs(folder),
        )
        if target == "marathon":
            # Marathon would start an ended task again, so gridflow launch stays until it is told.
            for process in running:
                process.send_signal(signal.SIGTERM)
        assert [p.wait(timeout=patience()) for p in running] == [0, 0], logs(folder)
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


def sizes(found):
    """Return how many tasks of each role each process knows of."""
    return {
        task: {role: len(hosts) for role, hosts in knows.items()} for task, knows in found.items()
    }


def test_local_tells_every_process_who_it_is():
    found = identities("local")
    assert sorted(found) == ["chief:0", "evaluator:0", "ps:0", "ps:1", "worker:0", "worker:1"]
    assert sizes(found)["chief:0"] == {"chief": 1, "ps": 2, "worker": 2}


@pytest.mark.parametrize("target", OTHERS)
def test_a_target_tells_every_process_who_it_is_as_local_does(target):
    found = identities(target)
    assert sizes(found) == sizes(identities("local"))
    # All speak of the same places, each of one task.
    (places,) = {json.dumps(known, sort_keys=True) for known in found.values()}
    everyone = [address for hosts in json.loads(places).values() for address in hosts]
    assert len(set(everyone)) == len(everyone)


@pytest.mark.slow
def test_run_tells_every_process_who_it_is_as_the_rendered_script_does(tmp_path):
    command = [sys.executable, str(PROGRAM.with_name("tell.py")), str(tmp_path), "6"]
    roles = {"chief": Role(), "worker": Role(2), "ps": Role(2, command=command)}
    roles["evaluator"] = Role()
    job = flights(command=command, args=[], roles=roles, classic_flags=True)
    assert run_in_process(job, "local") == 0
    found = {}
    for path in tmp_path.glob("*.json"):
        variables, flags = json.loads(path.read_text())
        who = identify(variables)
        assert tuple(flags) == who.flags
        by_variables = identify({k: v for k, v in variables.items() if k != "TF_CONFIG"})
        assert by_variables.tf_config == who.tf_config
        found[str(who)] = {role: in_order(hosts) for role, hosts in who.cluster.items()}
    assert sizes(found) == sizes(identities("local"))


@pytest.mark.slow
def test_local_trains_on_both_workers(reference):
    first, second = reference
    assert first == second
    assert first["workers"] == 2
    assert first["weights"] != [0.0, 0.0, 0.0]


@pytest.mark.slow
@pytest.mark.parametrize("target", OTHERS)
def test_a_target_trains_as_local_does(target, reference, tmp_path):
    assert train(target, tmp_path) == reference


@pytest.mark.parametrize("entrypoint", [[], ["gridflow", "launch"], ["/entrypoint.sh"]])
def test_marathon_starts_the_same_in_any_image(entrypoint):
    """With an entrypoint that is our own, with another, and with none (TensorBoard's image)."""
    board = TensorBoard(log_dir="gs://bucket/logs")
    job = flights(command=["sh", "-c", "echo 'it''s' $HOME"], args=[], tensorboard=board)
    *tasks, beside = render(job, "marathon").documents[0].content["apps"]
    (task,) = tasks
    assert (task["instances"], beside["instances"]) == (1, 1)
    words = mesos_words(task, entrypoint, ["bash"])
    assert words[:2] == ["gridflow", "launch"]
    assert words[words.index("--") + 1 :] == ["sh", "-c", "echo 'it''s' $HOME"]
    assert mesos_words(beside, entrypoint, ["bash"])[0] == "tensorboard"
