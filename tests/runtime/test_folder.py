"""Folders that are deleted whatever becomes of their maker."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gridflow._agent.folder import temporary_folder

_MAKER = """
import sys, time
from gridflow._agent.folder import temporary_folder

with temporary_folder("gridflow-made-", sys.argv[1]) as folder:
    print(folder, flush=True)
    time.sleep(60)
"""


def wait_until_gone(folder: Path):
    """Wait for a folder's end."""
    give_up = time.monotonic() + 8
    while folder.exists():
        assert time.monotonic() < give_up
        time.sleep(0.001)


def killed_maker(root):
    """Let a process make a folder, and kill it; return the folder, and when that was."""
    command = [sys.executable, "-c", _MAKER, str(root)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as maker:
        folder = Path(maker.stdout.readline().strip())
        assert folder.stat().st_mode & 0o777 == 0o700
        maker.kill()
        return folder, time.monotonic()


@pytest.mark.slow
def test_what_a_killed_makers_children_make_once_more_is_deleted_too(tmp_path, no_leaks):
    """They are being killed as well, but live for some milliseconds longer."""
    for _ in range(20):
        folder, killed = killed_maker(tmp_path)
        wait_until_gone(folder)
        (folder / "results").mkdir(parents=True)
        if time.monotonic() - killed < 0.2:  # else this process had to wait for its turn
            wait_until_gone(folder)
            return
        shutil.rmtree(folder, ignore_errors=True)
    pytest.fail("the machine is too slow to tell")


def test_nothing_is_left_of_a_block_that_fails(tmp_path, no_leaks):
    with pytest.raises(KeyError), temporary_folder("gridflow-", tmp_path / "new") as folder:
        (folder / "file").touch()
        raise KeyError
    assert list((tmp_path / "new").iterdir()) == []
