"""The page on cloud machines: its scripts are whole, and start what another test runs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from documents import ROOT

from suite.waiting import LONGEST, patience

NODE = ROOT / "examples" / "cloud" / "node.sh"
#: Stands in for a service's own command: keeps how it was called, and copies from a folder.
COPY = """#!/bin/sh
echo "$0" "$@" >> {told}
for target; do :; done
cp {bucket}/* "$target"
"""


def blocks(language):
    text = (ROOT / "docs/cloud.md").read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def flat(text):
    """Return a command, or a page of them, in one line."""
    return " ".join(text.replace("\\\n", " ").split())


def services():
    """Return the commands of master and worker, as systemd reads them."""
    units = [unit.replace("\\\n", " ") for unit in blocks("ini")]
    return [re.search(r"^ExecStart=(.*)$", unit, re.MULTILINE)[1] for unit in units]


def test_the_scripts_are_whole():
    for script in (*blocks("bash"), *blocks("sh")):
        read = subprocess.run(
            ["bash", "-n"], input=script, text=True, capture_output=True, check=False
        )
        assert (read.returncode, read.stderr) == (0, ""), script
    (setup,) = blocks("bash")
    assert "> /opt/train/machine\n" in setup
    for unit in blocks("ini"):
        assert "EnvironmentFile=/opt/train/machine\n" in unit
        assert "SPARK_CONF_DIR=/opt/train/conf\n" in unit


def test_settings_services_and_job_are_those_of_the_page_whose_commands_are_run():
    page = (ROOT / "docs/standalone.md").read_text(encoding="utf-8")
    (setup,) = blocks("bash")
    settings = re.search(
        r"spark-defaults\.conf <<EOF\n(.*?)^EOF$", setup, re.MULTILINE | re.DOTALL
    )[1]
    for line in settings.splitlines():
        assert re.sub(r"(secret\s+).*", r"\1change-me", line) in page
    (submit,) = [block for block in blocks("sh") if "spark-submit" in block]
    for command, address in zip((*services(), submit), ("1", "2", "1"), strict=True):
        there = command[command.index("spark-") :].replace("${MASTER}", "10.0.0.1")
        there = re.sub(r"\$(ADDRESS|{ADDRESS})", f"10.0.0.{address}", there)
        assert flat(there) in flat(page)


class Metadata(BaseHTTPRequestHandler):
    """Answer as a rented machine's own service does: the third time there is a notice."""

    asked = 0

    def do_PUT(self):
        self._answer(200, b"let me in")

    def do_GET(self):
        type(self).asked += 1
        wanted = self.path == "/latest/meta-data/spot/instance-action"
        is_known = self.headers["X-aws-ec2-metadata-token"] == "let me in"
        self._answer(200 if wanted and is_known and self.asked > 2 else 404, b"{}")

    def _answer(self, status, body):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """Say nothing."""


def test_a_worker_is_told_to_go_once_there_is_a_notice(tmp_path):
    (script,) = [block for block in blocks("sh") if "instance-action" in block]
    script = script.replace("sleep 5", "sleep 0.1")
    told = tmp_path / "systemctl"
    told.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/told\n')
    told.chmod(0o755)
    Metadata.asked = 0
    with ThreadingHTTPServer(("127.0.0.1", 0), Metadata) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            here = f"http://127.0.0.1:{server.server_port}"
            subprocess.run(
                [
                    "bash",
                    "-euc",
                    script.replace("http://169.254.169.254", here),
                ],
                env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "no_proxy": "*"},
                timeout=patience(),
                check=True,
            )
        finally:
            server.shutdown()
            thread.join()
    assert Metadata.asked == 3
    assert (tmp_path / "told").read_text() == "kill --kill-whom=main --signal=SIGPWR spark-worker\n"


def prepare(*words, folder, python=None, extras="validate"):
    """Run the script that prepares a node, with what it installs below a folder."""
    commands = folder / "commands"
    commands.mkdir(exist_ok=True)
    (commands / "python3").unlink(missing_ok=True)
    (commands / "python3").symlink_to(python or Path(sys.base_prefix, "bin", "python3"))
    environment = {
        **os.environ,
        "PATH": f"{commands}:{os.environ['PATH']}",
        "PREFIX": str(folder / "opt"),
        "EXTRAS": extras,
    }
    return subprocess.run(
        ["bash", NODE, *map(str, words)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=LONGEST,
    )


@pytest.fixture
def bucket(tmp_path):
    """Make a folder with a file that is called as the wheel is, and commands that copy from it."""
    folder = tmp_path / "bucket"
    folder.mkdir()
    (folder / "gridflow-0.1.0-py3-none-any.whl").write_text("no wheel")
    (tmp_path / "commands").mkdir()
    for name in ("aws", "gcloud"):
        command = tmp_path / "commands" / name
        command.write_text(COPY.format(told=tmp_path / "told", bucket=folder))
        command.chmod(0o755)
    return folder


def test_a_node_is_not_prepared_without_a_folder(tmp_path):
    done = prepare(folder=tmp_path)
    assert done.returncode == 64
    assert done.stderr.startswith("usage: node.sh FOLDER [PYTHON]")


def test_a_node_is_not_prepared_with_an_old_python(bucket, tmp_path):
    old = tmp_path / "python3.9"
    old.write_text('#!/bin/sh\ncase "$2" in *version_info*) exit 1;; esac\n')
    old.chmod(0o755)
    done = prepare(bucket, folder=tmp_path, python=old)
    assert done.returncode == 64
    assert "python3 is older than 3.11: give another one" in done.stderr


@pytest.mark.parametrize("names", [[], ["gridflow-0.1.0-x.whl", "gridflow-0.2.0-x.whl"]])
def test_a_node_is_not_prepared_without_exactly_one_wheel(names, tmp_path):
    folder = tmp_path / "setup"
    folder.mkdir()
    for name in names:
        (folder / name).touch()
    done = prepare(folder, folder=tmp_path)
    assert done.returncode == 66
    reason = f"{folder} must have one wheel of gridflow; there is: {' '.join(names)}"
    assert " ".join(done.stderr.split()) == reason.strip()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "called"),
    [
        ("s3://acme/setup", "aws s3 cp --recursive s3://acme/setup"),
        ("gs://acme/setup/", "gcloud storage cp --recursive gs://acme/setup/*"),
    ],
)
def test_a_node_gets_the_wheel_from_a_bucket_by_the_services_own_command(
    source, called, bucket, tmp_path
):
    done = prepare(source, folder=tmp_path)
    words = (tmp_path / "told").read_text().split()
    assert " ".join(words[:-1]) == f"{tmp_path}/commands/{called}"
    assert not Path(words[-1]).exists()  # where it was copied to
    assert done.returncode != 0  # that it is no wheel doesn't go unnoticed
    assert "gridflow-0.1.0-py3-none-any.whl" in done.stderr


@pytest.mark.slow
def test_a_node_that_is_prepared_twice_runs_gridflow(tmp_path):
    uv = shutil.which("uv") or shutil.which("uv", path=ROOT / ".tools" / "bin")
    build = [uv, "build", "--wheel", "--quiet", "--out-dir", tmp_path / "setup", ROOT]
    subprocess.run(build, check=True, timeout=patience())
    shutil.copy(ROOT / "requirements" / "constraints.txt", tmp_path / "setup")
    for _ in range(2):
        done = prepare(tmp_path / "setup", folder=tmp_path)
        assert done.returncode == 0, done.stderr
    python = tmp_path / "opt" / "bin" / "python"
    code = "import gridflow, jsonschema; print(gridflow.__file__)"
    said = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.startswith(str(tmp_path / "opt"))
    code = "import pyarrow; print(f'pyarrow=={pyarrow.__version__}')"
    said = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said in (ROOT / "requirements" / "constraints.txt").read_text()
