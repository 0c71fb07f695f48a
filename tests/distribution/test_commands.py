"""strategy="command": programs of their own as tasks, told who they are, ended with the job."""

from __future__ import annotations

import json
import sys

import pytest

from gridflow import (
    Deadlines,
    GpuOptions,
    LaunchOptions,
    LocalLauncher,
    Programs,
    Role,
    TensorflowDistributor,
    errors,
)
from gridflow._spec.job import make_tasks, parts_of
from suite.waiting import patience

SHOW = "echo SEEN $GRIDFLOW_ROLE:$GRIDFLOW_INDEX $OWN $TF_CONFIG"
QUIET = {
    "launcher": LocalLauncher(),
    "logs": "none",
    "progress": False,
    "launch_options": LaunchOptions(warm_seconds=0),
}


def seen(result, task):
    """Return the words that a task printed of itself, and its TF_CONFIG."""
    lines = result.log_path(task).read_text().splitlines()
    (line,) = [text for text in lines if text.startswith("SEEN ")]
    words, _, config = line.removeprefix("SEEN ").partition(" {")
    return words, json.loads("{" + config)


@pytest.mark.slow
def test_tasks_are_told_who_they_are_and_servers_and_evaluator_end_with_the_others():
    roles = [
        Role("worker", 2, env={"OWN": "of workers"}),
        Role("ps", command=["sh", "-c", f"{SHOW}; sleep 300"]),
        Role("evaluator", command=["sh", "-c", f"{SHOW}; sleep 300"]),
    ]
    distributor = TensorflowDistributor(
        roles=roles, env={"OWN": "of all"}, deadlines=Deadlines(shutdown=2), **QUIET
    )
    assert distributor.strategy == "command"
    result = distributor.run(["sh", "-c", SHOW])
    words, config = seen(result, "worker:1")
    assert words == "worker:1 of workers"
    assert config["task"] == {"type": "worker", "index": 1}
    assert {role: len(hosts) for role, hosts in config["cluster"].items()} == {"worker": 2, "ps": 1}
    assert seen(result, "evaluator:0") == (
        "evaluator:0 of all",
        {"cluster": config["cluster"], "task": {"type": "evaluator", "index": 0}},
    )
    assert seen(result, "ps:0")[0] == "ps:0 of all"


@pytest.mark.slow
def test_a_lone_program_has_a_cluster_too_and_its_flags_come_last():
    distributor = TensorflowDistributor(
        strategy="command", programs=Programs(classic_flags=True), **QUIET
    )
    result = distributor.run([sys.executable, "-c", "import sys; print(sys.argv[1:])"], "--steps=2")
    (words,) = result.logs(0).splitlines()
    assert words.startswith("['--steps=2', '--job_name=worker', '--task_index=0', '--ps_hosts=', ")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("exit 3", ("exit", 3, None)),
        ("exit 200", ("exit", 200, None)),
        ("kill -KILL $$", ("signal", None, "SIGKILL")),
        ("kill -SEGV $$", ("signal", None, "SIGSEGV")),
    ],
)
def test_a_failure_is_that_of_the_program(script, expected):
    distributor = TensorflowDistributor(2, "command", **QUIET)
    with pytest.raises(errors.TrainingFailed) as caught:
        distributor.run(["sh", "-c", f"[ $GRIDFLOW_INDEX = 0 ] && sleep 300; {script}"])
    first = caught.value.first
    assert (first.task, first.kind, first.exit_code, first.signal) == ("worker:1", *expected)
    assert script in "\n".join(first.log_tail)


@pytest.mark.slow
def test_a_program_that_is_not_there_is_named():
    with pytest.raises(errors.TrainingFailed, match="no-such-program") as caught:
        TensorflowDistributor(strategy="command", **QUIET).run(["no-such-program"])
    assert caught.value.first.exit_code == 127


