"""Bad input is refused with its path and reason before a byte is printed."""

from __future__ import annotations

import json
import re

import pytest
import yaml

from gridflow._spec.exits import Exit
from gridflow.cli import main
from gridflow.deploy import JobError, parse_job, render, validate
from gridflow.deploy.description import rules
from gridflow.deploy.emit import to_yaml
from gridflow.errors import InvalidArgument

BASE = """\
name: flights
image: registry.example/flights:1
command: [python, train.py]
"""
TWO = "roles: {worker: {replicas: 2}}\n"

#: Added to the base (or replacing one of its fields), the path that is named, a part of the reason.
DESCRIPTIONS = [
    ("name: MNIST_1", "name", "Did you mean 'mnist-1'"),
    ("name: 1flights", "name", "begins with a letter"),
    (f"name: {'a' * 64}", "name", "64 characters"),
    ("name: flights.main", "name", "not a DNS label"),
    ("namespace: My_Space", "namespace", "not a DNS label"),
    ("image: Registry/Flights:1", "image", "lower case"),
    ("image: 'flights:'", "image", "not an image"),
    ("command: python train.py", "command", "Write it as a list"),
    ("args: {a: b}", "args", "must be a list"),
    ("env: [A=b]", "env", "must be a mapping"),
    ("env: {1A: b}", "env.1A", "not a variable name"),
    ("env: {A: [b]}", "env.A", "must be a string"),
    ("env: {DB_PASSWORD: hunter2}", "env.DB_PASSWORD", "looks like a secret"),
    ("env: {AWS_SECRET_ACCESS_KEY: abc}", "env.AWS_SECRET_ACCESS_KEY", "secrets: {env:"),
    ("args: [--api-key=abc]", "args[0]", "looks like a secret"),
    ("args: [--token, s3cr3t]", "args[0]", "looks like a secret"),
    ("args: [sh, -c, 'PGPASSWORD=abc psql']", "args[2]", "looks like a secret"),
    ("args: [--db, 'postgres://me:abc@host/db']", "args[1]", "looks like a secret"),
    ("env: {PGPASSWORD: abc}", "env.PGPASSWORD", "looks like a secret"),
    ("env: {DB_PASS: abc}", "env.DB_PASS", "looks like a secret"),
    ("env: {A: sk_live_4eC39HqLyjWDarjtT1zdp7dc}", "env.A", "looks like a secret"),
    ("args: [hf_aBcDeFgHiJkLmNoPqRsTuVwXyZ01234567]", "args[0]", "looks like a secret"),
    ("env: {DATABASE_URL: 'postgres://me:abc@host/db'}", "env.DATABASE_URL", "looks like a secret"),
    ("roles: {worker: {env: {dbPassword: abc}}}", "roles.worker.env.dbPassword", "like a secret"),
    (
        "roles: {worker: {env: {A: b}}}\nsecrets: {env: {A: {secret: s, key: k}}}",
        "secrets.env.A",
        "is also in roles.worker.env",
    ),
    ("restartPolicy: Always", "restartPolicy", "Did you mean 'restart_policy'"),
    ("restart_policy: Always", "restart_policy", "must be one of"),
    ("restart_policy: onfailure", "restart_policy", "Did you mean 'on-failure'"),
    ("restart_limit: -1", "restart_limit", "at least 0"),
    ("restart_limit: three", "restart_limit", "whole number"),
    (f"restart_limit: {'9' * 5000}", "restart_limit", "whole number"),
    (f"deadline: {'9' * 5000}", "deadline", "not a duration"),
    ("shared_memory: 1e99999", "shared_memory", "less than 8Ei"),
    ("overrides: {kubernetes: {Service: null}}", "overrides.kubernetes.Service", "tree of fields"),
    ("overrides: {kubernetes: {Service: text}}", "overrides.kubernetes.Service", "tree of fields"),
    ("roles: {wroker: {replicas: 2}}", "roles.wroker", "Did you mean 'worker'"),
    ("roles: {chief: {replicas: 2}}", "roles.chief.replicas", "at most one chief"),
    ("roles: {worker: {}, evaluator: {replicas: 2}}", "roles.evaluator.replicas", "at most one"),
    ("roles: {ps: {replicas: 2}}", "roles", "no task trains"),
    ("roles: {worker: {replicas: -1}}", "roles.worker.replicas", "at least 0"),
    ("roles: {worker: {replicas: 10001}}", "roles.worker.replicas", "at most 10,000"),
    ("roles: {worker: {replicas: 2.5}}", "roles.worker.replicas", "whole number"),
    ("roles: {worker: {replicas: [2, 8]}}", "roles.worker.replicas", "groups of TensorFlow's"),
    ("roles: {worker: {replicsa: 2}}", "roles.worker.replicsa", "Did you mean 'replicas'"),
    ("roles: {worker: {}, ps: {args: [x]}}", "roles.ps.args", "takes no args"),
    ("roles: {worker: {command: []}}", "roles.worker.command", "without a chief"),
    ("roles: {worker: {resources: {memory: 2Gx}}}", "roles.worker.resources.memory", "'2Gx'"),
    ("roles: {worker: {resources: {memory: 4}}}", "roles.worker.resources.memory", "'4Gi'"),
    ("roles: {worker: {resources: {cpu: two}}}", "roles.worker.resources.cpu", "not a quantity"),
    ("roles: {worker: {resources: {cpu: 0}}}", "roles.worker.resources.cpu", "more than 0"),
    ("roles: {worker: {resources: {gpu: 0.5}}}", "roles.worker.resources.gpu", "whole number"),
    (
        "roles: {worker: {resources: {gpus: 1}}}",
        "roles.worker.resources.gpus",
        "Did you mean 'gpu'",
    ),
    (
        "roles: {worker: {resources: {gpu_type: A100}}}",
        "roles.worker.resources.gpu_type",
        "gpu is 0",
    ),
    ("affinity: {nodeAfinity: {}}", "affinity.nodeAfinity", "Did you mean 'nodeAffinity'"),
    ("priority_class: A B", "priority_class", "not a DNS name"),
    ("run_as_user: -1", "run_as_user", "at least 0"),
    ("roles: {worker: {resources: {gpu_resource: x}}}", "resources.gpu_resource", "no vendor"),
    ("port: 70000", "port", "from 1 to 65535"),
    ("port: 0", "port", "from 1 to 65535"),
    ("port: '22 22'", "port", "whole number"),
    ("classic_flags: yes", "classic_flags", "true or false"),
    ("start_timeout: 0", "start_timeout", "at least 1"),
    ("deadline: 2 hours", "deadline", "not a duration"),
    ("deadline: 0", "deadline", "at least 1"),
    ("clean_up: Running", "clean_up", "Did you mean 'running'"),
    ("gang: {minimum: 5}", "gang.minimum", "more than the job's 1 tasks"),
    ("gang: {scheduler: kueue}", "gang.queue", "name of a LocalQueue"),
    ("gang: {scheduler: yarn}", "gang.scheduler", "must be one of"),
    ("volumes: [{name: data, path: data, pvc: x}]", "volumes[0].path", "must begin with '/'"),
    ("volumes: [{name: data, path: /data}]", "volumes[0]", "exactly one of"),
    ("volumes: [{name: data, path: /d, pvc: x, host: /x}]", "volumes[0]", "got pvc, host"),
    ("volumes: [{path: /data, pvc: x}]", "volumes[0].name", "is missing"),
    (
        "volumes: [{name: d, path: /a, pvc: x}, {name: d, path: /b, pvc: y}]",
        "volumes[1].name",
        "defined twice",
    ),
    ("shared_memory: 2 Gi", "shared_memory", "not a quantity"),
    ("secrets: {env: {A: {secret: s}}}", "secrets.env.A.key", "is missing"),
    ("secrets: {files: {etc: tls}}", "secrets.files.etc", "must begin with '/'"),
    ("credentials: {s3: {secret: s, endpoint: minio}}", "credentials.s3.endpoint", "http://"),
    ("tolerations: [{key: a, value: b c}]", "tolerations[0].value", "not a label value"),
    ("roles: {worker: {resources: {memory: 4000000K}}}", "roles.worker.resources.memory", "'Ki'"),
    ("env: &env {A: *env}", "", "an alias refers to a value that contains it"),
    ("env: {<<: 3}", "<<", "takes a mapping or a list of mappings, got a string"),
    ("overrides: {kubernetes: {Job: !reset null}}", "", "unknown tag '!reset'"),
    ("env: [[" + "[" * 500 + "]" * 500 + "]]", "", "nested too deeply"),
    ("tolerations: [{operator: Equals}]", "tolerations[0].operator", "Did you mean 'Equal'"),
    ("node_selector: {disk: a b}", "node_selector.disk", "not a label value"),
    ("labels: {-team: a}", "labels.-team", "not a label key"),
    ("tensorboard: {log_dir: /data/logs}", "tensorboard.log_dir", "isn't in a volume"),
    ("tensorboard: {log_dir: gs://b, port: 99999}", "tensorboard.port", "from 1 to 65535"),
    ("serve: {models: []}", "serve.models", "at least one model"),
    (
        "serve: {models: [{name: m, path: gs://m, versions: [1], labels: {a: 2}}]}",
        "serve.models[0].labels.a",
        "isn't served",
    ),
    (
        "spark: {conf: {executor.cores: '1'}}",
        "spark.conf.executor.cores",
        "must begin with 'spark.'",
    ),
    ("overrides: {kubernets: {}}", "overrides.kubernets", "Did you mean 'kubernetes'"),
    ("overrides: {kubernetes: {Jbo: {}}}", "overrides.kubernetes.Jbo", "Did you mean 'Job'"),
    ("name: flights\nname: again", "", "defined twice"),
    ("env: {A: 'unclosed", "", "is not valid YAML"),
    ("--- a second document", "", "found 2"),
]

