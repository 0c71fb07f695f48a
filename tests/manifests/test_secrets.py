"""Secrets get into no document, no image and no message, and mean the same on every target."""

from __future__ import annotations

import os
import subprocess

import pytest
from jobs import flights

from gridflow.cli import main
from gridflow.deploy.description.plain_secrets import holds_secret, in_words
from gridflow.job import Credentials, GcsCredentials, SecretKey, Secrets, Volume
from gridflow.manifests import get_target, render
from gridflow.spec.exits import Exit

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
    ["PGPASSWORD", "DB_PASS", "MYSQL_PWD", "dbPassword", "HF_TOKEN", "--api-key", "SSH_KEY"],
)
def test_names_of_secrets_are_known(name):
    assert holds_secret(name)


@pytest.mark.parametrize(
    "name",
    ["PWD", "OLDPWD", "COMPASS", "TOKENIZER", "MAX_TOKENS", "eos-token", "TOKEN_FILE", "KEYS"],
)
def test_names_of_other_things_are_not_taken_for_secrets(name):
    assert not holds_secret(name)


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
    assert "secrets.files" in get_target("marathon").cannot
    assert "volumes.secret" in get_target("marathon").cannot
    job = flights(credentials=FILES["credentials"])
    app = render(job, "marathon").documents[0].content["apps"][0]
    assert app["env"]["GOOGLE_APPLICATION_CREDENTIALS"] == "/etc/gridflow/gcs/my.json"
    assert app["container"]["volumes"] == [
        {"containerPath": "/etc/gridflow/gcs/my.json", "secret": "gcs"}
    ]
