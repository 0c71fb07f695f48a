"""A package adds a target: its class alone says what it renders, how it is checked, who starts it.

The package is `examples/targets/azure_batch.py`, whose documents are like no target's of gridflow.
Its service is a stand-in, which runs the tasks' commands on this machine.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml
from jobs import ROOT
from standin import Server, serving

import gridflow
from gridflow._spec.exits import Exit
from gridflow.deploy import (
    TARGETS,
    JobError,
    explain,
    get_target,
    parse_job,
    render,
    validate,
)
from gridflow.deploy.inside.identity import identify
from gridflow.errors import InvalidArgument

EXAMPLE = ROOT / "examples" / "targets" / "azure_batch.py"
JOB = """\
name: flights
image: registry.example/flights:1
command: [python, -c, "import os; print('I am', os.environ['TF_CONFIG'])"]
node_selector: {pool: training}
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Give a function that installs a package with an entry point, as pip would."""

    def install(name, place, *modules):
        site = tmp_path / f"site-{name}"
        about = site / f"{name.replace('-', '_')}-1.0.dist-info"
        about.mkdir(parents=True)
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (about / "entry_points.txt").write_text(f"[gridflow.targets]\n{name} = {place}\n")
        for module in modules:
            shutil.copy(module, site)
        monkeypatch.syspath_prepend(str(site))
        assert importlib.metadata.version(name) == "1.0"

    # A module of an earlier test's package must not stand in for this one's.
    yield install
    sys.modules.pop(EXAMPLE.stem, None)


@pytest.fixture
def azure(install):
    """Install the example."""
    install("azure-batch", "azure_batch:AzureBatchTarget", EXAMPLE)


class Batch(Server):
    """Plays the service, with this machine as its pool."""

    def handle_call(self, handler):
        parts = urlsplit(handler.path).path.strip("/").split("/")
        if handler.command == "POST" and len(parts) == 1:
            self.objects[handler._body()["id"]] = {}
            handler._answer({}, 201)
        elif parts[1] not in self.objects:
            handler._answer({}, 404)
        elif handler.command == "POST":
            for task in handler._body()["value"]:
                self.objects[parts[1]][task["id"]] = start(task)
            handler._answer({})
        elif handler.command == "DELETE":
            for process in self.objects.pop(parts[1]).values():
                with process:  # waits for it, and closes its pipe
                    process.kill()
            handler._answer({})
        elif parts[-1] == "stdout.txt":
            process = self.objects[parts[1]][parts[3]]
            if process not in self.logs:
                self.logs[process] = process.stdout.read()
            handler._answer({"text": self.logs[process]})
        else:
            handler._answer(
                {"value": [state(name, p) for name, p in self.objects[parts[1]].items()]}
            )


def environment(task):
    """Return a task's variables: its own, and the service's."""
    own = {each["name"]: each["value"] for each in task["environmentSettings"]}
    return {**own, "AZ_BATCH_TASK_ID": task["id"]}


def start(task):
    """Run a task's command with its variables, as a node would."""
    program, *words = json.loads(task["commandLine"])
    assert program == "gridflow"
    return subprocess.Popen(
        [sys.executable, "-m", "gridflow.cli", *words],
        env={**os.environ, **environment(task)},
        stdout=subprocess.PIPE,
        text=True,
    )


def state(name, process):
    code = process.poll()
    if code is None:
        return {"id": name, "state": "running", "executionInfo": {}}
    return {"id": name, "state": "completed", "executionInfo": {"exitCode": code}}


def test_the_command_line_knows_it_beside_gridflows_own(azure, printed):
    listed = [line.split()[0] for line in printed("targets")[1].splitlines()]
    assert listed == [*TARGETS, "azure-batch"]
    assert "azure-batch" in printed("completion", "zsh")[1]
    _, out, _ = printed("explain", "-t", "azure-batch")
    assert "gang" in out
    assert "a pool starts tasks one by one" in out
    assert {row.feature: row.how for row in explain("azure-batch")}["marathon"] == "other"
    _, _, err = printed("explain", "-t", "azure-bach")
    assert "Did you mean 'azure-batch'?" in err


def test_it_renders_documents_of_its_own(azure):
    job = parse_job(JOB, assignments=["roles={chief: {}, worker: {replicas: 2}}"])
    about, tasks = render(job, "azure-batch").documents
    assert json.loads(about.text()) == {"id": "flights", "poolInfo": {"poolId": "training"}}
    found = []
    for task in tasks.content["value"]:
        me = identify(environment(task))
        found.append((task["id"], me.role, me.index, sorted(me.cluster)))
    assert found == [
        ("chief-0", "chief", 0, ["chief", "worker"]),
        ("worker-0", "worker", 0, ["chief", "worker"]),
        ("worker-1", "worker", 1, ["chief", "worker"]),
    ]
    streamed = list(yaml.safe_load_all(render(job, "azure-batch").text()))
    assert streamed == [about.content, tasks.content]


def test_what_it_cannot_express_is_refused_or_left_out(azure):
    job = parse_job(JOB + "shared_memory: 1Gi\n")
    with pytest.raises(JobError, match="the target azure-batch can't express it: a pool mounts"):
        render(job, "azure-batch")
    (warning,) = render(job, "azure-batch", lossy=True).warnings
    assert warning.path == "shared_memory"
    with pytest.raises(JobError, match="node_selector: the target azure-batch can't express it"):
        render(parse_job(JOB, assignments=["node_selector={}"]), "azure-batch")


