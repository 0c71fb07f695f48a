"""Whole jobs on a host with stand-in GPUs: what the user's function sees."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path

import pytest

from gridflow import Role, SparkLauncher, TensorflowDistributor, errors
from gridflow.testing.deaths import agent_of_this_task
from suite.waiting import wait_for

NAMES = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "XLA_PYTHON_CLIENT_MEM_FRACTION")


def look(ctx, folder):
    """Write down what this task sees."""
    seen = {name: os.environ.get(name) for name in NAMES}
    seen = {"addresses": ctx.gpus, "generation": ctx.generation, **seen}
    path = Path(folder) / str(ctx.task).replace(":", "-")
    path.with_suffix(f".{ctx.generation}.json").write_text(json.dumps(seen))
    return seen


def seen_in(folder):
    """Return what the tasks wrote, by task and generation."""
    return {path.name[:-5]: json.loads(path.read_text()) for path in folder.glob("*.json")}


@pytest.fixture
def folder(tmp_path):
    """Give a folder for the tasks to write in."""
    folder = tmp_path / "seen"
    folder.mkdir()
    return folder


@pytest.mark.parametrize(("workers", "gpus"), [(3, 1), (2, 2)])
def test_each_worker_sees_its_own(host, distribute, folder, workers, gpus):
    host.has(4)
    distribute(workers, gpus=gpus).run(look, str(folder))
    seen = seen_in(folder).values()
    addresses = [address for each in seen for address in each["addresses"]]
    assert len(addresses) == len(set(addresses)) == workers * gpus
    for each in seen:
        assert each["CUDA_VISIBLE_DEVICES"] == ",".join(each["addresses"])
        assert each["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "-1"),
        ({"gpus": 0}, "-1"),
        ({"env": {"CUDA_VISIBLE_DEVICES": "1"}}, "1"),
    ],
)
def test_without_gpus_a_stale_variable_means_nothing(
    host, distribute, folder, monkeypatch, options, expected
):
    host.has(2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert distribute(**options).run(look, str(folder)).value["CUDA_VISIBLE_DEVICES"] == expected


def test_the_hosts_own_choice_holds_for_jobs(host, distribute, folder, monkeypatch):
    host.has(4)
    for choice, address in (("2,3", "2"), ("1", "1")):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", choice)
        assert distribute(gpus=1).run(look, str(folder)).value["addresses"] == (address,)


def test_an_evaluator_sees_none_even_by_the_jobs_environment(host, distribute, folder):
    roles = [("worker", 1), ("evaluator", 1)]
    distribute(roles=roles, env={"CUDA_VISIBLE_DEVICES": "1"}).run(look, str(folder))
    seen = {name: each["CUDA_VISIBLE_DEVICES"] for name, each in seen_in(folder).items()}
    assert seen == {"worker-0.0": "1", "evaluator-0.0": "-1"}


def meet(ctx, folder, names):
    """Stay until the tasks of both jobs are there; say what was seen."""
    seen = look(ctx, folder)
    there = Path(folder).parent
    wait_for(lambda: len(list(there.glob("*/*.json"))) >= names, f"{names} tasks")
    wait_for((there / "go").exists, "the word to go on")
    return seen


def test_jobs_at_the_same_time_share_no_gpu(host, distribute, folder):
    host.has(4)
    places = [folder / name for name in "ab"]
    failed = []

    def run(place):
        place.mkdir()
        try:
            distribute(2, gpus=1).run(meet, str(place), 4)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(place,)) for place in places]
    for thread in threads:
        thread.start()
    try:
        wait_for(lambda: len(list(folder.glob("*/*.json"))) == 4 or failed, "both jobs' tasks")
        with pytest.raises(errors.NotEnoughGpus, match=f"0 are free on {host.name}.* by job"):
            distribute(1, gpus=0.5).plan(look, "")
    finally:
        (folder / "go").touch()
        for thread in threads:
            thread.join()
    assert not failed
    addresses = [each["addresses"] for place in places for each in seen_in(place).values()]
    assert sorted(addresses) == [["0"], ["1"], ["2"], ["3"]]
    assert host.locks.owners(host.devices) == []


def die(ctx, folder, what):
    """Kill this process, or the agent, in the first generation."""
    seen = look(ctx, folder)
    if ctx.generation == 0 and ctx.rank == 1:
        os.kill(agent_of_this_task() if what == "agent" else os.getpid(), signal.SIGKILL)
    return seen


@pytest.mark.parametrize("what", ["process", "agent"])
def test_whoever_is_killed_its_gpu_is_there_for_the_next_generation(host, distribute, folder, what):
    host.has(2)
    result = distribute(2, gpus=1, max_restarts=1).run(die, str(folder), what)
    assert len(result.attempts) == 2
    seen = seen_in(folder)
    assert {*seen["worker-0.1"]["addresses"], *seen["worker-1.1"]["addresses"]} == {"0", "1"}
    assert host.locks.owners(host.devices) == []


def test_a_part_of_a_gpu_is_a_part_of_its_memory(host, distribute, folder):
    host.has(1, memory=16384)
    seen = distribute(gpus=0.5).run(look, str(folder)).value
    assert seen["addresses"] == ("0",)
    assert seen["XLA_PYTHON_CLIENT_MEM_FRACTION"] == "0.45"


def test_more_than_there_are_is_an_error_at_the_call(host, distribute):
    host.has(2)
    with pytest.raises(errors.NotEnoughGpus, match=f"need 3 GPUs, but {host.name} has 2") as caught:
        distribute(3, gpus=1).run(look, "")
    assert (caught.value.required, caught.value.available) == (3, 2)
    assert host.locks.owners(host.devices) == []


def test_a_host_without_a_driver_is_an_error_at_the_call(host, distribute, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(errors.NotEnoughGpus, match="nvidia-smi isn't on the PATH"):
        distribute(gpus=1).run(look, "")


def test_an_executor_without_gpus_is_named_by_its_agent(spark):
    distributor = TensorflowDistributor(
        roles=[Role("worker", 2, gpus=1)],
        strategy="none",
        launcher=SparkLauncher(spark),
        logs="none",
        progress=False,
    )
    with pytest.raises(errors.NotEnoughGpus, match="no GPU found on .*nvidia-smi") as caught:
        distributor.run(look, "")
    assert {failure.kind for failure in caught.value.failures} == {"gpus"}
    assert caught.value.failures[0].host


def test_one_tasks_gpus_are_taken_beside_one_that_takes_none(host, distribute, folder):
    host.has(1)
    distribute(roles=[("chief", 1, 0), ("worker", 1, 1)]).run(look, str(folder))
    seen = {name: each["CUDA_VISIBLE_DEVICES"] for name, each in seen_in(folder).items()}
    assert seen == {"chief-0.0": "-1", "worker-0.0": "0"}


@pytest.mark.slow
def test_gpus_in_a_job_yaml_are_granted_to_their_role_alone(host, tmp_path, capfd):
    from gridflow.cli import main

    host.has(2)
    show = "echo $GRIDFLOW_ROLE:$GRIDFLOW_INDEX sees $CUDA_VISIBLE_DEVICES"
    path = tmp_path / "job.yaml"
    path.write_text(f"""
name: flights
command: [sh, -c, "{show}"]
roles:
  worker: {{replicas: 2, resources: {{gpu: 1}}}}
  evaluator: {{}}
""")
    assert main(["run", "-t", "local", str(path)]) == 0
    lines = [line.partition("] ")[2].strip() for line in capfd.readouterr().out.splitlines()]
    seen = dict(line.split(" sees ") for line in lines if " sees " in line)
    assert sorted([seen["worker:0"], seen["worker:1"]]) == ["0", "1"]
    assert seen["evaluator:0"] == "-1"


def test_more_gpus_in_a_job_yaml_than_there_are_is_refused_at_the_call(host, tmp_path, capfd):
    from gridflow._spec.exits import Exit
    from gridflow.cli import main

    host.has(1)
    path = tmp_path / "job.yaml"
    path.write_text("""
name: flights
command: [sh, -c, "echo started"]
roles: {worker: {replicas: 2, resources: {gpu: 1}}}
""")
    assert main(["run", "-t", "local", str(path)]) == Exit.SLOTS
    out, err = capfd.readouterr()
    assert "the job's tasks need 2 GPUs" in err
    assert "started" not in out
