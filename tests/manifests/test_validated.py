"""Documents, wherever they come from, are looked at before a cluster does."""

from __future__ import annotations

import io
import json
import sys

import pytest
from jobs import SCHEMAS, full, needs_schemas

from gridflow.cli import main
from gridflow.deploy import render, validate


@pytest.fixture(autouse=True)
def _no_schemas_but_those_named(monkeypatch):
    """Let each test say whether there are schemas, whatever stands in this environment."""
    monkeypatch.delenv("GRIDFLOW_SCHEMAS", raising=False)


@needs_schemas
def test_validate_names_path_line_and_reason(tmp_path, capsys):
    text = render(full(), "tfjob", lossy=True).text()
    line = next(i for i, t in enumerate(text.splitlines(), 1) if "restartPolicy: Never" in t)
    path = tmp_path / "tfjob.yaml"
    path.write_text(text.replace("restartPolicy: Never", "restartPolicy: Sometimes", 1))
    assert main(["validate", "-t", "tfjob", str(path), "--schemas", str(SCHEMAS)]) == 1
    out = capsys.readouterr().out
    assert f"{path}:{line}:" in out
    assert "spec.tfReplicaSpecs.Chief.restartPolicy" in out
    assert "'Sometimes'" in out


@needs_schemas
def test_validate_finds_what_only_the_schema_knows():
    text = render(full(), "kubernetes", lossy=True).text()
    broken = text.replace("completionMode: Indexed", "completionMode: Indexed\n  surprise: 1")
    problems = validate("kubernetes", broken, schemas=SCHEMAS).problems
    assert any("surprise" in str(problem) for problem in problems)
    broken = text.replace(
        "emptyDir:\n          medium: Memory", "emptyDir:\n          medum: Memory"
    )
    problems = validate("kubernetes", broken, schemas=SCHEMAS).problems
    assert any("medum" in problem.reason for problem in problems)


def test_a_custom_kind_is_not_taken_for_one_of_kubernetes_own(tmp_path):
    """Volcano's PodGroup has the name and the group's first word of a kind of Kubernetes."""
    text = render(full(), "kubernetes", lossy=True).text()
    assert "scheduling.volcano.sh/v1beta1" in text
    result = validate("kubernetes", text, schemas=tmp_path)
    assert result.problems == ()
    assert any("PodGroup" in note for note in result.notes)


def test_validate_reads_standard_input_and_prints_json(monkeypatch, capsys):
    text = render(full(), "marathon", lossy=True).text().replace('"requirePorts": true', '"x": 1')
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    assert main(["validate", "-t", "marathon", "-", "--json"]) == 1
    result = json.loads(capsys.readouterr().out)
    assert result["problems"][0]["path"] == "apps[0].x"
    assert result["problems"][0]["where"].startswith("<stdin>:")


@pytest.mark.parametrize(
    ("target", "text", "reason"),
    [
        ("kubernetes", "", "contains no document"),
        ("kubernetes", "just a text", "must be a mapping"),
        ("kubernetes", "kind: Job\n", "apiVersion and kind"),
        ("kubernetes", "kind: Jobb\napiVersion: batch/v1\n", "Did you mean 'Job'"),
        ("kubernetes", "kind: ReplicaSet\napiVersion: extensions/v1beta1\n", "unknown kind"),
        ("kubernetes", "kind: Job\napiVersion: batch/v1\nspec: text\n", "'text'"),
        ("compose", "version: '2'\nservices: {a: {image: b}}\n", "obsolete"),
        ("compose", "services: {a: {}}\n", "neither image nor build"),
        ("marathon", '{"id": "/A_b", "apps": []}', "ids contain only"),
        ("marathon", "{", "is not valid YAML"),
    ],
)
def test_documents_from_elsewhere_are_refused_with_a_reason(target, text, reason):
    problems = validate(target, text).problems
    assert any(reason in str(problem) for problem in problems), problems


def test_the_old_templates_are_refused():
    """What tensorflow/ecosystem rendered: a public LoadBalancer and a ReplicaSet per task."""
    text = (
        "kind: ReplicaSet\napiVersion: extensions/v1beta1\nmetadata: {name: mnist-worker-0}\n"
        "spec: {replicas: 1}\n"
    )
    assert validate("kubernetes", text).problems
