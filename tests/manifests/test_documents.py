"""Rendered documents: valid, the same each time, complete, and true to every text."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from environments import ENVIRONMENTS, processes, split_commands
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from jobs import HAS_SCHEMAS, LACKING, SCHEMAS, TRAINING, TRICKY, flights, full, matrix, pairs

from gridflow.deploy import (
    TARGETS,
    Credentials,
    Gang,
    GcsCredentials,
    Job,
    JobError,
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
    explain,
    get_target,
    parse_job,
    render,
    validate,
)
from gridflow.deploy.asking import TEMPLATE
from gridflow.deploy.capabilities import FEATURES, uses
from gridflow.deploy.description.plain_secrets import in_words, is_secret
from gridflow.deploy.description.tree import parse, plain_value
from gridflow.deploy.emit import to_yaml


def expressible(job, target):
    """Render, leaving out what the target can't express; None where the job isn't for it."""
    section = get_target(target).needs[-1]
    if section != "command" and not getattr(job, section):
        return None
    return render(job, target, lossy=True)


def check(target, jobs):
    """Render jobs quickly, each of them valid without the folder of schemas.

    By our own lint, and by the schemas of Kubernetes' own kinds.
    """
    rendered = 0
    for title, job in jobs:
        started = time.process_time()
        rendering = expressible(job, target)
        assert time.process_time() - started < 1.0, title
        if rendering is None:
            continue
        rendered += 1
        if rendering.target.form != "script":
            result = validate(target, rendering.text(), schemas=SCHEMAS)
            assert result.problems == (), title
            assert result.notes == () or not HAS_SCHEMAS or target in LACKING, title
    assert rendered >= 1


@pytest.mark.parametrize("target", TARGETS)
def test_every_two_options_together_are_valid_and_fast(target):
    check(target, [*pairs(), ("full", full()), ("init", parse_job(TEMPLATE))])


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_every_combination_is_valid_and_fast(target):
    check(target, [*matrix(), ("full", full())])


@pytest.mark.parametrize("target", TARGETS)
def test_two_renderings_have_the_same_bytes(target):
    first, second = (expressible(full(), target) for _ in range(2))
    assert first.text() == second.text()
    assert [d.text() for d in first.documents] == [d.text() for d in second.documents]


#: Renders for every target with a hook that ends the process at the first call to the outside.
OFFLINE = """
import sys
from jobs import full
from test_documents import TARGETS, expressible
job = full()
def refuse(event, arguments):
    outside = event.startswith(("socket.", "subprocess.", "os.system", "os.exec", "urllib."))
    writes = event == "open" and set(str(arguments[1] or "")) & set("wax+")
    if outside or writes:
        sys.__stderr__.write(f"{event} {arguments}")
        raise SystemExit(1)
sys.addaudithook(refuse)
for target in TARGETS:
    sys.stdout.write(expressible(job, target).text())
