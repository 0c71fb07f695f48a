"""The public face: its names, the constructor's parameters, the groups of options."""

from __future__ import annotations

import dataclasses
import doctest
import inspect
import pickle
import re
from pathlib import Path

import pytest

import gridflow
from gridflow import (
    CommunicationOptions,
    Deadlines,
    Distribution,
    GpuOptions,
    InvalidArgument,
    LaunchOptions,
    LocalLauncher,
    LocalSteps,
    Network,
    Programs,
    Restarts,
    Spool,
    TensorBoard,
    TensorflowDistributor,
)
from gridflow._spec.arguments import MOVED

#: Parameter of the constructor and its class.
GROUPS = {
    "deadlines": Deadlines,
    "restarts": Restarts,
    "gpu_options": GpuOptions,
    "distribution": Distribution,
    "programs": Programs,
    "spool": Spool,
    "launch_options": LaunchOptions,
    "network": Network,
}
FLAT = [
    "num_workers",
    "strategy",
    "roles",
    "gpus",
    "backend",
    "launcher",
    "seed",
    "env",
    "data_service",
    "max_restarts",
    "checkpoint_dir",
    "checkpoint_every",
    "nulls",
    "columns",
    "job_dir",
    "run_id",
    "tensorboard",
    "logs",
    "progress",
    "observers",
    "start_timeout",
]
PUBLIC = [
    "BarrierTimeout",
    "BrokenBarrier",
    "ClientUnreachable",
    "CommunicationOptions",
    "DataError",
    "Deadlines",
    "Distribution",
    "EnvironmentMismatch",
    "FilePart",
    "FixedShardsPartitioner",
    "GpuOptions",
    "GridflowError",
    "InvalidArgument",
    "JobCancelled",
    "JobExists",
    "JobHandle",
    "Keys",
    "LaunchOptions",
    "Launcher",
    "LocalLauncher",
    "LocalSteps",
    "Loop",
    "Materialized",
    "MaxRestarts",
    "MinSizePartitioner",
    "MissingDependency",
    "Network",
    "NetworkError",
    "NotEnoughGpus",
    "NotEnoughSlots",
    "Padded",
    "Plan",
    "PreemptionAware",
    "Programs",
    "Ragged",
    "Restarts",
    "Result",
    "RetryableExits",
    "Role",
    "RunTimeout",
    "SchemaError",
    "SparkLauncher",
    "Sparse",
    "Spool",
    "StartTimeout",
    "StepTimeout",
    "TaskLost",
    "TensorBoard",
    "TensorflowDistributor",
    "TrainedModel",
    "TrainerStatus",
    "TrainingContext",
    "TrainingFailed",
    "UnpicklableFunction",
    "UnsafePath",
    "WireError",
    "chief_only",
    "current_context",
    "exit_code",
    "exit_codes",
    "materialize",
    "patch_keras",
    "predict",
    "predict_udf",
    "trainable_variables",
]
ROOT = Path(__file__).parent.parent


def test_the_public_names_are_these():
    """A name that comes or goes is a decision: change this list with it."""
    assert gridflow.__all__ == PUBLIC


def test_the_public_packages_are_these():
    here = Path(gridflow.__file__).parent.iterdir()
    names = {each.stem for each in here if each.is_dir() or each.suffix == ".py"}
    assert {name for name in names if not name.startswith("_")} == {
        "cli",
        "compat",
        "data",
        "demo",
        "deploy",
        "errors",
        "ml",
        "observers",
        "testing",
        "tfrecord",
        "util",
    }


def test_the_parameters_of_the_distributor_are_these():
    assert list(inspect.signature(TensorflowDistributor).parameters) == [*FLAT, *GROUPS]


def test_the_reference_says_all_of_them_in_their_order():
    text = inspect.getdoc(TensorflowDistributor)
    assert re.findall(r"(?m)^(\w+) : ", text) == [*FLAT, *GROUPS]


#: Their examples launch jobs.
LAUNCHING = {"JobHandle", "TensorflowDistributor"}


