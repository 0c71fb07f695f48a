"""Tasks whose names go with them: who is early, late or started again finds the others.

A pod's name resolves from the moment it has an address until it has ended, whatever its container
does (kubernetes/kubernetes, pkg/controller/endpointslice: pods in a terminal phase have no
endpoint). Here a file stands for it, and the launchers are the real ones.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading

import pytest
from environments import TELLING, processes
from jobs import flights

from gridflow.deploy import Role
from gridflow.deploy.inside.finish import call
from gridflow.deploy.inside.identity import identify
from gridflow.deploy.inside.others import Others
from suite.ports import free_ports
from suite.waiting import patience, wait_for

#: gridflow launch in a pod: names are files of a folder, and its own goes with it.
#: While there is a file "silent", no name server answers, and who asks is noted.
POD = """
import pathlib, socket, sys
from gridflow.cli import main

folder, own, *words = sys.argv[1:]
resolve = socket.getaddrinfo

def look_up(host, *rest, **more):
    if host and "." in host and not host[0].isdigit():
        if (pathlib.Path(folder) / "silent").exists():
            (pathlib.Path(folder) / ("asked-" + own)).touch()
            raise socket.gaierror(socket.EAI_AGAIN, "no answer")
        if not (pathlib.Path(folder) / host).exists():
            raise socket.gaierror(socket.EAI_NONAME, f"{host} is gone")
        host = "127.0.0.1"
    return resolve(host, *rest, **more)

socket.getaddrinfo = look_up
try:
    code = main(words)
finally:
    (pathlib.Path(folder) / own).unlink()