"""


def rendered_offline(seed):
    """The documents of all targets from a process that can neither write nor connect."""
    environ = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONDONTWRITEBYTECODE": "1"}
    here = Path(__file__).parent
    environ["PYTHONPATH"] = f"{here}{os.pathsep}{here.parent}"
    done = subprocess.run(
        [sys.executable, "-c", OFFLINE], env=environ, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def test_rendering_is_offline_and_the_same_in_every_process():
    first, second = rendered_offline("1"), rendered_offline("2")
    assert len(first) > 20_000
    assert first == second


@pytest.mark.parametrize("target", list(ENVIRONMENTS))
def test_tricky_texts_reach_the_process_unchanged(target):
    words = [*TRICKY.values(), "$(EPOCHS)", "--flag=$(EPOCHS)"]
    job = flights(command=["python", "-c", *words], args=[], env=dict(TRICKY))
    for _, _, env, command in processes(job, target):
        assert {name: env[name] for name in TRICKY} == TRICKY
        assert command[command.index("--") + 1 :] == ["python", "-c", *words]


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=60))
@example("\\\n")
@settings(deadline=None, max_examples=300)
def test_any_text_survives_yaml_and_expansion(text):
    assume(not is_secret(text) and not list(in_words(["python", text])))  # these are refused
    job = flights(command=["python", text], args=[], env={"TEXT": text})
    for target in ("kubernetes", "compose", "swarm", "docker"):
        for _, _, env, command in processes(job, target):
            assert (env["TEXT"], command[-1]) == (text, text)


def test_an_index_is_written_in_digits():
    with pytest.raises(JobError, match="'²' is not an index"):
        parse_job("{name: flights, command: [a]}", assignments=["command.²=b"])


def test_merge_keys_and_a_tag_for_text_are_those_of_yaml():
    (node,) = parse(
        "a: &a {x: 1, y: !!str 007, z: yes}\n"
        "b: &b {x: 2, w: 3}\n"
        "own: {<<: *a, x: 5}\n"
        "two: {x: {<<: [*b, *a]}}\n"
        "quoted: {'<<': !!str true}\n",
        "job.yaml",
    )
    tree = plain_value(node)
    assert tree["own"] == {"x": 5, "y": "007", "z": "yes"}
    assert tree["two"]["x"] == {"x": 2, "y": "007", "z": "yes", "w": 3}
    assert tree["quoted"] == {"<<": "true"}


def test_a_job_that_a_program_wrote_as_json_is_read():
    fields = {"name": "flights", "command": ["🐢"], "env": {"TEXT": "żółw 🐢"}}
    job = parse_job(json.dumps(fields))
    assert (job.command, job.env) == (("🐢",), {"TEXT": "żółw 🐢"})
    with pytest.raises(JobError, match=r"job\.yaml:1:37: contains half of a character"):
        parse_job(r'{"name": "flights", "env": {"TEXT": "\ud83d"}}')


_SCALARS = st.none() | st.booleans() | st.integers(-(2**40), 2**40)
_SCALARS |= st.floats(allow_nan=False, allow_infinity=False)
_TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
_KEYS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)


@given(
    st.recursive(
        _SCALARS | _TEXTS,
        lambda inner: st.lists(inner, max_size=10) | st.dictionaries(_KEYS, inner, max_size=4),
        max_leaves=20,
    )
)
@settings(deadline=None, max_examples=300)
def test_yaml_reads_back_as_the_same_tree(tree):
    assert yaml.safe_load(to_yaml([tree])) == tree


def test_the_runtime_for_a_whole_cluster_takes_a_trainjobs_arguments():
    job = flights(name="tensorflow-distributed", command=[], args=[], port=3333)
    (document,) = render(job, "trainer-runtime").documents
    runtime = document.content
    assert "namespace" not in runtime["metadata"]
    assert runtime["spec"]["mlPolicy"] == {"numNodes": 1, "torch": {}}
    (part,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    (box,) = part["template"]["spec"]["template"]["spec"]["containers"]
    assert (part["name"], box["name"]) == ("node", "node")
    # Trainer puts trainer.args in the place of the container's (pkg/runtime/…/jobset/builder.go).
    assert box["command"][:2] == ["gridflow", "launch"]
    assert box["command"][-1] == "--"
    assert {"name": "GRIDFLOW_PORT", "value": "3333"} in box["env"]
    own = render(flights(), "trainer-runtime").documents[0].text()
    assert "/app/train.py" in own


def test_a_document_of_ours_is_read_back_whatever_characters_it_holds():
    text = "".join(map(chr, [*range(1, 0x100), 0x2028, 0xFEFF, 0xFFFE, 0xFFFF, 0x1F600]))
    job = flights(env={"TEXT": text})
    for target in ("marathon", "compose", "swarm", "kubernetes"):
        assert validate(target, render(job, target).text()).problems == ()


def test_gpus_choose_the_default_images():
    gpu = Resources(gpu=1)
    models = [Model("m", "gs://m")]
    assert Serve(models, resources=gpu).image.endswith("-gpu")
    assert not Serve(models).image.endswith("-gpu")
    assert "-cuda:" in Notebook(resources=gpu).image
    assert "-cuda:" not in Notebook().image
    assert Serve(models, image="own/serving:1", resources=gpu).image == "own/serving:1"


def test_a_model_in_s3_is_served_where_it_can_be_read():
    serve = Serve([Model("m", "s3://m")])
    assert "storageUri: s3://m" in render(flights(serve=serve), "kserve").text().replace('"', "")
    own = dataclasses.replace(serve, image="registry.example/serving-with-s3:1")
    assert "s3://m" in render(flights(serve=own), "serving").text()


def test_a_secret_is_named_and_never_copied():
    for target in TARGETS:
        rendering = expressible(full(), target)
        if rendering.target.form == "kubernetes":
            for document in rendering.documents:
                for name, value in plain_variables(document.content):
                    assert name not in {"API_TOKEN", "AWS_SECRET_ACCESS_KEY"}, value


def test_the_renderers_do_not_read_the_environment(monkeypatch):
    for name in ("API_TOKEN", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "hunter2")
    for target in TARGETS:
        text = expressible(full(), target).text()
        assert "hunter2" not in text, target


def plain_variables(tree):
    if isinstance(tree, dict):
        if "name" in tree and "value" in tree:
            yield tree["name"], tree["value"]
        for child in tree.values():
            yield from plain_variables(child)
    elif isinstance(tree, list):
        for child in tree:
            yield from plain_variables(child)


#: For every feature, a change to the plain job that makes use of it.
CHANGES = {
    "namespace": {"namespace": "ml"},
    "image": {"image": "registry.example/other:2"},
    "command": {"command": ["python", "/other.py"]},
    "env": {"env": {"ANOTHER": "variable"}},
    "roles.chief": {"roles": {"chief": Role(), "worker": Role(2)}},
    "roles.worker": {"roles": {"worker": Role(3)}},
    "roles.ps": {"roles": {"chief": Role(), "worker": Role(2), "ps": Role(2)}},
    "roles.evaluator": {"roles": {"worker": Role(2), "evaluator": Role()}},
    "roles.dispatcher": {
        "roles": {"worker": Role(2), "data": Role(2), "dispatcher": Role(env={"OWN": "variable"})}
    },
    "roles.data": {"roles": {"worker": Role(2), "data": Role(2)}},
    "roles.command": {"roles": {"worker": Role(2, command=["python", "/own.py"])}},
    "roles.env": {"roles": {"worker": Role(2, env={"OWN": "variable"})}},
    "resources.cpu": {"roles": {"worker": Role(2, resources=Resources(cpu="3"))}},
    "resources.memory": {"roles": {"worker": Role(2, resources=Resources(memory="3Gi"))}},
    "resources.gpu": {"roles": {"worker": Role(2, resources=Resources(gpu=2))}},
    "resources.gpu_type": {
        "roles": {"worker": Role(2, resources=Resources(gpu=1, gpu_type="A100"))}
    },
    "resources.gpu_resource": {
        "roles": {"worker": Role(2, resources=Resources(gpu=1, gpu_resource="amd.com/gpu"))}
    },
    "affinity": {"affinity": {"nodeAffinity": {}}},
    "priority_class": {"priority_class": "high"},
    "run_as_user": {"run_as_user": 1234},
    "port": {"port": 3333},
    "classic_flags": {"classic_flags": True},
    "restart_policy=exit-code": {"restart_policy": "exit-code"},
    "restart_policy=never": {"restart_policy": "never"},
    "restart_limit": {"restart_limit": 9},
    "start_timeout": {"start_timeout": 1800},
    "deadline": {"deadline": 3600},
    "time_to_live": {"time_to_live": 600},
    "clean_up=none": {"clean_up": "none"},
    "clean_up=all": {"clean_up": "all"},
    "gang.scheduler=kueue": {"gang": Gang(scheduler="kueue", queue="research")},
    "gang.scheduler=volcano": {"gang": Gang(scheduler="volcano")},
    "gang.queue": {"gang": Gang(queue="research")},
    "gang.minimum": {"gang": Gang(minimum=1)},
    "volumes.pvc": {"volumes": [Volume("data", "/data", pvc="claim")]},
    "volumes.empty": {"volumes": [Volume("data", "/data", empty="1Gi")]},
    "volumes.host": {"volumes": [Volume("data", "/data", host="/srv")]},
    "volumes.secret": {"volumes": [Volume("data", "/data", secret="name")]},
    "volumes.config": {"volumes": [Volume("data", "/data", config="name")]},
    "shared_memory": {"shared_memory": "2Gi"},
    "secrets.env": {"secrets": Secrets(env={"API_TOKEN": SecretKey("api", "token")})},
    "secrets.files": {"secrets": Secrets(files={"/etc/tls": "tls"})},
    "secrets.image_pull": {"secrets": Secrets(image_pull=["registry"])},
    "credentials.gcs": {"credentials": Credentials(gcs=GcsCredentials("gcs"))},
    "credentials.s3": {"credentials": Credentials(s3=S3Credentials("s3", region="eu-west-1"))},
    "node_selector": {"node_selector": {"disk": "ssd"}},
    "tolerations": {"tolerations": [Toleration(key="gpu", operator="Exists")]},
    "service_account": {"service_account": "trainer"},
    "labels": {"labels": {"team": "flights"}},
    "annotations": {"annotations": {"note": "anything"}},
    "tensorboard": {"tensorboard": TensorBoard("gs://bucket/logs")},
    "overrides": None,
}
#: What a target does by itself; saying so again changes nothing.
ALREADY = {
    ("volcano", "gang.scheduler=volcano"),
    ("volcano", "gang.minimum"),
    ("docker", "clean_up=none"),
    ("compose", "clean_up=none"),
    ("swarm", "clean_up=none"),
}


@pytest.mark.parametrize("target", [t for t in TARGETS if "command" in get_target(t).needs])
def test_each_feature_changes_the_documents_or_is_refused_by_name(target):
    plain = flights(args=[], roles={"worker": Role(2)}, restart_limit=3)
    before = render(plain, target).text()
    how = {row.feature: row.how for row in explain(target)}
    for feature, change in CHANGES.items():
        own = {"overrides": {target: override_of(target)}}
        job = dataclasses.replace(plain, **(own if change is None else change))
        assert feature in {use.feature for use in uses(job)}
        if how[feature] == "yes":
            if (target, feature) not in ALREADY:
                assert render(job, target).text() != before, feature
        elif how[feature] == "other":
            assert render(job, target).text() == before, feature
        else:
            with pytest.raises(JobError, match=target) as refused:
                render(job, target)
            assert refused.value.problems[0].path, feature
            if feature != "overrides" and not feature.startswith("roles."):
                assert render(job, target, lossy=True).warnings, feature


def override_of(target):
    if get_target(target).form == "compose":
        return {"services": {"worker-0": {"privileged": True}}}
    if get_target(target).form == "swarm":
        return {"services": {"worker": {"read_only": True}}}
    if get_target(target).form == "marathon":
        return {"apps": [{"id": "/flights/worker-0", "disk": 10}]}
    kind = (
        render(flights(), target).documents[-1].content["kind"] if target_has_kinds(target) else ""
    )
    return {kind: {"metadata": {"labels": {"more": "labels"}}}}


def target_has_kinds(target):
    return get_target(target).form == "kubernetes"


def test_every_feature_is_tried():
    sides = {"serve.models", "serve.versions", "serve.batching", "serve.monitoring"}
    sides |= {"serve.replicas", "notebook", "spark", "marathon"}
    defaults = {"restart_policy=on-failure", "clean_up=running"}
    assert set(CHANGES) | sides | defaults == set(FEATURES)


def test_an_override_reaches_into_lists_by_name():
    box = {"name": "tensorflow", "imagePullPolicy": "Always"}
    tree = {"Job/flights-worker": {"spec": {"template": {"spec": {"containers": [box]}}}}}
    job = flights(overrides={"kubernetes": tree})
    worker = render(job, "kubernetes").documents[1].content
    (container,) = worker["spec"]["template"]["spec"]["containers"]
    assert container["imagePullPolicy"] == "Always"
    assert container["image"] == job.image


def test_an_override_of_null_takes_a_field_away():
    job = flights(overrides={"kubernetes": {"Job": {"spec": {"podFailurePolicy": None}}}})
    assert "podFailurePolicy" not in render(job, "kubernetes").documents[1].content["spec"]


def test_the_evaluator_is_in_no_cluster_spec():
    job = flights(roles={"chief": Role(), "worker": Role(2), "ps": Role(1), "evaluator": Role()})
    for target in TRAINING:
        for _, _, env, _ in processes(job, target):
            if "GRIDFLOW_CLUSTER" in env:
                assert list(json.loads(env["GRIDFLOW_CLUSTER"])) == ["chief", "worker", "ps"]


def test_every_address_has_a_task_of_its_own():
    job = flights(roles={"chief": Role(), "worker": Role(3), "ps": Role(2)})
    for target in TRAINING:
        texts = {env.get("GRIDFLOW_CLUSTER") for _, _, env, _ in processes(job, target)}
        assert len(texts) == 1
        text = texts.pop()
        if text is not None:
            hosts = [address for hosts in json.loads(text).values() for address in hosts]
            assert len(set(hosts)) == len(hosts) == 6


def test_scripts_are_syntactically_right(tmp_path):
    for target in TARGETS:
        if get_target(target).form == "script":
            script = tmp_path / "script.sh"
            script.write_text(render(full(), target, lossy=True).text())
            subprocess.run(["sh", "-n", str(script)], check=True)
            assert list(split_commands(script.read_text()))


def test_the_dockerfile_has_a_pinned_base_and_no_root():
    dockerfile = render(flights(), "docker").documents[0].text()
    base = next(line for line in dockerfile.splitlines() if line.startswith("FROM "))
    assert ":" in base
    assert "latest" not in base
    assert "USER 10001" in dockerfile


def test_a_lone_task_gets_its_identity_without_the_operators_tf_config():
    ((_, _, env, _),) = processes(flights(roles={"worker": Role(1)}), "tfjob")
    assert "TF_CONFIG" not in env
    assert (env["GRIDFLOW_ROLE"], env["GRIDFLOW_INDEX"]) == ("worker", "0")


def test_serving_is_ready_when_the_model_is():
    rendering = render(full(), "serving", lossy=True)
    config, deployment, _ = (document.content for document in rendering.documents)
    box = deployment["spec"]["template"]["spec"]["containers"][0]
    assert box["readinessProbe"]["httpGet"]["path"] == "/v1/models/flights/metadata"
    assert 'base_path: "/data/models/flights"' in config["data"]["models.config"]
    assert "specific { versions: 1 versions: 2 }" in config["data"]["models.config"]
    assert "max_batch_size { value: 32 }" in config["data"]["batching.config"]
    assert "--enable_batching=true" in box["args"]


def test_examples_in_docstrings_hold():
    import doctest

    import gridflow.deploy

    assert doctest.testmod(gridflow.deploy).failed == 0


def test_a_job_made_in_python_equals_the_same_job_from_yaml():
    text = to_yaml(
        [
            {
                "name": "flights",
                "image": "registry.example/acme/flights:1.0",
                "command": ["python", "/app/train.py"],
                "args": ["--epochs", "5"],
                "env": {"EPOCHS": "5"},
                "roles": {"worker": {"replicas": 2, "resources": {"cpu": "2"}}},
            }
        ]
    )
    roles = {"worker": Role(2, resources=Resources(cpu="2"))}
    assert parse_job(text) == flights(roles=roles)
    assert isinstance(parse_job(text), Job)
