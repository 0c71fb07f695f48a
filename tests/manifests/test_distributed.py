"""A job.yaml and the distributor: one comes down to the other, or is refused with its words."""

from __future__ import annotations

import subprocess
from dataclasses import replace

import pytest
from environments import Expansion, split_commands
from jobs import TRICKY, flights, full

from gridflow import LocalLauncher, MaxRestarts, RetryableExits, Role, TensorflowDistributor
from gridflow.deploy import TARGETS, Credentials, JobError, Resources, S3Credentials, Spark, render
from gridflow.deploy import Role as DescribedRole
from gridflow.deploy.distributed import cannot, distributor_options
from gridflow.deploy.inside.spark_main import read_job
from gridflow.errors import InvalidArgument


def spec_of(job):
    """Return what the distributor makes of a job."""
    return TensorflowDistributor(launcher=LocalLauncher(), **distributor_options(job)).spec


def test_roles_are_the_distributors_with_their_programs_variables_and_gpus():
    trainer = Resources(gpu=2)
    roles = {
        "worker": DescribedRole(2, resources=trainer, env={"EPOCHS": "7"}),
        "ps": DescribedRole(2),
        "chief": DescribedRole(args=["--lead"]),
    }
    credentials = Credentials(s3=S3Credentials("s3", endpoint="http://minio:9000"))
    spec = spec_of(flights(roles=roles, credentials=credentials))
    command = ("python", "/app/train.py")
    assert spec.roles == (
        Role("chief", command=(*command, "--lead"), env={"EPOCHS": "5"}),
        Role("worker", 2, gpus=2, command=(*command, "--epochs", "5"), env={"EPOCHS": "7"}),
        Role("ps", 2, command=(), env={"EPOCHS": "5"}),
    )
    assert [str(task) for task in spec.tasks] == ["chief:0", "worker:0", "worker:1", "ps:0", "ps:1"]
    assert [need.count for need in spec.gpus] == [None, 2, 2, 0, 0]
    assert [part.serves for part in spec.parts] == [False, False, False, True, True]
    environment = spec.environment_of(spec.tasks[1])
    assert environment["EPOCHS"] == "7"
    assert "http://minio:9000" in environment.values()


def test_standard_servers_beside_a_chief_are_those_of_its_strategy():
    roles = {
        "chief": DescribedRole(),
        "worker": DescribedRole(2, command=[]),
        "ps": DescribedRole(),
    }
    chief, *workers, ps = spec_of(flights(roles=roles)).parts
    assert (chief.runs_function, ps.runs_function) == (True, False)
    assert all(part.serves and part.is_replaced for part in workers)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [("never", MaxRestarts(0)), ("on-failure", MaxRestarts(2)), ("exit-code", RetryableExits(2))],
)
def test_restarts_and_the_deadline_are_the_distributors(policy, expected):
    job = flights(restart_policy=policy, restart_limit=2, deadline=60, classic_flags=True)
    assert distributor_options(job)["restarts"].policy == expected
    spec = spec_of(job)
    assert spec.deadlines.run == 60
    assert spec.training.programs.classic_flags


@pytest.mark.parametrize("role", ["ps", "evaluator"])
def test_gpus_for_a_role_that_never_gets_any_are_refused_by_their_place(role):
    job = flights(
        roles={"worker": DescribedRole(), role: DescribedRole(resources=Resources(gpu=1))}
    )
    with pytest.raises(JobError, match=rf"roles\.{role}\.resources\.gpu: .* never gets a GPU"):
        distributor_options(job)


def driven(target, job):
    """Return what the driver program of a Spark target reads from the rendered document."""
    (document,) = render(job, target, lossy=True).documents
    if target == "sparkapplication":
        expand = Expansion({})
        return read_job([expand(word) for word in document.content["spec"]["arguments"]])
    words = submitted(document)
    name = next(place for place, word in enumerate(words) if word.startswith("--name="))
    expand = Expansion({}) if target == "spark-submit-kubernetes" else str
    return read_job([expand(word) for word in words[name:]])


def submitted(document):
    """Return the words of a script's spark-submit command."""
    return next(each for each in split_commands(document.content) if "spark-submit" in each)


