"""gridflow launch: who am I, run, map exit codes, restart, end at a deadline, stay."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from environments import on_this_host, processes
from hypothesis import given
from hypothesis import strategies as st
from jobs import flights
from launching import CLUSTER, finished, launch

from gridflow.deploy import Role
from gridflow.deploy.inside.identity import identify
from gridflow.errors import InvalidArgument
from suite.waiting import patience, wait_for

SHOW = "import os; print(os.environ['TF_CONFIG'])"


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        (
            {"TF_CONFIG": json.dumps({"cluster": CLUSTER, "task": {"type": "ps", "index": 0}})},
            "ps:0",
        ),
        (
            {
                "TF_CONFIG": json.dumps(
                    {"cluster": CLUSTER, "task": {"type": "Worker", "index": "1"}}
                )
            },
            "worker:1",
        ),
        ({"GRIDFLOW_ROLE": "worker", "GRIDFLOW_INDEX": "1"}, "worker:1"),
        ({"GRIDFLOW_ROLE": "worker", "JOB_COMPLETION_INDEX": "1"}, "worker:1"),
        ({"REPLICATED_JOB_NAME": "ps", "JOB_COMPLETION_INDEX": "0"}, "ps:0"),
        ({"REPLICATED_JOB_NAME": "node", "JOB_COMPLETION_INDEX": "0"}, "chief:0"),
        ({"GRIDFLOW_ROLE": "worker", "VC_TASK_INDEX": "1", "VK_TASK_INDEX": "1"}, "worker:1"),
        ({"MARATHON_APP_ID": "/flights/worker-1", "HOST": "h", "PORT0": "1"}, "worker:1"),
        ({"GRIDFLOW_TASK_FROM": "AZ_BATCH_TASK_ID", "AZ_BATCH_TASK_ID": "worker-1"}, "worker:1"),
        ({"GRIDFLOW_ROLE": "evaluator", "GRIDFLOW_INDEX": "0"}, "evaluator:0"),
    ],
)
def test_role_and_index_come_from_what_the_target_sets(environ, expected):
    who = identify({"GRIDFLOW_CLUSTER": json.dumps(CLUSTER), **environ})
    assert str(who) == expected
    assert json.loads(who.tf_config)["cluster"] == CLUSTER


@pytest.mark.parametrize("index", ["0", "2"])
def test_a_node_of_a_trainjob_knows_the_others_by_trainers_own_variables(index):
    """What a pod of a ClusterTrainingRuntime with the policy for torch has, and no cluster spec."""
    environ = {
        "JOBSET_NAME": "mine",
        "REPLICATED_JOB_NAME": "node",
        "JOB_COMPLETION_INDEX": index,
        "PET_NNODES": "3",
        "PET_NODE_RANK": index,
    }
    who = identify(environ)
    assert str(who) == f"worker:{index}"
    assert who.cluster == {"worker": [f"mine-node-0-{i}.mine:2222" for i in range(3)]}
    assert identify({**environ, "GRIDFLOW_PORT": "3"}).own_address == f"mine-node-0-{index}.mine:3"


@pytest.mark.parametrize("style", ["--{}={}", "-{}={}", "--{} {}"])
def test_role_and_index_come_from_the_classic_flags_of_the_command(style):
    values = {"job_name": "worker", "task_index": "1", "ps_hosts": "p:1", "worker_hosts": "a:1,b:1"}
    words = [w for item in values.items() for w in style.format(*item).split()]
    who = identify({}, ["python", "mnist.py", *words])
    assert str(who) == "worker:1"
    assert who.cluster == {"worker": ["a:1", "b:1"], "ps": ["p:1"]}
    assert who.flags == tuple(f"--{name}={value}" for name, value in values.items())


def test_the_operators_evaluator_and_master_are_put_right():
    cluster = {"master": ["m:1"], "worker": ["a:1"], "evaluator": ["e:1"]}
    config = {"cluster": cluster, "task": {"type": "master", "index": 0}, "environment": "cloud"}
    who = identify({"TF_CONFIG": json.dumps(config)})
    assert who.cluster == {"chief": ["m:1"], "worker": ["a:1"]}
    assert str(who) == "chief:0"


def test_an_elastic_worker_knows_only_itself_and_the_servers():
    cluster = {"worker": {"3": "w3:1"}, "ps": ["p:1"]}
    config = {"cluster": cluster, "task": {"type": "worker", "index": 3}}
    who = identify({"TF_CONFIG": json.dumps(config)})
    assert json.loads(who.tf_config)["cluster"] == cluster
    assert who.peers == ["p:1"]


@pytest.mark.parametrize(
    ("environ", "reason"),
    [
        ({}, "no role found"),
        ({"TF_CONFIG": "{"}, "can't parse"),
        ({"TF_CONFIG": "{}"}, "can't parse"),
        ({"GRIDFLOW_ROLE": "worker"}, "no index is set"),
        ({"GRIDFLOW_ROLE": "wroker", "GRIDFLOW_INDEX": "0"}, "Did you mean 'worker'"),
        ({"GRIDFLOW_ROLE": "worker", "GRIDFLOW_INDEX": "x"}, "a number of at least 0"),
        (
            {"GRIDFLOW_ROLE": "worker", "GRIDFLOW_INDEX": "1"},
            "GRIDFLOW_CLUSTER with their addresses isn't set",
        ),
        (
            {"GRIDFLOW_ROLE": "worker", "GRIDFLOW_INDEX": "2", "GRIDFLOW_CLUSTER": "{}"},
            "isn't in the cluster",
        ),
        ({"GRIDFLOW_ROLE": "ps", "GRIDFLOW_INDEX": "0", "GRIDFLOW_CLUSTER": "["}, "not valid JSON"),
    ],
)
def test_an_environment_that_makes_no_sense_is_refused(environ, reason):
    with pytest.raises(InvalidArgument, match=reason):
        identify(environ)


@given(st.text(max_size=80))
def test_no_text_in_tf_config_breaks_the_command_otherwise(text):
    with pytest.raises(InvalidArgument):
        identify({"TF_CONFIG": text})


def test_the_program_gets_tf_config_and_the_classic_flags():
    code, out = finished(
        "--classic-flags", "--", sys.executable, "-c", SHOW + "; import sys; print(sys.argv[1:])"
    )
    assert code == 0
    assert '"task": {"type": "worker", "index": 0}' in out
    assert "['--job_name=worker', '--task_index=0', '--ps_hosts=', '--worker_hosts=localhost" in out


@pytest.mark.parametrize(
    ("script", "options", "expected"),
    [
        ("exit 0", [], 0),
        ("exit 3", [], 3),
        ("exit 127", [], 127),
        ("exit 200", [], 200),
        ("kill -KILL $$", [], 137),
        ("kill -SEGV $$", [], 139),
        ("exit 3", ["--retry-on=3"], 131),
        ("kill -KILL $$", ["--retryable-exit-code=130"], 130),
        ("exit 3", ["--retryable-exit-code=130"], 3),
    ],
)
def test_exit_codes_tell_permanent_from_retryable(script, options, expected):
    assert finished(*options, "--", "sh", "-c", script)[0] == expected


def test_a_command_that_is_not_there_is_a_permanent_failure_and_named():
    code, out = finished("--", "no-such-command")
    assert code == 127
    assert "program 'no-such-command' not found" in out


#: How a program ends, with what its launcher makes of it.
LAST_WORDS = [
    ("tensorflow.python.framework.errors_impl.UnavailableError: Connection reset by peer", 197),
    ("RuntimeError: [gloo/transport/tcp/pair.cc] Connection closed by peer [10.0.0.7]", 197),
    ("ValueError: Shapes (2,) and (3,) are incompatible", 1),
    ("ConnectionRefusedError: [Errno 111] Connection refused", 1),
    ("psycopg2.OperationalError: connection refused", 1),
]


@pytest.mark.parametrize(("words", "expected"), LAST_WORDS)
def test_a_program_that_lost_a_peer_is_worth_another_try(words, expected):
    """The survivors of a synchronous group, by what they print as the last."""
    trace = f'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\n{words}'
    program = f"import sys; print({trace!r}, file=sys.stderr); sys.exit(1)"
    cluster = json.dumps({"worker": ["localhost:1", "localhost:2"]})
    env = {"GRIDFLOW_ROLE": "worker", "GRIDFLOW_INDEX": "0", "GRIDFLOW_CLUSTER": cluster}
    code, out = finished("--", sys.executable, "-c", program, env=env)
    assert code == expected
    assert out.count(words) == 1


def test_a_program_that_chooses_its_exit_code_is_believed():
    program = "import sys; print('UnavailableError: a peer is gone', file=sys.stderr); sys.exit(3)"
    cluster = json.dumps({"worker": ["localhost:1", "localhost:2"]})
    env = {"GRIDFLOW_ROLE": "worker", "GRIDFLOW_INDEX": "0", "GRIDFLOW_CLUSTER": cluster}
    assert finished("--", sys.executable, "-c", program, env=env)[0] == 3


@pytest.mark.slow
def test_the_survivor_of_a_real_synchronous_group_ends_with_a_retryable_code():
    """TensorFlow itself: one of two workers is killed in the middle of an epoch."""
    program = str(Path(__file__).parent / "programs" / "lose_a_peer.py")
    job = flights(
        command=[sys.executable, program],
        args=[],
        roles={"worker": Role(2)},
        restart_policy="exit-code",
    )
    found = on_this_host(processes(job, "kubernetes"))
    quiet = {"CUDA_VISIBLE_DEVICES": "-1"}
    running = [launch(*words[2:], env={**env, **quiet}) for _, _, env, words in found]
    outputs = [process.communicate(timeout=patience())[0] for process in running]
    assert [process.returncode >= 128 for process in running] == [True, True], outputs
    assert running[1].returncode == 137


def test_no_command_for_a_chief_is_refused():
    code, out = finished(env={"GRIDFLOW_ROLE": "chief", "GRIDFLOW_INDEX": "0"})
    assert code == 64
    assert "only ps and workers can run standard servers" in out


@pytest.mark.slow  # waits between the starts, as the launcher does
@pytest.mark.parametrize(
    ("policy", "script", "runs"),
    [
        ("never", "exit 1", 1),
        ("on-failure", "exit 1", 3),
        ("exit-code", "exit 1", 1),
        ("exit-code", "exit 143", 3),
        ("on-failure", "exit 0", 1),
    ],
)
def test_restarts_follow_the_policy(policy, script, runs):
    options = [f"--restart-policy={policy}", "--restart-limit=2"]
    code, out = finished(*options, "--", "sh", "-c", f"echo one run; {script}")
    assert out.count("one run") == runs
    assert code == int(script.split()[1])


def test_a_signal_ends_the_program_and_its_children(tmp_path):
    mark = tmp_path / "pids"
    script = f"sleep 300 & echo $! >{mark}.new; mv {mark}.new {mark}; wait"
    process = launch("--", "sh", "-c", script)
    wait_for(mark.exists, "the start of the program")
    sleeper = int(mark.read_text())
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=patience())
    assert process.returncode == 143
    wait_for(lambda: not running(sleeper), "the end of the program's child")


def test_a_program_that_ignores_the_signal_is_killed_after_the_grace(tmp_path):
    mark = tmp_path / "ready"
    script = f"trap '' TERM; touch {mark}; while :; do sleep 0.1; done"
    process = launch("--grace=0.5", "--", "sh", "-c", script)
    wait_for(mark.exists, "the start of the program")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=patience())
    assert process.returncode == 137


def test_nothing_is_started_again_after_a_signal(tmp_path):
    mark = tmp_path / "runs"
    script = f"echo run >>{mark}; sleep 300"
    process = launch("--restart-policy=on-failure", "--", "sh", "-c", script)
    wait_for(mark.exists, "the start of the program")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=patience())
    assert mark.read_text() == "run\n"


def test_a_signal_is_heard_whatever_the_main_thread_holds():
    script = """