#: Overrides of the Kubernetes Job that its schema would let pass or that would fail on the server.
OVERRIDES = [
    ("containers: [{name: [a]}]", "spec.template.spec.containers[0].name", "must be a string"),
    ("restartPolicy: Always", "restartPolicy", "must be one of 'Never', 'OnFailure'"),
    ("restartPolcy: Never", "restartPolcy", "Did you mean 'restartPolicy'"),
    ("restartPolicy: OnFailure", "podFailurePolicy", "needs restartPolicy: Never"),
    ("containers: []", "containers", "at least one container"),
    ("containers: [{name: Tensor_Flow, image: a}]", "containers[1].name", "not a DNS label"),
    (
        "containers: [{name: tensorflow, resources: {requests: {cpu: 8}, limits: {cpu: 4}}}]",
        "requests.cpu",
        "more than the limit",
    ),
    (
        "containers: [{name: tensorflow, resources: {limits: {nvidia.com/gpu: 0.5}}}]",
        "limits.nvidia.com/gpu",
        "whole numbers",
    ),
    (
        "containers: [{name: tensorflow, volumeMounts: [{name: data, mountPath: /data}]}]",
        "volumeMounts[0].name",
        "there is no volume 'data'",
    ),
    (
        "containers: [{name: tensorflow, ports: [{name: tensorflow, containerPort: 70000}]}]",
        "containerPort",
        "from 1 to 65535",
    ),
    (
        "containers: [{name: tensorflow, ports: [{name: a-name-that-is-long, containerPort: 1}]}]",
        "ports[1].name",
        "at most 15",
    ),
    (
        "containers: [{name: tensorflow, env: [{name: MY_TOKEN, value: abc}]}]",
        "value",
        "looks like a secret",
    ),
    ("volumes: [{name: a, emptyDir: {}, hostPath: {path: /}}]", "volumes[0]", "one source"),
    ("nodeSelector: {disk: 'a b'}", "nodeSelector.disk", "not a label value"),
    ("tolerations: [{key: a, value: b c}]", "tolerations[0].value", "not a label value"),
]