@pytest.mark.parametrize("target", [name for name in TARGETS if "spark" in name])
def test_the_driver_program_on_spark_is_told_the_same_job(target):
    roles = {
        "chief": DescribedRole(command=["sh", "-c", "echo $(HOME) 'it''s'"]),
        "worker": DescribedRole(2, command=[], env={"ROLE_ENV": '$(A) $$ "yes"\n'}),
        "ps": DescribedRole(),
        "evaluator": DescribedRole(args=["--evaluate"]),
    }
    for job in (full(), flights(roles=roles, env={}), flights(env={}, restart_policy="never")):
        ours, theirs = distributor_options(job), distributor_options(driven(target, job))
        # The job's variables are Spark's business, as are GPUs.
        ours["roles"] = [
            replace(role, gpus=None, env=dict(job.roles[role.name].env)) for role in ours["roles"]
        ]
        assert {**theirs, "env": None} == {**ours, "env": None}


def exported(value):
    """Return what a variable is in a container of YARN, which puts it into double quotes."""
    script = f'export TEXT="{value}"; printf %s "$TEXT"'
    return subprocess.run(["bash", "-c", script], capture_output=True, check=True).stdout.decode()


@pytest.mark.parametrize(
    ("target", "prefixes", "arrives"),
    [
        ("spark-submit-standalone", ["spark.executorEnv."], str),
        ("spark-submit-yarn", ["spark.executorEnv.", "spark.yarn.appMasterEnv."], exported),
        (
            "spark-submit-kubernetes",
            ["spark.executorEnv.", "spark.kubernetes.driverEnv."],
            Expansion({"HOME": "/root"}),
        ),
    ],
)
def test_variables_reach_sparks_processes_unchanged(target, prefixes, arrives):
    (document,) = render(flights(env=dict(TRICKY)), target, lossy=True).documents
    properties = dict(word.split("=", 1) for word in submitted(document) if "=" in word)
    for prefix in prefixes:
        assert {name: arrives(properties[prefix + name]) for name in TRICKY} == TRICKY


@pytest.mark.parametrize("target", ["spark-submit-standalone", "spark-submit-yarn"])
def test_nothing_is_submitted_where_gridflow_is_not_installed(target, tmp_path):
    for name, does in (("python", "exit 7"), ("spark-submit", "echo submitted")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / name).chmod(0o755)
    (document,) = render(flights(), target, lossy=True).documents
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SPARK_MASTER": "spark://a:7077"}
    script = tmp_path / document.name
    script.write_text(document.content)
    done = subprocess.run(["sh", script], env=environment, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (7, b"")


def test_programs_of_roles_are_refused_beside_an_application_that_would_not_see_them():
    roles = {"worker": DescribedRole(args=["--more"])}
    job = flights(roles=roles, spark=Spark(application="local:///app/driver.py"))
    with pytest.raises(JobError, match=r"roles\.worker\.args: .*names another"):
        render(job, "sparkapplication")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--role-command=ps", "--", "a"], "ROLE=JSON"),
        (["--role-command=pss=[]", "--", "a"], "a role and a list"),
        (["--role-env=ps=[]", "--", "a"], "a role and a dict"),
        (["--roles=wroker=1", "--", "a"], "Did you mean 'worker'"),
    ],
)
def test_a_command_line_that_is_no_job_is_refused(words, reason):
    with pytest.raises(InvalidArgument, match=reason):
        read_job(words)


@pytest.mark.parametrize("policy", ["never", "on-failure", "exit-code"])
@pytest.mark.parametrize("target", ["local", "spark"])
def test_no_restart_policy_is_refused(target, policy):
    assert cannot(flights(restart_policy=policy, restart_limit=2), target) == []


@pytest.mark.parametrize("target", ["local", "spark"])
def test_what_the_distributor_can_is_not_refused_because_documents_cannot(target):
    paths = {problem.path for problem in cannot(full(), target)}
    assert {"namespace", "volumes[0].pvc", "gang.queue", "tolerations"} <= paths
    assert not paths & {"deadline", "restart_policy", "roles.ps", "roles.chief.resources.gpu"}
