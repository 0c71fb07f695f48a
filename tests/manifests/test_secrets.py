"""Secrets get into no document, no image and no message, and mean the same on every target."""

from __future__ import annotations

import csv
import os
import re
import shlex
import subprocess

import pytest
from jobs import flights

from gridflow._spec.exits import Exit
from gridflow.cli import main
from gridflow.deploy import (
    Credentials,
    GcsCredentials,
    JobError,
    Model,
    Role,
    S3Credentials,
    SecretKey,
    Secrets,
    Spark,
    TensorBoard,
    Volume,
    get_target,
    render,
)
from gridflow.deploy.description import plain_secrets
from gridflow.deploy.description.plain_secrets import holds_secret, in_words
from gridflow.errors import InvalidArgument
from suite.steps import steps

FILES = {
    "secrets": Secrets(files={"/etc/tls": "tls"}),
    "volumes": [Volume("settings", "/etc/settings", config="settings")],
    "credentials": Credentials(gcs=GcsCredentials("gcs", "my.json")),
}
WITH_KEY = flights(secrets=Secrets(env={"API_TOKEN": SecretKey("api", "token")}))
#: Notes its calls beside itself; a container ends at once and well.
DOCKER = """\
#!/bin/sh
echo "$@" >>"$(dirname "$0")/calls"
[ "$1" = wait ] && echo 0
exit 0
"""


@pytest.mark.parametrize(
    "name",
    [
        *[
            "PGPASSWORD",
            "DB_PASS",
            "MYSQL_PWD",
            "dbPassword",
            "HF_TOKEN",
            "--api-key",
            "SSH_KEY",
            "DB_PW",
        ],
        *["DB_PASSWORD1", "DB_PASSWORD_2", "TOKEN2", "API_KEY_1", "apiKey2", "PASSWORD1_OLD"],
    ],
)
def test_names_of_secrets_are_known(name):
    assert holds_secret(name)


@pytest.mark.parametrize(
    "name",
    [
        *["PWD", "OLDPWD", "COMPASS", "TOKENIZER", "MAX_TOKENS", "eos-token", "TOKEN_FILE", "KEYS"],
        *["TOKEN_FILE2", "SECRET_PATH_1", "KEY1", "LAYER2", "STOP_TOKEN1"],
    ],
)
def test_names_of_other_things_are_not_taken_for_secrets(name):
    assert not holds_secret(name)


JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJmbGlnaHRzIn0.c2lnbmF0dXJlLW9mLWl0"
#: What people write; what scanners look for is put together here.
SECRET_VALUES = {
    "slack hook": "https://hooks.slack.com/services/T0000/B0000/abcdefgh",
    "discord hook": "https://discord.com/api/webhooks/123456/abcdef",
    "jwt": JWT,
    "unsigned jwt": JWT.rpartition(".")[0] + ".",
    "encrypted jwt": "eyJhbGciOiJkaXIifQ..aXYtaXYtaXY.Y2lwaGVydGV4dA.dGFn",
    "header": "Authorization: Bearer abc.def",
    "basic header": "authorization=Basic dXNlcjpwdw==",
    "bearer": "Bearer 0123456789abcdefghij",
    "aws id": "AKIA" + "ABCDEFGHIJ234567",
    "aws key": "[default]\naws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCY",
    "github": "ghp_" + "a1B2" * 9,
    "github fine": "github_pat_" + "a1B2" * 9,
    "gitlab": "glpat-" + "a1B2" * 5,
    "hugging face": "hf_" + "aBcD" * 8,
    "openai": "sk-proj-" + "a1B2" * 8,
    "slack": "xoxb-" + "1234567890-abc",
    "stripe": "sk_live_" + "a1B2" * 6,
    "npm": "npm_" + "a1B2" * 9,
    "google api": "AIza" + "a1B2c" * 7,
    "private key": "-----BEGIN OPENSSH PRIVATE KEY-----\nb3Blb",
    "pgp key": "-----BEGIN PGP PRIVATE KEY BLOCK-----",
    "private key in base64": "LS0tLS1CRUdJTiBQUklWQVRFIEtFWS0tLS0t",
    "service account": '{"type": "service", "private_key": "-----BEGIN PRIVATE KEY-----\\n"}',
    "service account's id": '{"private_key_id": "x", "client_secret": "hunter2"}',
    "url": "postgresql://user:hunter2@db:5432/flights",
    "redis": "redis://:hunter2@cache",
    "url in capitals": "HTTPS://user:hunter2@host",
    "git": "https://" + "a1B2" * 10 + "@github.com/org/repository",
    "query": "https://host/v1?access_token=hunter2",
    "azure": "DefaultEndpointsProtocol=https;AccountName=a;AccountKey=aGVsbG8gd29ybGQ=;",
    "azure bus": "Endpoint=sb://a/;SharedAccessKeyName=Root;SharedAccessKey=aGVsbG8gd29ybGQ=",
    "azure signature": "https://a.blob.core.windows.net/c?sv=2022&sig=aGVsbG8gd29ybGQh%3D",
    "odbc": "Server=db;Uid=me;Pwd=hunter2;",
    "java": "-Xmx2g -Djavax.net.ssl.trustStorePassword=hunter2",
    "yaml": "user: me\npassword: hunter2\n",
    "header of gitlab": "PRIVATE-TOKEN: hunter2",
    "mysql": "mysql -u root -phunter2 flights",
    "mysqldump": "/usr/bin/mysqldump -phunter2 flights",
    "curl": "curl -u user:hunter2 https://host",
    "curl in one": "curl -sSLuuser:hunter2 https://host",
    "curl in words": "curl --proxy-user user:hunter2 https://host",
    "curl's cookie": "curl -b session=hunter2hunter2 https://host",
    "sshpass": "sshpass -p hunter2 ssh host",
    "redis-cli": "redis-cli -a hunter2 ping",
    "netrc": "machine host\n  login me\n  password hunter2\n",
    "netrc in one line": "machine host login me password hunter2",
    "cookie": "Cookie: session=hunter2hunter2",
    "cookie in json": '{"cookie": "session=hunter2hunter2"}',
    "short name": "DB_PW=hunter2",
}
ORDINARY_VALUES = {
    "path": "/data/flights/token=abc/part-00000.parquet",
    "digest": "registry:5000/org/image@sha256:" + "0123456789abcdef" * 4,
    "image": "ghcr.io/org/secret-token:v1.2.3",
    "uuid": "123e4567-e89b-12d3-a456-426614174000",
    "commit": "da39a3ee5e6b4b0d3255bfef95601890afd80709",
    "url": "https://user@host:8080/path?version=2&key=year",
    "bucket": "abfss://a-container-of-2024-flights@account.dfs.core.windows.net/x",
    "sqlite": "sqlite:////data/optuna.db",
    "cluster": '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}}',
    "flags": "--xla_gpu_cuda_data_dir=/usr/local/cuda --tf_xla_auto_jit=2",
    "tokens": '{"pad_token": "<pad>", "max_tokens": 4096, "use_auth_token": false}',
    "shell": "train --token $TOKEN --password=${PASSWORD} -H 'Authorization: Bearer $TOKEN'",
    "python": "client(token=os.environ['TOKEN'])",
    "a place": '{"tokenFile": "/run/secrets/token", "secret": {"secretName": "x"}}',
    "numbers": "1e-3,2e-3",
    "model": "sk-learn-random-forest-classifier",
    "hf model": "hf_transformers_model_of_flights_v2",
    "words": "bearer authentication is used here; a basic understanding helps",
    "base64": "eyJsciI6IDAuMSwgImVwb2NocyI6IDEwfQ==",
    "host": "worker-0.flights.default.svc:2222",
    "time": "2024-05-01T12:00:00Z",
    "user of docker": "docker run -u 1000:1000 image",
    "curl": 'curl -u "$USER:$PASS" -b /tmp/jar https://host:8080/path',
    "mysql": "mysql -p -P 3306 -u root; mysql -p$MYSQL_PWD flights",
    "another -p": "train -phunter2",
    "cookie": "Cookie: session=$COOKIE",
    "form": "the login form has a password field",
}