#: Whole jobs that only the target refuses.
TARGETS = [
    ("kubernetes", f"name: {'a' * 60}", "completions", "host name has at most 63"),
    ("tfjob", f"name: {'a' * 60}", "metadata.name", "host name has at most 63"),
    ("volcano", f"name: {'a' * 60}", "metadata.name", "host name has at most 63"),
    ("jobset", f"name: {'a' * 50}", "completions", "host name has at most 63"),
    ("trainjob", f"name: {'a' * 50}", "metadata.name", "host name has at most 63"),
    ("serving", "serve: {models: [{name: m, path: 's3://m'}]}", "serve.models[0].path", "kserve"),
    (
        "kubernetes",
        "tensorboard: {log_dir: 's3://m'}",
        "tensorboard.log_dir",
        "only files and gs://",
    ),
    ("local", "tensorboard: {log_dir: 's3://m'}", "tensorboard.log_dir", "only files and gs://"),
    ("marathon", f"name: {'a' * 60}", "env", "can't exist"),
    ("compose", "gang: {queue: research}", "gang.queue", "compose can't express"),
    ("marathon", "volumes: [{name: d, path: /d, pvc: x}]", "volumes[0].pvc", "marathon can't"),
    (
        "local",
        "roles: {worker: {resources: {gpu: 1}}}",
        "roles.worker.resources.gpu",
        "local can't",
    ),
    ("serving", "env: {A: b}", "serve", "the target serving requires it"),
    ("docker", "overrides: {docker: {a: b}}", "overrides.docker", "renders scripts"),
    (
        "marathon",
        "overrides: {marathon: {apps: [{id: /flights/worker-0, args: [run]}]}}",
        "apps[0].cmd",
        "can't be used together",
    ),
    (
        "marathon",
        "overrides: {marathon: {apps: [{id: /flights/worker-0, container: {network: HOST}}]}}",
        "apps[0].container",
        "was removed",
    ),
    ("swarm", f"name: {'a' * 58}", "name", "has 65 characters (limit 63)"),
    ("swarm", "node_selector: {a.example/disk: ssd}", "node_selector.a.example/disk", "no '/'"),
    ("swarm", "secrets: {files: {/etc/tls: tls}}", "secrets.files", "without keys"),
    (
        "swarm",
        f"secrets: {{env: {{TOKEN: {{secret: {'a' * 60}, key: token}}}}}}",
        f"secrets.{'a' * 60}.token",
        "at most 64",
    ),
    (
        "swarm",
        "overrides: {swarm: {services: {worker: {privileged: true, depends_on: [worker]}}}}",
        "services.worker.privileged",
        "ignored by 'docker stack deploy'",
    ),
    (
        "swarm",
        "overrides: {swarm: {services: {worker: {deploy: {mode: replicated-job}}}}}",
        "services.worker.hostname",
        "count from 0",
    ),
    (
        "swarm",
        "overrides: {swarm: {services: {worker: {ports: ['80:80']}}}}",
        "services.worker.deploy.endpoint_mode",
        "with dnsrr, ports can only be published",
    ),
    (
        "swarm",
        "overrides: {swarm: {services: {worker: {deploy: {restart_policy: {condition: never}}}}}}",
        "services.worker.deploy.restart_policy.condition",
        "'on-failure'",
    ),
    (
        "swarm",
        "overrides: {swarm: {services: {worker: {hostname: 'w-{{.Task.Index}}'}}}}",
        "services.worker.hostname",
        "unknown placeholder {{.Task.Index}}",
    ),
    (
        "swarm",
        "overrides: {swarm: {services: {worker: {deploy: {placement: {constraints: [disk]}}}}}}",
        "services.worker.deploy.placement.constraints[0]",
        "invalid constraint",
    ),
    ("swarm", "overrides: {swarm: {version: '2'}}", "version", "must be 3 or 3.N"),
    ("swarm", "overrides: {swarm: {configs: {a: {}}}}", "configs.a", "neither file nor external"),
    (
        "compose",
        "overrides: {compose: {services: {worker-0: {depends_on: [db]}}}}",
        "services.worker-0.depends_on",
        "no service 'db'",
    ),
    (
        "tfjob",
        (
            "overrides: {tfjob: {TFJob: {spec: {tfReplicaSpecs: {Master: {replicas: 1, template: "
            "{spec: {containers: [{name: tensorflow, image: a}]}}}, Chief: {replicas: 1, template: "
            "{spec: {containers: [{name: tensorflow, image: a}]}}}}}}}}"
        ),
        "spec.tfReplicaSpecs",
        "at most one chief",
    ),
    ("local", TWO + "port: 65533", "port", "ports go up to 65536"),
    ("compose", TWO + "port: 65535", "port", "ports go up to 65536"),
    ("docker", TWO + "port: 65535", "port", "ports go up to 65536"),
    ("docker", f"name: {'a' * 55}", "name", "has 64 characters"),
    (
        "spark-submit-kubernetes",
        "secrets: {files: {/a: tls, /b: tls}}",
        "secrets.files./b",
        "one path only",
    ),
    (
        "volcano",
        "overrides: {volcano: {Job: {spec: {minAvailable: 9}}}}",
        "spec.minAvailable",
        "more than the job's 1 tasks",
    ),
]


