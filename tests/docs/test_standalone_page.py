"""The page on standalone clusters, carried out: every command but the installation."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from documents import ROOT, python_blocks, users_environment

from suite.ports import free_ports
from suite.waiting import LONGEST, patience, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_leaks")]

PAGE = "docs/standalone.md"


def shell(code, folder, **options):
    environment = users_environment()
    return subprocess.Popen(
        ["bash", "-euc", code],
        cwd=folder,
        env={
            **environment,
            "SPARK_CONF_DIR": str(folder / "opt/conf"),
            "PATH": f"{folder / 'opt/bin'}:{environment['PATH']}",
        },
        stdin=subprocess.DEVNULL,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        **options,
    )


def test_the_commands_of_the_page_train_a_model(tmp_path):
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    (port,) = free_ports(1)
    opt = tmp_path / "opt"
    (opt / "bin").mkdir(parents=True)
    for name in ("python", "python3", "spark-class", "spark-submit"):
        program = f'#!/bin/sh\nexec {Path(sys.executable).parent / name} "$@"\n'
        (opt / "bin" / name).write_text(program)
        (opt / "bin" / name).chmod(0o755)
    for there, here in (
        ("10.0.0.1:7077", f"127.0.0.1:{port}"),
        ("--port 7077", f"--port {port} --webui-port 0"),
        ("--cores 2", "--webui-port 0 --cores 2"),
        ("10.0.0.1", "127.0.0.1"),
        ("10.0.0.2", "127.0.0.1"),
        ("/opt/train", str(opt)),
        ("/var/tmp/spark", str(tmp_path / "work")),
    ):
        assert there in text
        text = text.replace(there, here)
    install, settings, master, worker, submit = re.findall(
        r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL
    )
    assert "pip install" in install
    (program,) = python_blocks(PAGE)
    (tmp_path / "train.py").write_text(program)
    assert shell(settings, tmp_path).wait(patience()) == 0
    started = []
    try:
        for name, code, words in (
            ("master", master, "I have been elected leader"),
            ("worker", worker, "Successfully registered with master"),
        ):
            log = tmp_path / f"{name}.log"
            with log.open("w") as file:
                started.append(shell(code, tmp_path, stdout=file))
            wait_for(
                lambda log=log, words=words: words in log.read_text(), name, seen=log.read_text
            )
        submitted = shell(submit, tmp_path, stdout=subprocess.PIPE)
        started.append(submitted)
        output, _ = submitted.communicate(timeout=LONGEST)
        assert submitted.returncode == 0, output[-6000:]
        (losses,) = re.findall(r"^loss \[(.*)\]$", output, re.MULTILINE)
        losses = [float(loss) for loss in losses.split(",")]
        assert losses[-1] < losses[0]
        assert "change-me" not in output
    finally:
        for process in started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
            process.wait(patience())