import os, signal, threading
from gridflow.deploy.inside.launch import _on_signals
lock, came, heard = threading.Lock(), threading.Event(), threading.Event()
def stop(number):
    came.set()
    with lock:
        print(signal.Signals(number).name)
    heard.set()
_on_signals(stop)
with lock:
    os.kill(os.getpid(), signal.SIGTERM)
    assert came.wait()
assert heard.wait()
"""
    ran = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=patience(),
        check=True,
    )
    assert ran.stdout == "SIGTERM\n"


def test_a_finished_task_stays_and_does_not_train_again(tmp_path):
    runs, notes = tmp_path / "runs", tmp_path / "notes"
    words = ["--stay", f"--finished-dir={notes}", "--", "sh", "-c", f"echo run >>{runs}"]
    for _ in range(2):  # the second start is Marathon's, after the first task was lost
        process = launch(*words)
        line = next(text for text in process.stdout if "keeping the container running" in text)
        assert "finished" in line
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=patience())
        assert process.returncode == 0
    assert runs.read_text() == "run\n"
    assert json.loads((notes / "worker-0.json").read_text()) == {"code": 0}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"code": "x"}'])
def test_a_note_of_a_finished_task_that_cannot_be_read_is_skipped(tmp_path, text):
    (tmp_path / "worker-0.json").write_text(text)
    process = launch("--stay", f"--finished-dir={tmp_path}", "--", "true")
    assert any("finished with exit code 0" in line for line in process.stdout)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=patience())
    assert json.loads((tmp_path / "worker-0.json").read_text()) == {"code": 0}


def test_a_deadline_ends_a_task_and_its_restarts():
    options = ("--deadline=1", "--restart-policy=on-failure", "--restart-limit=9")
    code, out = finished(*options, "--", "sh", "-c", "sleep 0.2; exit 1")
    assert code == 124
    assert "exceeded its deadline of 1 s" in out


def test_a_deadline_counts_from_the_first_start_of_the_whole_job_where_it_is_known():
    env = {"GRIDFLOW_ROLE": "worker", "GRIDFLOW_INDEX": "0"}
    began = {**env, "GRIDFLOW_BEGAN": str(int(time.time()) - 299)}
    code, out = finished("--deadline=300", "--", "sleep", "60", env=began)
    assert (code, "exceeded its deadline of 300 s" in out) == (124, True)
    late = {**env, "GRIDFLOW_BEGAN": "1234"}
    code, out = finished("--deadline=300", "--", "sleep", "60", env=late)
    assert (code, "exceeded its deadline of 300 s" in out) == (124, True)
    for unknown in ("", str(int(time.time()) + 999)):  # nobody has noted it; clocks differ
        env["GRIDFLOW_BEGAN"] = unknown
        assert finished("--deadline=300", "--", "true", env=env)[0] == 0


@pytest.mark.slow
def test_a_parameter_server_without_a_program_runs_a_standard_server():
    """A real TensorFlow server: the worker's program connects to it and runs an operation there."""
    program = str(Path(__file__).parent / "programs" / "use_server.py")
    roles = {"worker": Role(), "ps": Role()}
    job = flights(command=[sys.executable, program], args=[], roles=roles)
    found = on_this_host(processes(job, "compose"))
    proxies = {"http_proxy": "http://127.0.0.1:9", "grpc_proxy": "http://127.0.0.1:9"}
    running = [
        launch(*words[2:], env={**env, **proxies, "CUDA_VISIBLE_DEVICES": "-1"})
        for _, _, env, words in found
    ]
    worker, server = (process.communicate(timeout=patience())[0] for process in running)
    assert "answer 42 /job:ps" in worker, worker + server
    assert [process.returncode for process in running] == [0, 0], worker + server