def text_of(change):
    """The base with a change, which replaces the field of the same name."""
    if change.startswith(("name: flights\n", "---")):
        return BASE + change + "\n"
    field = change.partition(":")[0]
    kept = [line for line in BASE.splitlines(keepends=True) if not line.startswith(f"{field}:")]
    return "".join(kept) + change + "\n"


def render_by_command(text, target, tmp_path, capsys):
    """Render as a user would; return the exit code, standard output and standard error."""
    path = tmp_path / "job.yaml"
    path.write_text(text)
    code = main(["render", "-t", target, str(path)])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_the_base_itself_is_accepted(tmp_path, capsys):
    assert render_by_command(BASE, "kubernetes", tmp_path, capsys)[0] == 0


@pytest.mark.parametrize(("change", "path", "reason"), DESCRIPTIONS, ids=lambda v: str(v)[:50])
def test_a_bad_description_is_refused(change, path, reason, tmp_path, capsys):
    code, out, err = render_by_command(text_of(change), "kubernetes", tmp_path, capsys)
    assert (code, out) == (Exit.USAGE, "")
    assert reason in err
    assert f"{path}: " in err
    if "overrides" not in change:
        assert re.search(r"job\.yaml(:\d+:\d+)?: ", err)


@pytest.mark.parametrize(("change", "path", "reason"), OVERRIDES, ids=lambda v: str(v)[:50])
def test_a_bad_override_is_refused(change, path, reason, tmp_path, capsys):
    tree = f"overrides: {{kubernetes: {{Job: {{spec: {{template: {{spec: {{{change}}}}}}}}}}}}}"
    code, out, err = render_by_command(text_of(tree), "kubernetes", tmp_path, capsys)
    assert (code, out) == (Exit.USAGE, "")
    assert reason in err
    assert f"{path}: " in err
    assert "Job/flights-worker" in err