sys.exit(code)
"""
_HOST = re.compile(r"([a-z0-9][a-z0-9.-]*):\d+")


class Pods:
    """The pods of a rendered job."""

    def __init__(self, folder, job, target):
        self.folder = folder / "names"
        self.folder.mkdir()
        found = processes(job, target)
        texts = {t for _, _, env, _ in found for n in TELLING for t in [env.get(n, "")]}
        addresses = sorted({m.group() for text in texts for m in _HOST.finditer(text)})
        ports = dict(zip(addresses, free_ports(len(addresses)), strict=True))
        self.found = {}
        for role, index, env, words in found:
            moved = {n: self._moved(v, ports) if n in TELLING else v for n, v in env.items()}
            self.found[f"{role}:{index}"] = moved, words
        self.running = {}

    @staticmethod
    def _moved(text, ports):
        def move(match):
            host = match.group(1)
            return f"{host if '.' in host else host + '.net'}:{ports[match.group()]}"

        return _HOST.sub(move, text)

    def name(self, task):
        env, _ = self.found[task]
        host = identify(env).own_address
        return host.rpartition(":")[0] if host else task.replace(":", "-") + ".net"

    def publish(self, *tasks):
        """Give pods their addresses; their images are still on their way."""
        for task in tasks or self.found:
            (self.folder / self.name(task)).touch()

    def start(self, task, **more):
        self.publish(task)
        env, words = self.found[task]
        clean = {k: v for k, v in os.environ.items() if not k.startswith("GRIDFLOW_")}
        self.running[task] = subprocess.Popen(
            [sys.executable, "-c", POD, str(self.folder), self.name(task), *words[1:]],
            env={**clean, **env, **more},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def kill(self, task):
        process = self.running[task]
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=patience())
        (self.folder / self.name(task)).unlink()

    def ends(self):
        outputs = {t: p.communicate(timeout=patience())[0] for t, p in self.running.items()}
        return {task: p.returncode for task, p in self.running.items()}, outputs


@pytest.fixture
def pods(tmp_path):
    made = []

    def make(target, **changes):
        changes = {"roles": {"worker": Role(2)}, "start_timeout": 40, "args": [], **changes}
        made.append(Pods(tmp_path, flights(**changes), target))
        return made[-1]

    yield make
    for each in made:
        for process in each.running.values():
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.stdout.close()
            process.wait()


#: Everywhere where the names of ended tasks are gone.
NAMED = (
    "kubernetes",
    *(
        pytest.param(each, marks=pytest.mark.slow)
        for each in ("docker", "compose", "swarm", "jobset", "tfjob", "trainjob", "volcano")
    ),
)


@pytest.mark.parametrize("target", NAMED)
def test_a_task_that_ends_early_is_there_until_the_others_have_looked(pods, target, tmp_path):
    group = pods(target, command=["touch", str(tmp_path / "done")])
    group.publish()
    group.start("worker:0")
    wait_for((tmp_path / "done").exists, f"the file {'done'}")
    group.start("worker:1")
    codes, outputs = group.ends()
    assert codes == {"worker:0": 0, "worker:1": 0}, outputs


#: Worker 1 hangs at first; and ends, once started again, when worker 0 runs with it.
PAIR = """
me=$(echo "$TF_CONFIG" | grep -o '"index": [0-9]' | tail -c 2)
echo run >>{0}/runs-$me
if [ $me = 1 ] && [ $(wc -l <{0}/runs-1) = 1 ]; then exec sleep 300; fi
if [ $me = 1 ]; then until [ $(wc -l <{0}/runs-0) = 2 ]; do sleep 0.1; done; fi
"""


@pytest.mark.slow
@pytest.mark.parametrize("target", ["kubernetes", "tfjob"])
def test_a_pod_that_is_lost_near_the_end_is_trained_with_once_more(pods, target, tmp_path):
    """The other one has finished, which a synchronous program could not know."""
    group = pods(target, command=["sh", "-c", PAIR.format(tmp_path)])
    group.start("worker:0")
    group.start("worker:1")
    wait_for((tmp_path / "runs-1").exists, f"the file {'runs-1'}")
    lines = iter(group.running["worker:0"].stdout)
    assert any("waiting for worker:1 to finish" in line for line in lines)
    group.kill("worker:1")
    group.start("worker:1")
    codes, outputs = group.ends()
    assert codes == {"worker:0": 0, "worker:1": 0}, outputs
    assert "another task has restarted" in outputs["worker:0"]
    assert (tmp_path / "runs-0").read_text() == "run\n" * 2


def test_a_silent_name_server_at_the_end_keeps_nobody(pods, tmp_path):
    """The one that ends last is heard once names are looked up again."""
    wait = f"touch {tmp_path}/up; until [ -e {tmp_path}/go ]; do sleep 0.1; done"
    roles = {"chief": Role(command=["sh", "-c", wait]), "worker": Role()}
    group = pods("kubernetes", command=["true"], roles=roles)
    group.publish()
    group.start("worker:0")
    group.start("chief:0")
    wait_for((tmp_path / "up").exists, "the chief's start")
    lines = iter(group.running["worker:0"].stdout)
    assert any("waiting for chief:0 to finish" in line for line in lines)
    (group.folder / "silent").touch()
    (tmp_path / "go").touch()
    asked = group.folder / f"asked-{group.name('chief:0')}"
    wait_for(asked.exists, "the chief's call in vain")
    (group.folder / "silent").unlink()
    codes, outputs = group.ends()
    assert codes == {"chief:0": 0, "worker:0": 0}, outputs
    assert "no sign of" not in outputs["worker:0"]


def test_an_evaluator_that_fails_before_the_workers_listen_ends_them(pods):
    roles = {"worker": Role(2), "evaluator": Role(command=["sh", "-c", "exit 3"])}
    group = pods("kubernetes", command=["sleep", "300"], roles=roles, restart_policy="exit-code")
    group.publish()
    group.start("evaluator:0")
    line = next(text for text in group.running["evaluator:0"].stdout if "failed with" in text)
    assert "exit code 3" in line
    group.start("worker:0")
    group.start("worker:1")
    codes, outputs = group.ends()
    assert codes == {"evaluator:0": 3, "worker:0": 113, "worker:1": 113}, outputs


@pytest.mark.slow
def test_an_evaluator_that_ended_early_is_not_waited_for(pods):
    roles = {"worker": Role(), "evaluator": Role(command=["true"])}
    group = pods("kubernetes", command=["sleep", "2"], roles=roles)
    group.start("worker:0")
    group.start("evaluator:0")
    codes, outputs = group.ends()
    assert codes == {"worker:0": 0, "evaluator:0": 0}
    assert "could not tell" not in outputs["worker:0"]


def test_an_evaluator_waits_for_no_names(pods):
    """It is no part of the cluster that it watches."""
    roles = {"worker": Role(2), "evaluator": Role(command=["true"])}
    group = pods("jobset", roles=roles)
    group.start("evaluator:0")
    assert group.ends()[0] == {"evaluator:0": 0}


@pytest.fixture
def company(monkeypatch):
    """Make what a launcher of one of two workers knows of the other.

    Who is gone is given up at once, and who is out of reach never.
    """
    monkeypatch.setattr("gridflow.deploy.inside.others._TELL_SUCCESS", (0.0, 3600.0))
    monkeypatch.setattr("gridflow.deploy.inside.others._TELL_FAILURE", (0.0, 3600.0))
    with contextlib.ExitStack() as stack:
        ports = free_ports(4)

        def make(index, patience=30.0, variable="GRIDFLOW_MEET", give_up=pytest.fail):
            cluster = {"worker": [f"127.0.0.1:{ports[0]}", f"127.0.0.1:{ports[1]}"]}
            places = {"worker": [f"127.0.0.1:{ports[2]}", f"127.0.0.1:{ports[3]}"]}
            env = {
                "GRIDFLOW_ROLE": "worker",
                "GRIDFLOW_INDEX": str(index),
                "GRIDFLOW_CLUSTER": json.dumps(cluster),
                variable: json.dumps(places),
            }
            others = Others(
                identify(env),
                env,
                patience=patience,
                meets=True,
                over=pytest.fail,
                give_up=give_up,
                absent=pytest.fail,
                say=said.append,
            )
            return stack.enter_context(others)

        said = make.said = []
        make.listens = lambda index: f"127.0.0.1:{ports[2 + index]}"
        yield make


def test_those_who_are_gone_for_good_are_waited_for_as_long_as_a_start_takes(company):
    alone = company(0, patience=0.3)
    assert alone.meet(threading.Event())
    assert "no sign of worker:1 for 0.3 s; ending" in company.said


@pytest.fixture
def silent_names(monkeypatch):
    """Let no name server answer a few times."""
    connect, calls = socket.create_connection, []

    def out_of_reach(address, *rest, **more):
        calls.append(address)
        if len(calls) < 3:
            raise socket.gaierror(socket.EAI_AGAIN, "no answer")
        return connect(address, *rest, **more)

    monkeypatch.setattr(socket, "create_connection", out_of_reach)
    return calls


def test_who_has_ended_is_told_of_the_end_until_it_is_heard(company, silent_names):
    first, second = company(0), company(1)
    first._listener._judge("worker:1", 0)  # it has told so, and waits
    assert first.meet(threading.Event())
    assert second.meet(threading.Event())
    assert len(silent_names) > 2
    assert not any("no sign of" in line for line in company.said)


def test_who_has_ended_and_is_gone_is_told_no_longer(company):
    alone = company(0, patience=3600.0)
    alone._listener._judge("worker:1", 0)
    assert alone.meet(threading.Event())
    assert "could not tell worker:1 that worker:0 has finished; ending" in company.said


def test_who_has_ended_and_waits_is_told_of_a_failure(company, silent_names):
    told = queue.Queue()
    failed = company(0, variable="GRIDFLOW_GIVE_UP")
    company(1, variable="GRIDFLOW_GIVE_UP", give_up=lambda *news: told.put(news))
    failed._listener._judge("worker:1", 0)
    failed.tell(3, threading.Event())
    assert told.get(timeout=patience()) == ("worker:0", 3)


def test_who_has_not_begun_is_told_of_a_failure_once_it_has(company):
    tried = threading.Event()

    class NeverStopped(threading.Event):
        def wait(self, timeout=None):
            tried.set()  # in vain; who has begun and is gone would not be tried once more
            return super().wait(timeout)

    failed = company(0, patience=3600.0, variable="GRIDFLOW_GIVE_UP")
    telling = threading.Thread(target=failed.tell, args=(3, NeverStopped()))
    telling.start()
    assert tried.wait(patience())
    told = queue.Queue()
    company(1, variable="GRIDFLOW_GIVE_UP", give_up=lambda *news: told.put(news))
    assert told.get(timeout=patience()) == ("worker:0", 3)
    telling.join(patience())
    assert not telling.is_alive()


def test_a_start_that_is_told_twice_is_one(company):
    first = company(0)
    for _ in range(2):
        assert call(company.listens(0), task="worker:1", begun="a") is not None
    assert call(company.listens(0), task="worker:1", code=0) is not None
    assert first.meet(threading.Event())
    assert call(company.listens(0), task="worker:1", begun="b") is not None
    assert not first.meet(threading.Event())  # and its end is forgotten


def test_a_group_that_restarts_together_does_so_once(company):
    first = company(0)
    assert call(company.listens(0), task="worker:1", begun="a") is not None
    first.begin(anew=True)
    assert call(company.listens(0), task="worker:1", begun="b") is not None
    assert call(company.listens(0), task="worker:1", code=0) is not None
    assert first.meet(threading.Event())


def test_the_end_of_waiting_ends_it(company):
    alone = company(0, patience=3600.0)
    ending = threading.Event()
    threading.Timer(0.2, ending.set).start()
    assert alone.meet(ending)
    assert not any("no sign of" in line for line in company.said)
