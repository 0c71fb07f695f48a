"""The data service on the targets: what is rendered, what is refused, and processes that serve."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from environments import on_this_host, processes
from jobs import TRAINING, flights

from gridflow import InvalidArgument, LocalLauncher, TensorflowDistributor
from gridflow import Role as DistributorRole
from gridflow.deploy import JobError, Role, render
from gridflow.deploy.drivers.in_process import run_in_process
from gridflow.deploy.inside.identity import identify
from suite.data_service import BATCH
from suite.new_process import WITH_SUITE
from suite.ports import free_ports
from suite.waiting import patience

PROGRAM = str(Path(__file__).parent / "programs" / "served.py")
SERVED = {"worker": Role(2), "data": Role(2)}
#: Targets that have no such tasks.
WITHOUT = ("tfjob",)


def test_data_workers_bring_a_dispatcher_and_end_with_the_training():
    job = flights(args=[], roles=SERVED)
    assert list(dict(job.role_items())) == ["worker", "dispatcher", "data"]
    assert job.tasks == 5
    assert job.followers == ("dispatcher", "data")
    assert job.command_of("data") == ()
    assert job.main_role == "worker"


@pytest.mark.parametrize("target", [name for name in TRAINING if name not in WITHOUT])
def test_each_task_knows_who_the_data_service_is(target):
    job = flights(args=[], roles=SERVED)
    if "spark" in target:
        assert "worker=2,dispatcher=1,data=2" in render(job, target).text()
        return
    found = processes(job, target)
    for role, _, env, words in found:
        cluster = json.loads(env["GRIDFLOW_CLUSTER"])
        assert [len(hosts) for hosts in cluster.values()] == [2, 1, 2]
        who = identify(env)
        assert who.data_service == {name: cluster[name] for name in ("dispatcher", "data")}
        assert list(json.loads(who.tf_config)["cluster"]) == ["worker"]
        assert (role in {"dispatcher", "data"}) == (words[-1] != "/app/train.py")


@pytest.mark.parametrize("target", WITHOUT)
def test_where_there_are_no_such_tasks_the_way_out_is_named(target):
    with pytest.raises(JobError, match="use jobset"):
        render(flights(roles=SERVED), target)


@pytest.mark.parametrize(
    ("roles", "words"),
    [
        ({"worker": Role(), "dispatcher": Role()}, "needs data workers"),
        ({"worker": Role(), "data": Role(command=["a"])}, "neither command nor args"),
        ({"worker": Role(), "data": Role(args=["a"])}, "neither command nor args"),
        ({"worker": Role(), "data": Role(), "dispatcher": Role(2)}, "at most one dispatcher"),
        ({"ps": Role(), "data": Role()}, "only the roles data and dispatcher"),
    ],
)
def test_what_is_no_data_service_is_refused(roles, words):
    with pytest.raises(JobError, match=words):
        flights(roles=roles)


def test_a_service_by_itself_is_a_job_without_an_end():
    job = flights(args=[], command=[], roles={"worker": Role(0), "data": Role(2)})
    assert job.followers == ()
    assert job.main_role == "dispatcher"
    (document,) = [each.content for each in render(job, "jobset").documents]
    assert document["spec"]["successPolicy"]["targetReplicatedJobs"] == ["dispatcher"]
    with pytest.raises(JobError, match="the target spark can.t run a standalone data service"):
        run_in_process(job, "spark")


def test_a_task_that_isnt_in_the_service_is_refused():
    cluster = json.dumps({"worker": ["a:1"], "dispatcher": ["d:1"], "data": ["e:1"]})
    env = {"GRIDFLOW_ROLE": "data", "GRIDFLOW_INDEX": "1", "GRIDFLOW_CLUSTER": cluster}
    with pytest.raises(InvalidArgument, match="data:1 isn't in the cluster"):
        identify(env)


def test_a_service_of_its_own_and_that_of_others_are_refused_together():
    with pytest.raises(InvalidArgument, match="leave one of them out"):
        TensorflowDistributor(
            roles=[DistributorRole("worker"), DistributorRole("data")],
            data_service="a:1",
            launcher=LocalLauncher(),
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    "target",
    # Elsewhere a controller ends the service.
    ["compose", "kubernetes", "swarm", "local"],
)
def test_launched_programs_read_through_it_and_it_ends_with_them(target, no_leaks):
    job = flights(command=[sys.executable, PROGRAM], args=[], roles=SERVED)
    running = {}
    for role, index, env, words in on_this_host(processes(job, target)):
        running[f"{role}:{index}"] = subprocess.Popen(
            [sys.executable, "-m", "gridflow.cli", "launch", *words[2:]],
            env={**os.environ, **WITH_SUITE, **env, "CUDA_VISIBLE_DEVICES": "-1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    outputs = {
        name: process.communicate(timeout=patience())[0] for name, process in running.items()
    }
    assert {name: process.returncode for name, process in running.items()} == dict.fromkeys(
        running, 0
    ), outputs
    for name in ("worker:0", "worker:1"):
        assert "found 100 4950" in outputs[name]
        assert "gridflow: this process waited" in outputs[name]
        assert re.search(r"elements: .*from data:[01]", outputs[name])
    for name in ("dispatcher:0", "data:0", "data:1"):
        assert f"training has finished; stopping {name}" in outputs[name]


@pytest.mark.slow
def test_gridflow_run_trains_through_the_service_as_without_it(no_leaks, capfd, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", WITH_SUITE["PYTHONPATH"])
    command = [sys.executable, PROGRAM, "train"]
    job = flights(command=command, args=[], roles={"worker": Role(2), "data": Role(1)})
    assert run_in_process(job, "local") == 0
    differences = re.findall(r"differs by (\S+)", capfd.readouterr().out)
    assert len(differences) == 2
    assert all(float(each) <= 1e-6 for each in differences)


def numbers(ctx, count):
    """Return the numbers that a rank reads."""
    import tensorflow as tf

    dataset = tf.data.Dataset.range(count).batch(BATCH)
    return [n for batch in ctx.data_service(dataset) for n in batch.numpy().tolist()]


@pytest.mark.slow
def test_one_service_works_for_several_jobs(tmp_path, no_leaks):
    (port,) = free_ports(1)
    text = (
        f"name: prepares\nport: {port}\nroles: {{worker: {{replicas: 0}}, data: {{replicas: 1}}}}\n"
    )
    path = tmp_path / "data.yaml"
    path.write_text(text)
    command = [sys.executable, "-m", "gridflow.cli", "run", "-t", "local", str(path)]
    service = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        for _ in range(2):
            distributor = TensorflowDistributor(
                2,
                "none",
                launcher=LocalLauncher(),
                data_service=f"localhost:{port}",
                start_timeout=60,
                logs="none",
                progress=False,
            )
            first, second = distributor.run(numbers, 300).values
            assert sorted(first + second) == list(range(300))
    finally:
        os.killpg(service.pid, signal.SIGINT)
        told = service.communicate(timeout=patience())[1]
    assert f"the data service's address is localhost:{port}" in told