@pytest.mark.parametrize(("target", "change", "path", "reason"), TARGETS)
def test_a_job_that_a_target_would_refuse_is_refused_here(
    target, change, path, reason, tmp_path, capsys
):
    code, out, err = render_by_command(text_of(change), target, tmp_path, capsys)
    assert (code, out) == (Exit.USAGE, "")
    assert reason in err
    assert f"{path}: " in err


def test_there_are_sixty_and_more():
    assert len(DESCRIPTIONS) + len(OVERRIDES) + len(TARGETS) >= 60


def test_all_problems_are_reported_at_once():
    with pytest.raises(JobError) as refused:
        parse_job("name: A_B\nport: 0\nrestart_policy: maybe\ndeadline: 0\n")
    assert [p.path for p in refused.value.problems] == [
        "name",
        "port",
        "restart_policy",
        "deadline",
    ]
    assert [p.where for p in refused.value.problems] == [
        f"job.yaml:{line}:{column}" for line, column in ((1, 7), (2, 7), (3, 17), (4, 11))
    ]


#: One mistake each, and how its line of the error begins.
LOCATED = {
    "an unknown key": (
        "roles:\n  worker:\n    replicsa: 3\n",
        "job.yaml:6:5: roles.worker.replicsa: unknown key 'replicsa'. Did you mean 'replicas'?",
    ),
    "a key of another field": (
        "roles: {worker: {gpu: 1}}\n",
        "job.yaml:4:18: roles.worker.gpu: unknown key 'gpu'. It belongs under roles.ROLE.res",
    ),
    "a key like none": (
        "wibble: 1\n",
        "job.yaml:4:1: wibble: unknown key 'wibble'. The fields are",
    ),
    "a wrong type": ("port: many\n", "job.yaml:4:7: port: must be a whole number, got 'many'."),
    "a missing field": ("volumes:\n  - path: /d\n", "job.yaml:5:5: volumes[0].name: is missing."),
    "no YAML": ("env:\n  A: [b\n", "job.yaml:6:1: is not valid YAML: "),
    "a tab": ("env:\n\tA: b\n", "job.yaml:5:1: is not valid YAML: found character '\\t'"),
    "no character": (
        "env:\n  A: '\x01'\n",
        "job.yaml:5:7: is not valid YAML: it can't contain the character '\\x01'.",
    ),
    "a bad value": ("deadline: 0\n", "job.yaml:4:11: deadline: must be at least 1, got 0."),
    "two fields that don't agree": (
        "gang:\n  minimum: 9\n",
        "job.yaml:5:12: gang.minimum: 9 is more than the job's 1 tasks.",
    ),
    "what the target can't express": (
        "volumes:\n  - name: d\n    path: /d\n    pvc: x\n",
        "job.yaml:7:10: volumes[0].pvc: the target marathon can't express it: ",
    ),
    "what the target would reject": (
        "overrides: {marathon: {apps: [{id: /flights/worker-0, args: [run]}]}}\n",
        "group.json: apps[0].cmd: ",
    ),
    "an override of nothing": (
        "overrides:\n  marathn: {}\n",
        "job.yaml:5:3: overrides.marathn: unknown target 'marathn'. Did you mean 'marathon'?",
    ),
}