@pytest.mark.parametrize("value", SECRET_VALUES.values(), ids=SECRET_VALUES)
def test_a_secret_is_known_by_its_looks_and_printed_nowhere(value):
    with pytest.raises(JobError, match="looks like a secret"):
        flights(env={"PLAIN": value})
    with pytest.raises(JobError, match="looks like a secret"):
        flights(roles={"worker": Role(env={"PLAIN": value})})
    for words in ([value], ["--plain", value], [f"--plain={value}"], ["sh", "-c", f"run {value}"]):
        with pytest.raises(JobError, match="looks like a secret") as caught:
            flights(args=words)
        assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "unit",
    [
        *("a=", 'a="', "a: ", " ", "sk-1A", "eyJ-", "eyJaaaaaaaaaa.", "bearer ", "https://", "a."),
        *("x://b:", "?sig=", "cookie: a=", "login a password "),
    ],
)
def test_secrets_are_looked_for_in_steps_in_proportion_to_the_length(unit):
    for pattern in (plain_secrets._VALUES, plain_secrets._INSIDE, plain_secrets._SHELL_WORD):
        few, many = (steps(pattern, "a:" + unit * (size // len(unit))) for size in (300, 600))
        assert many < 2.6 * few, pattern


def test_the_counter_of_steps_finds_what_is_quadratic():
    pattern = re.compile(r"\bsk-(?=[\w-]*\d)")
    few, many = (steps(pattern, "sk-" * number) for number in (50, 100))
    assert many > 3.5 * few


@pytest.mark.parametrize(
    "fields",
    [
        {"env": {"A": "x" * 131_070}},
        {"env": {"A": "é" * 65_535}},
        {"args": ["x" * 131_072]},
        {"command": ["train", "x" * 131_072]},
    ],
    ids=["value", "bytes", "argument", "command"],
)
def test_what_linux_cannot_pass_to_a_program_is_refused(fields):
    with pytest.raises(JobError, match="Linux passes at most 131,072") as refused:
        flights(**fields)
    assert len(str(refused.value)) < 1_000


def test_the_longest_that_linux_passes_is_taken():
    job = flights(env={"A": "x" * 131_069}, args=["x" * 131_071])
    assert "x" * 131_069 in render(job, "compose").text()


@pytest.mark.parametrize("value", ORDINARY_VALUES.values(), ids=ORDINARY_VALUES)
def test_ordinary_values_are_not_taken_for_secrets(value):
    job = flights(env={"PLAIN": value}, args=["--plain", value, f"--plain={value}"])
    render(job, "docker")


@pytest.mark.parametrize(
    "fields",
    [
        {"annotations": {"hook": SECRET_VALUES["slack hook"]}},
        {"overrides": {"kubernetes": {"spec": [{"args": [JWT]}]}}},
        {"tensorboard": lambda: TensorBoard("s3://id:hunter2@bucket/logs")},
        {"credentials": lambda: Credentials(s3=S3Credentials("s3", endpoint="https://a:b@c"))},
        {"spark": lambda: Spark(conf={"spark.hadoop.a": SECRET_VALUES["azure"]})},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_a_secret_is_seen_wherever_a_job_has_texts(fields):
    with pytest.raises(InvalidArgument, match="looks like a secret"):
        flights(**{name: value() if callable(value) else value for name, value in fields.items()})


def test_a_comma_in_a_path_is_no_option_of_a_mount():
    """Docker reads ``--mount`` as a line of CSV, by encoding/csv of Go."""
    volumes = [
        Volume("a", "/data,readonly=false", host='/srv/x,bind-propagation=shared,"y"'),
        Volume("b", "/x,source=/", pvc="claim", read_only=True),
        Volume("c", "/y,type=tmpfs", empty=""),
    ]
    job = flights(volumes=volumes, secrets=Secrets(files={"/etc/a,src=/root": "tls"}))
    text = [d.content for d in render(job, "docker").documents][-1]
    words = shlex.split(text.replace("\\\n", " "))
    found = [next(csv.reader([w[len("--mount=") :]])) for w in words if w.startswith("--mount=")]
    assert found[:4] == [
        ["type=bind", 'source=/srv/x,bind-propagation=shared,"y"', "target=/data,readonly=false"],
        ["type=volume", "source=claim", "target=/x,source=/", "readonly"],
        ["type=volume", "target=/y,type=tmpfs"],
        ["type=bind", "source=./secrets/tls", "target=/etc/a,src=/root", "readonly"],
    ]


def test_compose_puts_no_variable_into_a_path():
    job = flights(volumes=[Volume("a", "/data/$HOME", host="/srv/${AWS_SECRET_ACCESS_KEY}")])
    for target, name in (("compose", "worker-0"), ("swarm", "worker")):
        (whole,) = [d.content for d in render(job, target).documents]
        (volume,) = whole["services"][name]["volumes"]
        assert volume["target"] == "/data/$$HOME"
        assert volume["source"] == "/srv/$${AWS_SECRET_ACCESS_KEY}"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Volume("a", "/data\nx", pvc="c"), "line break"),
        (lambda: Volume("a", "/data", host="/srv\r\nx"), "line break"),
        (lambda: Secrets(files={"/etc/\x00": "tls"}), "control character"),
        (lambda: TensorBoard("gs://bucket\n--x"), "line break"),
        (lambda: Model("m", "s3://bucket\u2028x"), "line break"),
        (lambda: S3Credentials("s3", endpoint="http://a\nb"), "line break"),
        (lambda: S3Credentials("s3", region="a\nb"), "line break"),
        (lambda: Spark(conf={"spark.a=b": "c"}), "can't contain blanks or '='"),
        (lambda: Spark(conf={"spark.a\nspark.b": "c"}), "can't contain blanks or '='"),
        (lambda: Spark(application="--conf=spark.a=b"), "not an option"),
    ],
)
def test_what_would_be_an_option_or_a_line_of_its_own_is_refused(make, words):
    with pytest.raises(InvalidArgument, match=words):
        make()


@pytest.mark.parametrize(
    "words",
    [
        ["--token", "--verbose"],
        ["--token", "/run/secrets/token"],
        ["sh", "-c", "train --token $API_TOKEN"],
        ["sh", "-c", "train --token=${API_TOKEN}"],
        ["--url", "https://host/path"],
        ["--password"],
    ],
)
def test_a_place_of_a_secret_is_none(words):
    assert list(in_words(words)) == []


@pytest.mark.parametrize(
    "assignment",
    [
        "env.API_TOKEN=hunter2",
        "args=[--token, hunter2]",
        "args=--token hunter2",
        "roles.worker.env={API_TOKEN: hunter2}",
        "secrets.env.API_TOKEN=hunter2",
    ],
)
def test_a_refused_setting_is_not_echoed(assignment, tmp_path, capsys):
    path = tmp_path / "job.yaml"
    path.write_text("name: flights\nimage: a\ncommand: [true]\n")
    assert main(["render", "-t", "kubernetes", str(path), "--set", assignment]) == Exit.USAGE
    printed = capsys.readouterr()
    assert "hunter2" not in printed.out + printed.err
    assert f"--set {assignment.partition('=')[0]}=…" in printed.err


def scripted(job, target, folder, shell, **env):
    """Run a rendered script by a shell, as ``gridflow render … | sh`` does."""
    (folder / "docker").write_text(DOCKER)
    (folder / "docker").chmod(0o755)
    text = render(job, target).text()
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    plain = {name: value for name, value in os.environ.items() if name != "API_TOKEN"}
    return subprocess.run(
        [shell],
        input=text,
        cwd=folder,
        env={**plain, "PATH": path, **env},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("shell", ["sh", "bash"])
@pytest.mark.parametrize("target", ["docker", "local"])
def test_a_script_without_a_required_secret_starts_nothing(target, shell, tmp_path):
    done = scripted(WITH_KEY, target, tmp_path, shell)
    assert done.returncode not in {0, 127}
    assert "API_TOKEN: set it to the value of the secret" in done.stderr
    assert not (tmp_path / "calls").exists()


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_a_script_hands_a_secret_on_by_its_name(shell, tmp_path):
    done = scripted(WITH_KEY, "docker", tmp_path, shell, API_TOKEN="hunter2")
    assert done.returncode == 0, done.stderr
    calls = (tmp_path / "calls").read_text()
    assert "--env=API_TOKEN " in calls
    assert "hunter2" not in calls


def test_what_is_mounted_from_beside_the_dockerfile_is_kept_out_of_the_image(tmp_path):
    (tmp_path / ".dockerignore").write_text("data\n!secrets")
    for _ in range(2):
        assert scripted(flights(**FILES), "docker", tmp_path, "sh").returncode == 0
    lines = (tmp_path / ".dockerignore").read_text().splitlines()
    assert lines[0] == "data"
    # Of several lines that match, Docker takes the last.
    assert lines.index("secrets") > lines.index("!secrets")
    assert lines.count("secrets") == lines.count("configs") == 1


def test_writing_into_a_folder_keeps_the_lines_of_an_own_dockerignore(tmp_path):
    (tmp_path / ".dockerignore").write_text("data\n")
    for document in render(flights(), "docker").documents:
        document.write(tmp_path)
        document.write(tmp_path)
    lines = (tmp_path / ".dockerignore").read_text().splitlines()
    assert lines[0] == "data"
    assert lines.count("secrets") == 1


def mounts(target):
    """The places of directories in a container, with what is mounted there."""
    last = [d.content for d in render(flights(**FILES), target).documents][-1]
    if target == "compose":
        return {each["target"]: each["source"] for each in last["services"]["worker-0"]["volumes"]}
    if target == "docker":
        words = [w for w in last.split() if w.startswith("--mount=")]
        options = [dict(p.split("=", 1) for p in w[8:].split(",") if "=" in p) for w in words]
        return {each["target"]: each["source"] for each in options}
    spec = last["spec"]["template"]["spec"]
    names = {each["name"]: each for each in spec["volumes"]}
    return {
        mount["mountPath"]: next(iter(names[mount["name"]].keys() - {"name"}))
        for mount in spec["containers"][0]["volumeMounts"]
    }


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("kubernetes", ["secret", "configMap", "secret"]),
        ("compose", ["./secrets/tls", "./configs/settings", "./secrets/gcs"]),
        ("docker", ["./secrets/tls", "./configs/settings", "./secrets/gcs"]),
    ],
)
def test_a_secret_is_a_directory_with_a_file_for_each_key_everywhere(target, expected):
    places = mounts(target)
    assert [places[p] for p in ("/etc/tls", "/etc/settings", "/etc/gridflow/gcs")] == expected


def test_where_a_secret_is_one_file_it_is_refused():
    for target in ("marathon", "swarm"):
        assert {"secrets.files", "volumes.secret", "volumes.config"} <= set(
            get_target(target).cannot
        )
    job = flights(credentials=FILES["credentials"])
    app = render(job, "marathon").documents[0].content["apps"][0]
    assert app["env"]["GOOGLE_APPLICATION_CREDENTIALS"] == "/etc/gridflow/gcs/my.json"
    assert app["container"]["volumes"] == [
        {"containerPath": "/etc/gridflow/gcs/my.json", "secret": "gcs"}
    ]
    stack = render(job, "swarm").documents[0].content
    service = stack["services"]["worker"]
    assert service["environment"]["GOOGLE_APPLICATION_CREDENTIALS"] == "/etc/gridflow/gcs/my.json"
    place = {"source": "gcs.my.json", "target": "/etc/gridflow/gcs/my.json"}
    assert (service["secrets"], stack["secrets"]) == ([place], {"gcs.my.json": {"external": True}})


def test_each_secret_of_marathon_has_its_own_name():
    keys = {name: SecretKey("proxy", name) for name in ("HTTP_PROXY", "http_proxy")}
    job = flights(
        secrets=Secrets(env=keys, image_pull=["gcs"]),
        credentials=Credentials(gcs=GcsCredentials("gcs")),
    )
    (group,) = render(job, "marathon").documents
    app = group.content["apps"][0]
    sources = {name: secret["source"] for name, secret in app["secrets"].items()}
    for name in keys:
        assert sources[app["env"][name]["secret"]] == f"flights/proxy/{name}"
    assert sources[app["container"]["docker"]["pullConfig"]["secret"]] == "flights/gcs"
    (mount,) = app["container"]["volumes"]
    assert sources[mount["secret"]] == "flights/gcs/key.json"