def test_the_examples_of_public_names_run():
    finder = doctest.DocTestFinder(recurse=False)
    names = [name for name in PUBLIC if name not in LAUNCHING]
    found = [e for name in names for e in finder.find(getattr(gridflow, name), name, module=False)]
    examples = [each for each in found if each.examples]
    assert "CommunicationOptions" in {each.name for each in examples}
    assert [each.name for each in examples if doctest.DocTestRunner().run(each).failed] == []


@pytest.mark.parametrize("name", MOVED)
def test_an_option_that_moved_is_refused_with_its_place(name):
    group, kind, field = re.fullmatch(r"(\w+)=(\w+)\((\w+)=…\)", MOVED[name]).groups()
    place = re.escape(MOVED[name])
    with pytest.raises(InvalidArgument, match=f"^{name} moved: {place}"):
        TensorflowDistributor(launcher=LocalLauncher(), **{name: None})
    assert group in inspect.signature(TensorflowDistributor).parameters
    assert field in {each.name for each in dataclasses.fields(getattr(gridflow, kind))}


def test_every_field_of_a_group_is_one_that_moved_or_new():
    """Nothing else is lost: each field of the groups can be reached by an old keyword's error."""
    told = {tuple(re.findall(r"(\w+)\((\w+)=", place)[0]) for place in MOVED.values()}
    kinds = {**GROUPS, "tensorboard": TensorBoard}
    fields = {(k.__name__, each.name) for k in kinds.values() for each in dataclasses.fields(k)}
    assert fields - told == {("TensorBoard", "serve")}


@pytest.mark.parametrize("kind", [Deadlines, Distribution, Network, Programs, Restarts])
def test_a_field_without_its_group_is_refused_with_its_place(kind):
    for field in dataclasses.fields(kind):
        with pytest.raises(InvalidArgument, match=rf"^{field.name} moved: .*\({field.name}=…\)"):
            TensorflowDistributor(launcher=LocalLauncher(), **{field.name: None})


def test_what_was_never_an_option_is_refused_as_python_does_it():
    with pytest.raises(TypeError, match="unexpected keyword argument 'deadline'"):
        TensorflowDistributor(deadline=3)


@pytest.mark.parametrize("kind", [*GROUPS.values(), TensorBoard])
def test_a_group_is_frozen_travels_and_documents_each_field(kind):
    group = kind()
    fields = dataclasses.fields(kind)
    assert all(field.kw_only for field in fields)
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(group, fields[0].name, None)
    assert pickle.loads(pickle.dumps(group)) == group == dataclasses.replace(group)
    documented = re.findall(r"(?m)^(\w+) : ", inspect.getdoc(kind))
    assert documented == [field.name for field in fields]