def test_its_start_imports_nothing_but_the_standard_library():
    code = (
        "import sys; before = set(sys.modules); from gridflow.cli import main; "
        "main(['launch', '--', 'true']); "
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}; "
        "print(sorted(new - set(sys.stdlib_module_names)))"
    )
    environ = {**os.environ, "GRIDFLOW_ROLE": "worker", "GRIDFLOW_INDEX": "0"}
    out = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True
    )
    assert out.stdout.strip() == "['gridflow']"


def running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as file:
        return file.read().split()[2] != "Z"


def last_words(tmp_path, *words, **env):
    """Run gridflow launch where Kubernetes reads why it ended; return its code and that."""
    place = tmp_path / "termination-log"
    place.touch()
    who = {"GRIDFLOW_ROLE": "worker", "GRIDFLOW_INDEX": "0"}
    code, out = finished(*words, env={**who, "GRIDFLOW_TERMINATION_LOG": str(place), **env})
    return code, out, place.read_text()


def test_the_termination_message_has_the_task_its_code_and_its_last_words(tmp_path):
    program = [sys.executable, "-c", "print('no cause'); raise ValueError('no such column')"]
    code, out, message = last_words(tmp_path, "--", *program)
    assert code == 1
    first, *rest = message.splitlines()
    assert first == "worker:0 failed with exit code 1"
    assert rest[0] == "Traceback (most recent call last):"
    assert rest[-1] == "ValueError: no such column"
    assert "no such column" in out
    assert "no cause" not in message


def test_the_termination_message_names_what_could_not_begin(tmp_path):
    assert last_words(tmp_path, "--", "no-such-program")[2] == (
        "worker:0 failed with exit code 127: "
        "program 'no-such-program' not found here or on the PATH"
    )
    code, _, message = last_words(tmp_path, "--", "true", GRIDFLOW_ROLE="boss")
    assert (code, "boss" in message) == (64, True)


def test_a_task_that_succeeds_leaves_no_termination_message(tmp_path):
    assert last_words(tmp_path, "--", "true")[::2] == (0, "")


def test_a_task_that_succeeds_at_last_leaves_no_termination_message(tmp_path):
    script = f"test -e {tmp_path}/second || {{ touch {tmp_path}/second; echo oh >&2; exit 3; }}"
    words = ("--restart-policy", "on-failure", "--", "sh", "-c", script)
    code, out, message = last_words(tmp_path, *words)
    assert (code, message) == (0, "")
    assert "oh" in out
