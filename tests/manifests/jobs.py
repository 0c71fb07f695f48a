"""The jobs that the tests render: every example, target and option meet in them."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

from gridflow.deploy import (
    Batching,
    Credentials,
    Gang,
    GcsCredentials,
    Job,
    Model,
    Notebook,
    Resources,
    Role,
    S3Credentials,
    SecretKey,
    Secrets,
    Serve,
    TensorBoard,
    Toleration,
    Volume,
)

ROOT = Path(__file__).resolve().parents[2]
SCHEMAS = Path(os.environ.get("GRIDFLOW_SCHEMAS", ROOT.parent / "shared" / "schemas"))
HAS_SCHEMAS = (SCHEMAS / "compose-spec.json").exists()
#: Those whose schema came later than the folder of others.
LACKING = {"swarm"} - {"swarm" if (SCHEMAS / "docker-stack.json").exists() else ""}
needs_schemas = pytest.mark.skipif(
    not HAS_SCHEMAS,
    reason=f"no schemas in {SCHEMAS}; set GRIDFLOW_SCHEMAS to a folder that has them",
)
TRAINING = (
    "local",
    "docker",
    "compose",
    "swarm",
    "kubernetes",
    "jobset",
    "tfjob",
    "trainjob",
    "volcano",
    "marathon",
)

#: Texts that parsers of YAML, shells and Kubernetes' own expansion like to change.
TRICKY = {
    "QUOTES": 'it\'s "quoted" \\ twice \\\\',
    "NEWLINES": "one\ntwo\n  three\n",
    "EXPANSION": "$(HOME) $$(HOME) ${HOME} $HOME $ $$ `id`",
    "HASH": "a # no comment",
    "COLON": "key: value",
    "UNICODE": "żółw 🐢 \u2028\u0085\ufeff \x07",
    "YES": "yes",
    "NO": "n",
    "LEADING_ZEROS": "007",
    "OCTAL": "0o17",
    "FLOAT": "1e3",
    "SEXAGESIMAL": "12:30:45",
    "DATE": "2026-01-01",
    "NULL": "null",
    "TILDE": "~",
    "EMPTY": "",
    "SPACES": "  both sides  ",
    "DASH": "- item",
    "BRACES": "{a: [b]}",
    "PERCENT": "%TAG",
    "STAR": "*anchor &anchor !tag",
    "INF": ".inf",
    "TAB": "a\tb",
    "CARRIAGE": "a\r\nb",
    "TEMPLATE": "{{.Task.Slot}} {{{a}}} {{- {{",
}

#: A job that trains and serves, as its author writes it.
JOB = """\
name: flights
image: registry.example/flights:1
command: [python, train.py]
roles: {worker: {replicas: 1}}
volumes: [{name: data, path: /data, pvc: data}]
serve: {models: [{name: flights, path: /data/models/flights}]}
"""


def flights(**changes):
    """The job that the options are tried on; with everything that all training targets express."""
    fields = {
        "name": "flights",
        "image": "registry.example/acme/flights:1.0",
        "command": ["python", "/app/train.py"],
        "args": ["--epochs", "5"],
        "env": {"EPOCHS": "5"},
    }
    return Job(**(fields | changes))


def _roles(ps, evaluator, gpu, one):
    trainer = Resources(cpu="2", memory="4Gi", gpu=gpu)
    roles = {"worker": Role(replicas=1 if one else 2, resources=trainer)}
    if ps:
        roles["chief"] = Role(resources=trainer)
        roles["ps"] = Role(replicas=ps, resources=Resources(cpu="500m", memory="1Gi"))
    if evaluator:
        roles["evaluator"] = Role()
    return roles


def matrix():
    """Every combination of TensorBoard, 0/1/2 ps, evaluator, GPUs, gang and one replica."""
    options = itertools.product(
        (False, True), (0, 1, 2), (False, True), (0, 2), (False, True), (False, True)
    )
    for board, ps, evaluator, gpu, gang, one in options:
        title = f"board={board:d} ps={ps} eval={evaluator:d} gpu={gpu} gang={gang:d} one={one:d}"
        changes = {"roles": _roles(ps, evaluator, gpu, one)}
        if board:
            changes["volumes"] = [Volume(name="data", path="/data", host="/srv/data")]
            changes["tensorboard"] = TensorBoard(log_dir="/data/logs")
        if gang:
            changes["gang"] = Gang(queue="research")
        yield title, flights(**changes)


def pairs():
    """Combinations with each value of every option beside each value of every other one."""
    return itertools.islice(matrix(), 1, None, 9)


def full():
    """A job that makes use of almost everything."""
    return flights(
        namespace="ml",
        env=dict(TRICKY),
        roles={
            "chief": Role(resources=Resources(cpu="4", memory="8Gi", gpu=1, gpu_type="A100")),
            "worker": Role(replicas=3, env={"ROLE_ENV": "yes"}, resources=Resources(cpu="4")),
            "ps": Role(replicas=2, resources=Resources(memory="2Gi")),
            "evaluator": Role(args=["--evaluate"]),
        },
        classic_flags=True,
        restart_policy="exit-code",
        restart_limit=5,
        deadline=7200,
        time_to_live=600,
        clean_up="all",
        gang=Gang(scheduler="volcano", queue="research", minimum=4),
        volumes=[
            Volume(name="data", path="/data", pvc="flights-data"),
            Volume(name="scratch", path="/scratch", empty="10Gi"),
            Volume(name="host", path="/host", host="/srv", read_only=True),
            Volume(name="token", path="/etc/token", secret="token"),
            Volume(name="settings", path="/etc/settings", config="settings"),
        ],
        shared_memory="2Gi",
        secrets=Secrets(
            env={"API_TOKEN": SecretKey("api", "token")},
            files={"/etc/tls": "tls"},
            image_pull=["registry"],
        ),
        credentials=Credentials(
            gcs=GcsCredentials("gcs"),
            s3=S3Credentials("s3", endpoint="http://minio:9000", region="eu-west-1"),
        ),
        node_selector={"disk": "ssd"},
        tolerations=[Toleration(key="gpu", operator="Exists", effect="NoSchedule")],
        service_account="trainer",
        labels={"team": "flights"},
        annotations={"note": 'it\'s # "fine"'},
        tensorboard=TensorBoard(log_dir="/data/logs"),
        serve=Serve(
            models=[
                Model("flights", "/data/models/flights", versions=[1, 2], labels={"stable": 1}),
                Model("delays", "gs://models/delays"),
            ],
            replicas=2,
            batching=Batching(),
            monitoring=True,
        ),
        notebook=Notebook(storage="20Gi", resources=Resources(gpu=1)),
    )
