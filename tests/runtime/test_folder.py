"""Folders that are deleted whatever becomes of their maker."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gridflow._agent.folder import temporary_folder
from suite.waiting import wait_for

_MAKER = """
import sys
from gridflow._agent.folder import temporary_folder

with temporary_folder("gridflow-made-", sys.argv[1]) as folder:
    print(folder, flush=True)
    sys.stdin.read()
"""
#: The first round comes at once, the next ones when they are wanted.
_SLEEP = """#!/bin/sh
[ "$1" = 0 ] || until [ -e {go} ]; do /bin/sleep 0.01; done
"""


def killed_maker(root, go):
    """Let a process make a folder, and kill it; return the folder."""
    sleep = root / "sleep"
    sleep.write_text(_SLEEP.format(go=go))
    sleep.chmod(0o755)
    with subprocess.Popen(
        [sys.executable, "-c", _MAKER, str(root)],
        env={**os.environ, "PATH": f"{root}:{os.environ['PATH']}"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as maker:
        folder = Path(maker.stdout.readline().strip())
        assert folder.stat().st_mode & 0o777 == 0o700
        maker.kill()
    return folder


@pytest.mark.slow
def test_what_a_killed_makers_children_make_once_more_is_deleted_too(tmp_path, no_leaks):
    """They are being killed as well, but live for some milliseconds longer."""
    folder = killed_maker(tmp_path, tmp_path / "go")
    wait_for(lambda: not folder.exists(), "the end of the folder")
    (folder / "results").mkdir(parents=True)
    (tmp_path / "go").touch()
    wait_for(lambda: not folder.exists(), "its end once more")


def test_nothing_is_left_of_a_block_that_fails(tmp_path, no_leaks):
    with pytest.raises(KeyError), temporary_folder("gridflow-", tmp_path / "new") as folder:
        (folder / "file").touch()
        raise KeyError
    assert list((tmp_path / "new").iterdir()) == []
