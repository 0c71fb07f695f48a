"""Agents that are forked on the driver's machine: what they share with it, and what they don't."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from gridflow import LaunchOptions, LocalLauncher, TensorflowDistributor
from gridflow._agent.forkserver import client
from gridflow._launch import local
from gridflow.errors import TaskLost
from suite.waiting import patience, wait_for

pytestmark = pytest.mark.slow

SERVER = ["gridflow._agent.forkserver.server", "agent"]
AGENT_PID = "GRIDFLOW_AGENT_PID"


@pytest.fixture
def run():
    """Run a function on this machine."""

    def call(function, num_workers=1, **options):
        distributor = TensorflowDistributor(
            num_workers, "none", launcher=LocalLauncher(), logs="none", progress=False, **options
        )
        return distributor.run(function)

    return call


@pytest.fixture
def fresh_server():
    """Let the next launch start a server, and end it."""

    client.retire_all(patience())
    yield
    client.retire_all(patience())


def facts_of_agent():
    """Return what the agent of this training process is, and its parent's id."""
    agent = psutil.Process(int(os.environ["GRIDFLOW_AGENT_PID"]))
    status = Path(f"/proc/{agent.pid}/status").read_text()
    kinds = [os.readlink(f"/proc/{agent.pid}/fd/{place}").partition(":")[0] for place in (0, 1, 2)]
    return agent.ppid(), {
        "command": agent.cmdline(),
        "environment": agent.environ().get("OF_THE_DRIVER"),
        "folder": agent.cwd(),
        "path": os.environ["PYTHONPATH"],  # what the agent can import
        "umask": status.partition("Umask:")[2].split()[0],
        "signals": [status.partition(f"Sig{kind}:")[2].split()[0] for kind in ("Blk", "Ign")],
        "leads its session": os.getsid(agent.pid) == agent.pid,
        "first three": [kind if kind.startswith("/dev") else "" for kind in kinds],
    }


def is_alive(pid):
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_agents_come_from_one_process_and_are_what_started_ones_are(
    run, fresh_server, tmp_path, monkeypatch
):
    monkeypatch.setattr(sys, "path", [*sys.path, sys.path[-1]])  # it is there twice
    facts = facts_of_agent
    server, first = run(lambda: facts()).value
    assert psutil.Process(server).cmdline()[2:4] == SERVER
    monkeypatch.chdir(tmp_path)
    before = os.umask(0o027)
    try:
        again, forked = run(lambda: facts(), num_workers=2).value
        parent, started = run(lambda: facts(), launch_options=LaunchOptions(warm_seconds=0)).value
    finally:
        os.umask(before)
    assert again == server
    assert parent == os.getpid()
    assert forked == started
    assert (forked["folder"], forked["umask"]) == (str(tmp_path), "0027")
    assert first["folder"] != forked["folder"]


def test_what_libraries_may_see_at_import_makes_another_process(run, fresh_server, monkeypatch):
    facts = facts_of_agent
    server, _ = run(lambda: facts()).value
    monkeypatch.setenv("OF_THE_DRIVER", "new")
    other, found = run(lambda: facts()).value
    assert other != server
    wait_for(lambda: not is_alive(server), "the end of the server")  # nobody asks it any more
    assert Path(f"/proc/{other}/environ").read_text().count("OF_THE_DRIVER=new") == 1
    assert found["environment"] == "new"


def test_it_ends_when_it_was_idle(run, fresh_server):
    facts, soon = facts_of_agent, LaunchOptions(warm_seconds=2)
    server, _ = run(lambda: facts(), launch_options=soon).value
    assert server != os.getpid()
    wait_for(lambda: not is_alive(server), "the end of the server")
    assert run(lambda: facts(), launch_options=soon).value[0] not in {server, os.getpid()}


def test_an_agent_that_is_killed_is_named_with_the_signal(run, fresh_server):
    def kill():
        os.kill(int(os.environ["GRIDFLOW_AGENT_PID"]), signal.SIGKILL)
        time.sleep(60)

    with pytest.raises(TaskLost, match="its agent was killed by SIGKILL"):
        run(kill, max_restarts=0)


def test_with_the_process_that_forked_them_agents_end_and_the_next_job_runs(run, fresh_server):
    def kill():
        agent = psutil.Process(int(os.environ["GRIDFLOW_AGENT_PID"]))
        agent.parent().kill()
        time.sleep(60)

    with pytest.raises(TaskLost, match="its agent"):
        run(kill, max_restarts=0)
    assert run(lambda: "trained").value == "trained"


def test_a_process_that_may_not_be_forked_is_none(run, fresh_server, tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text(
        "import sys, threading, time\n"
        f"if sys.orig_argv[2:4] == {SERVER!r}:\n"
        "    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(local, "_is_hopeless", False)
    facts = facts_of_agent
    parent, found = run(lambda: facts()).value
    assert parent == os.getpid()
    assert found["command"][-1] == "gridflow._agent.main"


def test_nothing_stays_when_the_driver_is_killed(tmp_path):
    program = f"""
        import os, time
        from pathlib import Path
        from gridflow import LocalLauncher, TensorflowDistributor

        def train(ctx):
            agent = os.environ["GRIDFLOW_AGENT_PID"]
            Path({str(tmp_path)!r}, f"rank-{{ctx.rank}}").write_text(f"{{agent}} {{os.getpid()}}")
            time.sleep(600)

        TensorflowDistributor(2, "none", launcher=LocalLauncher(), logs="none").run(train)
    """
    driver = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)])
    try:
        places = [tmp_path / f"rank-{rank}" for rank in range(2)]
        wait_for(
            lambda: all(place.exists() and place.read_text() for place in places), "both ranks"
        )
        there = [int(each) for place in places for each in place.read_text().split()]
        there.append(psutil.Process(there[0]).ppid())
        assert all(is_alive(each) for each in there)
    finally:
        driver.kill()
        driver.wait()
    wait_for(lambda: not any(map(is_alive, there)), "the end of all processes")