@pytest.mark.parametrize("name", GROUPS)
def test_a_group_of_another_kind_is_refused(name):
    kind = GROUPS[name].__name__
    with pytest.raises(InvalidArgument, match=rf"{name}= must be a {kind}\(…\); got {{}}"):
        TensorflowDistributor(launcher=LocalLauncher(), **{name: {}})


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Deadlines(heartbeat="10"), r"\(heartbeat=\) must be a number .* got '10'"),
        (lambda: Deadlines(heartbeat=None), "got None"),
        (lambda: Deadlines(step=float("nan")), "got nan"),
        (
            lambda: Deadlines(shutdown=0),
            r"\(shutdown=\) must be a number of seconds greater than 0",
        ),
        (lambda: Deadlines(run=True), r"\(run=\) .* got True"),
        (lambda: Spool(limit="much"), r"\(limit=\) must be a size of at least 1 MiB"),
        (lambda: Spool(dir=7), r"\(dir=\) must be the absolute path of a folder.*; got 7"),
        (lambda: Spool(dir="rows"), r"\(dir=\) must be the absolute path .*; got 'rows'"),
        (lambda: LaunchOptions(warm_seconds=-1), r"\(warm_seconds=\) .* 0 or more; got -1"),
        (lambda: LaunchOptions(detached="yes"), r"\(detached=\) must be True or False"),
        (lambda: LaunchOptions(keep_jobs=-1), r"\(keep_jobs=\) must be a whole number"),
        (lambda: Programs(classic_flags=1), r"\(classic_flags=\) must be True or False; got 1"),
        (lambda: Programs(patches=None), r"\(patches=\) must be True or False; got None"),
        (
            lambda: Distribution(variable_partitioner=2),
            "MinSizePartitioner or FixedShardsPartitioner; got int",
        ),
        (lambda: Distribution(communication="ring"), "CommunicationOptions; got str"),
        (lambda: Distribution(local_steps=8), "LocalSteps; got int"),
        (lambda: CommunicationOptions(wire_dtype="float16"), "wire_dtype.*bfloat16.*float16"),
        (lambda: LocalSteps(sync_every=0), r"\(sync_every=\) must be a whole number"),
        (
            lambda: LocalSteps(sync_every=8, outer_learning_rate=0),
            r"\(outer_learning_rate=\) must be a number, more than 0; got 0",
        ),
        (
            lambda: LocalSteps(sync_every=8, outer_momentum=1.0),
            r"\(outer_momentum=\) must be a number, at least 0 and less than 1; got 1.0",
        ),
        (lambda: TensorBoard(serve="s3://logs"), r"\(serve=\) must be True or False"),
        (lambda: TensorBoard(copy_to=5), r"\(copy_to=\) must be the path of a folder.*; got 5"),
        (
            lambda: TensorflowDistributor(tensorboard=1),
            r"tensorboard= must be True, False or a Ten",
        ),
    ],
)
def test_what_can_not_be_is_refused_when_the_group_is_made(make, words):
    with pytest.raises(InvalidArgument, match=words):
        make()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"env": "A=1"}, "env= must be a dict of names to values, both str; got 'A=1'"),
        ({"env": ["A=1"]}, r"env= must be a dict .*; got \['A=1'\]"),
        ({"env": {"A": "\0"}}, "env= has the byte 0, .* in 'A'"),
        ({"columns": ["tokens"]}, r"columns= must be a dict of column to .*; got \['tokens'\]"),
        ({"columns": {1: gridflow.Ragged()}}, r"columns={1: Ragged\(\)} must be"),
        ({"seed": 2**32}, "seed must be a whole number up to 4,294,967,295; got 4294967296"),
        ({"progress": "no"}, "progress must be True or False; got 'no'"),
        ({"checkpoint_dir": 5}, "checkpoint_dir must be the path of a folder.*; got 5"),
        ({"job_dir": ""}, "job_dir must be the path of a folder.*; got ''"),
    ],
)
def test_what_an_option_can_not_be_is_refused_at_the_call(given, words):
    with pytest.raises(InvalidArgument, match=words):
        TensorflowDistributor(launcher=LocalLauncher(), **given)


def test_forms_of_columns_stay_as_they_were_given():
    columns = {"tokens": gridflow.Ragged()}
    made = TensorflowDistributor(launcher=LocalLauncher(), columns=columns)
    columns.clear()
    assert made.spec.feed.columns == {"tokens": gridflow.Ragged()}


def test_the_command_and_the_variables_of_a_role_are_checked():
    with pytest.raises(InvalidArgument, match="command of role 'worker' must be a list .*; got 5"):
        gridflow.Role("worker", command=5)
    with pytest.raises(InvalidArgument, match="env of role 'worker' must be a dict .*; got 'A=1'"):
        gridflow.Role("worker", env="A=1")


def test_the_groups_come_whole_into_the_job():
    made = {
        "deadlines": Deadlines(step=7),
        "gpu_options": GpuOptions(memory="2GiB"),
        "spool": Spool(limit="2MiB"),
        "launch_options": LaunchOptions(keep_jobs=3),
    }
    spec = TensorflowDistributor(launcher=LocalLauncher(), **made).spec
    found = (spec.deadlines, spec.gpu_options, spec.hosts.spool, spec.hosts.launch)
    assert all(here is there for here, there in zip(found, made.values(), strict=True))