def test_overrides_are_merged_as_it_says(azure):
    change = "overrides={azure-batch: {tasks: {value: [{id: worker-0, requiredSlots: 4}]}}}"
    job = parse_job(JOB, assignments=["roles.worker.replicas=2", change])
    slots = [
        t.get("requiredSlots") for t in render(job, "azure-batch").documents[1].content["value"]
    ]
    assert slots == [4, None]
    # Other targets render the same job, and others' overrides are none of their business.
    assert render(parse_job(JOB, assignments=[change]), "kubernetes").documents


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("{taks: {}}", r"overrides\.azure-batch\.taks: must be one of .* Did you mean 'tasks'"),
        ("{job: {poolInfo: null}}", r"job\.json: job poolInfo\.poolId: is missing"),
        ("{job: {poolinfo: {}}}", r"Job has no field 'poolinfo'\. Did you mean 'poolInfo'"),
        ("{tasks: {value: [{id: 1}]}}", r"tasks\.json: tasks value\[0\]\.id: must be a string"),
    ],
)
def test_what_it_would_reject_is_refused_here(azure, change, reason):
    job = parse_job(JOB, assignments=[f"overrides={{azure-batch: {change}}}"])
    with pytest.raises(JobError, match=reason):
        render(job, "azure-batch")


def test_documents_by_hand_are_checked_by_its_rules_and_its_schema(azure, tmp_path, monkeypatch):
    monkeypatch.delenv("GRIDFLOW_SCHEMAS", raising=False)
    text = "id: flights\npoolInfo:\n  pool: training\n---\nvalue:\n- {id: a}\n- {id: a}\n"
    result = validate("azure-batch", text, source="batch.yaml")
    assert [str(problem) for problem in result.problems] == [
        "batch.yaml:2:1: job poolInfo.poolId: is missing.",
        "batch.yaml:7:8: tasks value[1].id: 'a' is defined twice.",
    ]
    assert [note.partition(";")[0] for note in result.notes] == [
        "no schema for job",
        "no schema for tasks",
    ]
    schema = {"properties": {"id": {"type": "string"}}}
    (tmp_path / "azure-batch.json").write_text(json.dumps(schema))
    good = render(parse_job(JOB), "azure-batch").text()
    assert validate("azure-batch", good, schemas=tmp_path) == type(result)(2, ())
    (problem,) = validate(
        "azure-batch", "{id: 7, poolInfo: {poolId: a}}", schemas=tmp_path
    ).problems
    assert (problem.path, problem.reason) == ("job id", "7 is not of type 'string'")


def test_jobs_run_there_from_the_start_to_the_end(azure, printed, job, monkeypatch):
    with serving(Batch()) as service:
        monkeypatch.setenv("BATCH_URL", service.url)
        code, out, err = printed("run", "-t", "azure-batch", job)
        assert (code, "started 1 tasks" in err) == (0, True)
        assert "I am" in out
        assert '"task": {"type": "worker", "index": 0}' in out
        status = json.loads(printed("status", "-t", "azure-batch", job, "--json")[1])
        assert [(task["task"], task["state"]) for task in status] == [("worker-0", "completed")]
        assert printed("run", "-t", "azure-batch", job)[0] == Exit.EXISTS
        assert printed("cancel", "-t", "azure-batch", job)[0] == 0
        assert (
            "no job 'flights' on the target azure-batch"
            in printed("logs", "-t", "azure-batch", job)[2]
        )
        fails = ("--set", "command=[python, -c, raise SystemExit(7)]", "--set", "restart_limit=0")
        code, _, err = printed("run", "-t", "azure-batch", job, *fails)
        assert (code, "worker-0 failed with exit code 7" in err) == (Exit.PROGRAM, True)
        assert printed("cancel", "-t", "azure-batch", job)[0] == 0


def test_a_target_without_a_driver_says_what_to_do(install, printed, job, tmp_path):
    plain = tmp_path / "plain_target.py"
    plain.write_text(
        "from gridflow.deploy import Document, Target\n"
        "class Plain(Target):\n"
        "    name, title, form, needs = 'plain', 'A list', 'plain', ()\n"
        "    def render(self, job): return [Document('job.json', {'name': job.name})]\n"
    )
    install("plain", "plain_target:Plain", plain)
    sys.modules.pop("plain_target", None)
    assert printed("render", "-t", "plain", job)[1] == '{\n  "name": "flights"\n}\n'
    code, _, err = printed("run", "-t", "plain", job)
    assert code == Exit.USAGE
    assert f"do it yourself: gridflow render -t plain {job}" in err


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        (
            "no_such_module:It",
            "can't be used: ModuleNotFoundError: No module named 'no_such_module'",
        ),
        ("json:dumps", r"must be a subclass of gridflow\.deploy\.Target; got <function dumps"),
    ],
)
def test_a_package_that_does_not_work_is_named(install, place, reason, printed, job):
    install("broken", place)
    with pytest.raises(InvalidArgument, match=f"the target 'broken'.*{reason}"):
        get_target("broken")
    assert "'broken'" in printed("targets")[2]
    assert printed("render", "-t", "compose", job, "--lossy")[0] == 0  # it harms no other


def test_no_package_replaces_a_target_of_gridflows(install):
    install("compose", "json:dumps")
    assert type(get_target("compose")).__module__ == "gridflow.deploy.targets.compose"


def test_gridflow_itself_knows_nothing_of_it():
    texts = (
        path.read_text(encoding="utf-8") for path in Path(gridflow.__file__).parent.rglob("*.py")
    )
    assert not [text for text in texts if re.search("azure.?batch", text, re.IGNORECASE)]