@pytest.mark.parametrize("mistake", LOCATED)
def test_a_mistake_is_located_in_the_file(mistake, tmp_path, capsys):
    change, line = LOCATED[mistake]
    _, _, err = render_by_command(BASE + change, "marathon", tmp_path, capsys)
    (got,) = err.splitlines()
    place, _, _ = line.partition(" ")
    file = place if place == "group.json:" else f"{tmp_path}/{place}"
    assert got.startswith(f"gridflow render: {file} {line.partition(' ')[2]}")


def test_what_was_left_out_is_located_too(tmp_path, capsys):
    path = tmp_path / "job.yaml"
    path.write_text(BASE + "time_to_live: 1h\n")
    assert main(["render", "-t", "compose", "--lossy", str(path)]) == 0
    assert f"warning: {path}:4:15: time_to_live: the target compose" in capsys.readouterr().err


def test_mistakes_of_every_kind_are_reported_at_once_in_the_order_of_lines():
    text = """\
name: A_B
comand: [x]
roles: {worker: {replicsa: 2, resources: {cpu: [2]}}}
port: 0
volumes: [{path: /d}]
deadline: soon
"""
    with pytest.raises(JobError) as refused:
        parse_job(text, assignments=["restart_policy=maybe"])
    assert [(p.where, p.path) for p in refused.value.problems] == [
        ("job.yaml:1:7", "name"),
        ("job.yaml:2:1", "comand"),
        ("job.yaml:3:18", "roles.worker.replicsa"),
        ("job.yaml:3:43", "roles.worker.resources.cpu"),
        ("job.yaml:4:7", "port"),
        ("job.yaml:5:11", "volumes[0].name"),
        ("job.yaml:6:11", "deadline"),
        ("--set restart_policy=maybe", "restart_policy"),
    ]


