"""gridflow launch: tasks wait for their peers, and hear of one another's ends."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time

import pytest
from environments import on_this_host, processes
from jobs import flights
from launching import CLUSTER, ENDING, finished, launch

from gridflow._wire import acceptor
from gridflow.deploy import Role
from gridflow.deploy.inside.finish import FinishListener, call
from gridflow.deploy.inside.identity import identify
from gridflow.deploy.inside.others import Absence, longest_back_off, wait_for_peers
from gridflow.errors import StartTimeout
from suite.ports import free_ports
from suite.waiting import patience, wait_for


def test_it_waits_until_every_peer_resolves():
    who = identify(
        {"TF_CONFIG": json.dumps({"cluster": CLUSTER, "task": {"type": "ps", "index": 0}})}
    )
    asked = []

    def resolve(host, _):
        asked.append(host)
        if asked.count(host) < 2:
            raise socket.gaierror

    wait_for_peers(who, 30, threading.Event(), resolve)
    assert sorted(asked) == ["a", "a", "b", "b", "c", "c"]


def test_a_peer_that_never_resolves_is_named_after_the_deadline():
    cluster = json.dumps({"worker": ["localhost:1", "no-such-host.invalid:1"]})
    env = {"GRIDFLOW_ROLE": "worker", "GRIDFLOW_INDEX": "0", "GRIDFLOW_CLUSTER": cluster}
    code, out = finished("--resolve-timeout=0", "--", "true", env=env)
    assert code == 203
    assert "no-such-host.invalid did not resolve in 0 s" in out


def test_peers_that_never_resolve_are_waited_for_as_often_as_the_limit_says():
    cluster = json.dumps({"worker": ["localhost:1", "no-such-host.invalid:1"]})
    env = {"GRIDFLOW_ROLE": "worker", "GRIDFLOW_INDEX": "0", "GRIDFLOW_CLUSTER": cluster}
    options = ("--resolve-timeout=0", "--restart-policy=exit-code", "--restart-limit=1")
    code, out = finished(*options, "--", "true", env=env)
    assert (code, out.count("did not resolve")) == (203, 2)
    # Marathon starts it again, and finds no note that it had finished.
    assert finished("--resolve-timeout=0", "--stay", "--", "true", env=env)[0] == 203


def test_waiting_for_peers_raises_the_start_timeout():
    who = identify(
        {"GRIDFLOW_ROLE": "ps", "GRIDFLOW_INDEX": "0", "GRIDFLOW_CLUSTER": json.dumps(CLUSTER)}
    )

    def never(host, _):
        raise socket.gaierror

    with pytest.raises(StartTimeout, match="c, a, b did not resolve"):
        wait_for_peers(who, 0, threading.Event(), never)


#: Most of them for make test-all: how each tells its processes who they are is quick.
SOME_ENDING = (*ENDING[:1], *(pytest.param(each, marks=pytest.mark.slow) for each in ENDING[1:]))


@pytest.mark.slow  # a launcher for each task, on each target
def test_servers_end_when_all_who_train_have_ended():
    """Two workers, and a parameter server with a program that never ends by itself."""
    roles = {"worker": Role(2), "ps": Role(command=["sleep", "300"], args=[])}
    job = flights(command=["sh", "-c", "exit 0"], args=[], roles=roles)
    for target in ENDING:
        found = on_this_host(processes(job, target))
        running = [launch(*words[2:], env=env) for _, _, env, words in found]
        outputs = [process.communicate(timeout=patience())[0] for process in running]
        assert [process.returncode for process in running] == [0, 0, 0], outputs
        assert "training has finished" in outputs[2]


def ended(job, target, **more):
    """Run a job's processes to their ends; return the exit code and output of each by its name."""
    found = on_this_host(processes(job, target))
    running = {
        f"{role}:{index}": launch(*words[2:], env={**env, **more})
        for role, index, env, words in found
    }
    outputs = {
        name: process.communicate(timeout=patience())[0] for name, process in running.items()
    }
    return {name: process.returncode for name, process in running.items()}, outputs


@pytest.mark.parametrize("target", SOME_ENDING)
def test_an_evaluator_without_end_ends_with_the_training(target):
    roles = {"worker": Role(2), "evaluator": Role(command=["sleep", "300"], args=[])}
    job = flights(command=["true"], args=[], roles=roles)
    codes, outputs = ended(job, target)
    assert set(codes.values()) == {0}
    assert "training has finished; stopping evaluator:0" in outputs["evaluator:0"]


@pytest.mark.parametrize("target", SOME_ENDING)
@pytest.mark.parametrize("policy", ["never", pytest.param("exit-code", marks=pytest.mark.slow)])
def test_a_chief_that_fails_for_good_ends_all_others(target, policy):
    roles = {
        "chief": Role(command=["sh", "-c", "exit 3"]),
        "worker": Role(2),
        "ps": Role(command=["sleep", "300"], args=[]),
    }
    job = flights(command=["sleep", "300"], args=[], roles=roles, restart_policy=policy)
    codes, outputs = ended(job, target)
    assert codes == {"chief:0": 3, "worker:0": 113, "worker:1": 113, "ps:0": 113}
    assert "chief:0 failed permanently with exit code 3" in outputs["ps:0"]


@pytest.mark.parametrize(("before", "final"), [("1", False), ("2", True)])
def test_only_the_last_failure_of_a_pod_ends_the_others(before, final):
    """The Job controller starts the pod again, as often as ``backoffLimitPerIndex`` says."""
    roles = {"chief": Role(command=["sh", "-c", "exit 3"]), "ps": Role()}
    job = flights(roles=roles, args=[], restart_limit=2)
    chief, _ = on_this_host(processes(job, "kubernetes"))
    heard = threading.Event()
    listener = FinishListener(
        json.loads(chief[2]["GRIDFLOW_FINISH"])["ps"][0],
        set(),
        heard.set,
        known=frozenset({"chief:0"}),
    )
    assert finished(*chief[3][2:], env={**chief[2], "GRIDFLOW_FAILURES": before})[0] == 3
    listener.close()
    assert heard.is_set() == final


