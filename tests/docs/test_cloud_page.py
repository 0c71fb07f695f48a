"""The page on cloud machines: its scripts are whole, and start what another test runs."""

from __future__ import annotations

import re
import subprocess

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