@pytest.mark.slow
def test_a_killed_evaluator_is_started_again_while_the_others_go_on(tmp_path):
    wait = "while [ ! -e {0}/{1} ]; do sleep 0.1; done".format
    again = f"[ -e {tmp_path}/died ] && touch {tmp_path}/again && exit"
    dies = f"{wait(tmp_path, 'die')}; touch {tmp_path}/died; kill -KILL $$"
    roles = [
        Role("worker", command=["sh", "-c", wait(tmp_path, "again")]),
        Role("evaluator", command=["sh", "-c", f"{again}; {dies}"]),
    ]
    job = TensorflowDistributor(roles=roles, **QUIET).start([])
    job.wait_until("training", timeout=patience())
    (tmp_path / "die").touch()
    assert len(job.result(timeout=patience()).attempts) == 1


@pytest.mark.slow
def test_a_group_is_started_again_as_often_as_it_may(tmp_path):
    script = f"echo run >>{tmp_path}/runs; [ $(wc -l <{tmp_path}/runs) = 3 ]"
    result = TensorflowDistributor(strategy="command", max_restarts=2, **QUIET).run(
        ["sh", "-c", script]
    )
    assert [bool(each.failure) for each in result.attempts] == [True, True, False]


def test_a_standard_server_serves_and_is_replaced_only_where_the_others_can_do_without():
    roles = [Role("chief"), Role("worker", 1, command=[]), Role("ps"), Role("evaluator")]
    parts = parts_of(make_tasks(roles, "command"), "command", roles)
    chief, worker, ps, evaluator = parts
    assert [part.runs_function for part in parts] == [True, False, False, True]
    assert [part.serves for part in parts] == [False, True, True, False]
    assert [part.is_awaited for part in parts] == [True, False, False, False]
    assert [part.is_replaced for part in (chief, worker, ps, evaluator)] == [
        False,
        True,
        False,
        True,
    ]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"roles": [Role("worker", command=["a"])], "strategy": "none"},
            "needs strategy='command'",
        ),
        ({"roles": [Role("chief", command=[]), Role("worker")]}, "only workers and ps can be"),
        ({"roles": [Role("worker", command=[])]}, "without a chief"),
        ({"seed": 1}, "can't pass seed="),
        ({"tensorboard": True}, "can't pass tensorboard="),
        ({"gpu_options": GpuOptions(memory="1GiB")}, "can't pass gpu_options="),
        ({"gpus": 0.5}, "supports only whole GPUs"),
        ({"backend": "jax"}, "KERAS_BACKEND"),
    ],
)
def test_what_a_command_has_no_use_for_is_refused_at_the_call(options, words):
    with pytest.raises(errors.InvalidArgument, match=words):
        TensorflowDistributor(**{"strategy": "command", **options}, launcher=LocalLauncher())


@pytest.mark.parametrize(
    ("program", "options", "words"),
    [
        (print, {}, "runs a list of words"),
        ("python train.py", {}, "no script"),
        (["python", 3], {}, "a list of words"),
        ([], {}, "'worker' has no command"),
        (["python"], {"data": [1]}, "a command must read files"),
        (["python"], {"epochs": 3}, "no keyword arguments, .* got epochs"),
    ],
)
def test_what_is_no_command_is_refused_at_the_call(program, options, words):
    with pytest.raises(errors.InvalidArgument, match=words):
        TensorflowDistributor(strategy="command", launcher=LocalLauncher()).run(program, **options)


def test_words_are_refused_under_other_strategies():
    with pytest.raises(errors.InvalidArgument, match="strategy='none'"):
        TensorflowDistributor(1, launcher=LocalLauncher()).run(["python", "train.py"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"env": {"A": 1}}, "env of role 'worker' must map names to values"),
        ({"command": "python train.py"}, "list of words"),
    ],
)
def test_a_role_takes_variables_and_words(options, words):
    with pytest.raises(errors.InvalidArgument, match=words):
        Role("worker", **options)


def test_variables_of_a_role_that_contradict_its_options_are_refused():
    for role in (
        Role("worker", gpus=1, env={"CUDA_VISIBLE_DEVICES": "0"}),
        Role("worker", env={"KERAS_BACKEND": "jax"}),
    ):
        with pytest.raises(errors.InvalidArgument, match="both decide|contradicts"):
            TensorflowDistributor(roles=[role], launcher=LocalLauncher())