def test_servers_hear_of_the_chief_only_where_there_is_one():
    (port,) = free_ports(1)
    address = f"127.0.0.1:{port}"
    ended = threading.Event()
    listener = FinishListener(address, {"chief:0"}, ended.set)
    assert call(address, task="worker:0", code=0) is None
    assert not ended.is_set()
    assert call(address, task="chief:0", code=0) is not None
    assert ended.wait(patience())
    listener.close()


def test_servers_miss_a_chief_that_is_lost_without_a_word():
    """Its pod was its Job's last; the headless Service has no name for it any more."""
    names = {"chief": True, "done": False}
    looks = []

    def resolve(host, _):
        looks.append(time.monotonic())
        if not names[host]:
            raise socket.gaierror

    gone = threading.Event()
    lost = []

    def miss(task):
        lost.append(task)
        gone.set()

    awaited = {"chief:0"}
    hosts = {"chief:0": "chief", "worker:0": "done"}
    absence = Absence(hosts, lambda: awaited, 0.4, miss, resolve)
    # Who has told of its end may be gone.
    wait_for(lambda: looks and looks[-1] - looks[0] > 1, "looks for a second")
    names["chief"] = False
    assert gone.wait(patience())
    assert lost == ["chief:0"]
    absence.close()


def test_a_name_may_be_gone_as_long_as_a_restart_takes():
    assert [longest_back_off(limit) for limit in (0, 1, 3, 99)] == [0, 10, 40, 600]


@pytest.mark.parametrize(("role", "expected"), [("worker", 0), ("ps", 64)])
def test_a_finish_port_that_is_taken_ends_only_who_needs_it(role, expected):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"localhost:{taken.getsockname()[1]}"
        cluster = {"worker": ["localhost:1"], "ps": ["localhost:2"]}
        env = {
            "GRIDFLOW_ROLE": role,
            "GRIDFLOW_INDEX": "0",
            "GRIDFLOW_CLUSTER": json.dumps(cluster),
            "GRIDFLOW_FINISH" if role == "ps" else "GRIDFLOW_GIVE_UP": json.dumps(
                {role: [address]}
            ),
        }
        code, out = finished("--", "sh", "-c", "exit 0", env=env)
    assert code == expected
    assert f"can't listen on {address}" in out


def test_garbage_on_the_finish_port_changes_nothing():
    (port,) = free_ports(1)
    ended = threading.Event()
    listener = FinishListener(f"127.0.0.1:{port}", {"worker:0"}, ended.set)
    for garbage in (b"", b"\xff\xfe", b"[1]\n", b'{"task": ["x"]}\n', b"GET / HTTP/1.0\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(garbage)
    assert not ended.is_set()
    assert call(f"127.0.0.1:{port}", task="worker:0", code=0) is not None
    assert ended.wait(patience())
    listener.close()


@pytest.mark.parametrize(
    "garbage",
    [
        b"[" * 1024,
        b'{"task":' * 128,
        b"9" * 1024,
        b'{"task": "worker:0", "code": ' + b"9" * 995,
        b"\x00\xff" * 512,
        b'{"task": ["worker:0"]}\n',
        b'"\\ud800"\n',
    ],
    ids=["depth", "objects", "digits", "long code", "bytes", "list", "surrogate"],
)
def test_no_message_ends_the_finish_port(garbage, no_leaks):
    (port,) = free_ports(1)
    ended = threading.Event()
    listener = FinishListener(f"127.0.0.1:{port}", {"worker:0"}, ended.set)
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(garbage)
        connection.settimeout(patience())
        with contextlib.suppress(OSError):
            assert connection.recv(100) in {b"", b"unknown task\n"}
    assert not ended.is_set()
    assert call(f"127.0.0.1:{port}", task="worker:0", code=0) is not None
    assert ended.wait(patience())
    listener.close()


def test_those_who_say_nothing_dont_keep_the_end_of_training_from_a_server(no_leaks):
    (port,) = free_ports(1)
    ended = threading.Event()
    listener = FinishListener(f"127.0.0.1:{port}", {"worker:0"}, ended.set)
    with contextlib.ExitStack() as stack:
        for _ in range(300):
            stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        assert call(f"127.0.0.1:{port}", task="worker:0", code=0) is not None
        assert ended.wait(patience())
    listener.close()


def test_the_oldest_of_too_many_silent_connections_is_closed(monkeypatch, no_leaks, caplog):
    monkeypatch.setattr(acceptor, "_most_visitors", lambda: 3)
    (port,) = free_ports(1)
    listener = FinishListener(f"127.0.0.1:{port}", {"worker:0"}, lambda: None)
    with contextlib.ExitStack() as stack:
        first, *_ = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(4)
        ]
        first.settimeout(patience())
        assert first.recv(1) == b""
        words = "too many connections at once"
        wait_for(lambda: words in caplog.text, words, seen=lambda: caplog.text)
    listener.close()


def test_a_message_counts_that_comes_in_pieces(no_leaks):
    (port,) = free_ports(1)
    ended = threading.Event()
    listener = FinishListener(f"127.0.0.1:{port}", {"worker:0"}, ended.set)
    with socket.create_connection(("127.0.0.1", port)) as connection:
        for piece in (b'{"task": "wor', b'ker:0", "code": 0}', b"\n"):
            connection.sendall(piece)
        assert connection.recv(100) == b"ok\n"
    assert ended.wait(patience())
    listener.close()
