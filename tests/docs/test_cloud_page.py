"""The page on cloud machines: its scripts are whole, and start what another test runs."""

from __future__ import annotations

import os
import re
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from documents import ROOT


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
                timeout=60,
                check=True,
            )
        finally:
            server.shutdown()
            thread.join()
    assert Metadata.asked == 3
    assert (tmp_path / "told").read_text() == "kill --kill-whom=main --signal=SIGPWR spark-worker\n"