def test_no_mistake_is_reported_that_only_another_one_makes():
    """Its volume can't be read, nor its roles: nothing can be said about what needs them."""
    text = """\
name: flights
roles: {worker: {replicas: many}}
gang: {minimum: 4}
volumes: [{name: data, path: /data, pvc: [x]}]
tensorboard: {log_dir: /data/logs}
serve: {models: [{name: m, path: /data/m}]}
"""
    with pytest.raises(JobError) as refused:
        parse_job(text)
    assert [p.path for p in refused.value.problems] == ["roles.worker.replicas", "volumes[0].pvc"]


def test_an_error_survives_pickling():
    import pickle

    with pytest.raises(JobError) as refused:
        parse_job("name: A_B\n")
    again = pickle.loads(pickle.dumps(refused.value))
    assert again.problems == refused.value.problems
    assert str(again) == str(refused.value)


@pytest.mark.parametrize("text", ["1e99999999999999999999", "9" * 5_000, "0." + "1" * 99])
def test_an_amount_that_no_computer_has_is_refused_with_a_reason(text):
    assert "not a quantity" in rules.memory(text)
    assert "not a quantity" in rules.cpu(text)


def test_a_number_of_many_digits_is_a_mistake_like_any_other():
    many = "9" * 5_000
    compose = f"services: {{a: {{image: x, ports: ['{many}:1', '²:1']}}}}"
    assert validate("compose", compose).problems
    cluster = json.dumps({"worker": [f"a:{many}", "a:²"]})
    service = {"image": "x", "environment": {"GRIDFLOW_CLUSTER": cluster}}
    text = yaml.safe_dump({"services": {"a": service}})
    assert "an address is host:port" in str(validate("compose", text).problems)
    with pytest.raises(JobError, match="not an index"):
        parse_job(BASE, assignments=["args=[a]", f"args.{many}=x"])


def test_names_that_no_parser_reads_are_refused():
    with pytest.raises(
        JobError, match=r"has 70,000 characters; a variable's name has at most 1,000"
    ):
        parse_job(BASE, assignments=[f"env.{'A' * 70_000}=x"])
    job = parse_job(BASE, assignments=[f"env.{'A' * 1_000}=x"])
    assert yaml.safe_load(render(job, "compose").text())
    with pytest.raises(InvalidArgument, match="YAML's parsers take at most 1,024") as refused:
        to_yaml([{"spec": {"k" * 70_000: "x"}}])
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize(
    "text", ["0", "0k", "0Gi", "0K", "4", "0.5", "900m", "1Ki", "512K", "2048K"]
)
def test_what_is_proposed_instead_of_too_little_memory_is_taken(text):
    reason = rules.memory(text)
    assert reason is not None
    for hint in re.findall(r"Did you mean '(.*)'", reason):
        assert rules.memory(hint) is None
    assert ("Did you mean" in reason) == (text in {"4", "0.5", "900m", "1Ki", "2048K"})
