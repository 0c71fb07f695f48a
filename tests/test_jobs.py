"""The folders that jobs leave: which are kept, which go, and the command for it."""

from __future__ import annotations

import errno
import gc
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
from types import SimpleNamespace

import numpy as np
import pytest

from gridflow import (
    LaunchOptions,
    LocalLauncher,
    TensorflowDistributor,
    cli,
    errors,
)
from gridflow._coordinator import folders as jobs
from suite.disk import files_of_at_most


@pytest.fixture
def folder(tmp_path):
    """Give five jobs of drivers that have ended, the first the oldest."""
    for number in range(5):
        path = jobs.make(tmp_path, f"job{number}")
        (path / "result").write_bytes(bytes(1000))
        (path / "driver.json").write_text(
            json.dumps({"host": os.uname().nodename, "pid": 1 << 30, "began": 1})
        )
        os.utime(path / "driver.json", (1e9 + number * 86_400,) * 2)
    (tmp_path / "no job").mkdir()
    return tmp_path


def left(folder):
    return sorted(path.name for path in folder.iterdir())


def test_the_latest_folders_are_kept_and_no_others(folder):
    jobs.prune(folder, 2)
    assert left(folder) == ["job3", "job4", "no job"]
    jobs.prune(folder, 0)
    assert left(folder) == ["no job"]


def test_a_folder_in_use_is_kept_however_old_it_is(folder):
    class Result:
        pass

    result = Result()
    jobs.note_user(result, folder / "job0")
    with jobs.running(folder / "job1"):
        jobs.prune(folder, 0)
    assert left(folder) == ["job0", "job1", "no job"]
    del result
    gc.collect()
    jobs.prune(folder, 0)
    assert left(folder) == ["no job"]


def test_a_folder_whose_driver_lives_is_kept_however_old_it_is(tmp_path):
    code = (
        "import sys; from pathlib import Path; from gridflow._coordinator import folders as jobs\n"
        "print(jobs.make(Path(sys.argv[1]), 'other'), flush=True); sys.stdin.read()"
    )
    driver = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with driver:
        driver.stdout.readline()
        jobs.prune(tmp_path, 0)
        assert left(tmp_path) == ["other"]
        with pytest.raises(errors.InvalidArgument, match="still runs"):
            jobs._chosen(jobs.find(tmp_path), ["other"], tmp_path)
        driver.stdin.close()
    jobs.prune(tmp_path, 0)
    assert left(tmp_path) == []


def test_the_command_lists_jobs_and_deletes_those_that_have_ended(folder, capsys):
    with jobs.running(folder / "job4"):
        assert cli.main(["jobs", "--dir", str(folder)]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert [line.split()[0] for line in lines] == [f"job{n}" for n in (4, 3, 2, 1, 0)]
        assert ["in use" in line for line in lines] == [True, False, False, False, False]
        assert cli.main(["jobs", "--dir", str(folder), "--delete", "job2"]) == 0
        assert left(folder) == ["job0", "job1", "job3", "job4", "no job"]
        assert cli.main(["jobs", "--dir", str(folder), "--delete", "job9"]) == 64
        assert "no job 'job9'" in capsys.readouterr().err
        assert cli.main(["jobs", "--dir", str(folder), "--delete"]) == 0
        assert left(folder) == ["job4", "no job"]
    os.utime(folder / "job4" / "driver.json")
    assert cli.main(["jobs", "--dir", str(folder), "--days", "1", "--delete"]) == 0
    assert left(folder) == ["job4", "no job"]
    capsys.readouterr()
    assert cli.main(["jobs", "--dir", str(folder), "--json"]) == 0
    (job,) = json.loads(capsys.readouterr().out)
    assert (job["id"], job["in_use"]) == ("job4", False)
    assert job["bytes"] > 1000


def test_a_folder_that_cannot_be_deleted_is_named_and_not_counted(folder, capsys, monkeypatch):
    def refuse(path, *rest, real=os.rmdir, **options):
        if os.fspath(path).endswith("job2"):
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), path)
        real(path, *rest, **options)

    monkeypatch.setattr(os, "rmdir", refuse)
    assert cli.main(["jobs", "--dir", str(folder), "--delete", "job1", "job2"]) == 1
    said = capsys.readouterr()
    assert said.out.startswith("1 deleted")
    assert f"can't delete all of {folder / 'job2'}: " in said.err
    assert "busy" in said.err
    assert left(folder) == ["job0", "job2", "job3", "job4", "no job"]


def test_a_result_cannot_move_the_cursor_of_who_lists_it(folder, capsys):
    (folder / "job4" / "result.json").write_text(r'{"state": "\u001b]0;a title\u0007ended"}')
    assert cli.main(["jobs", "--dir", str(folder)]) == 0
    out = capsys.readouterr().out
    assert "ended" in out
    assert "\x1b" not in out


def test_a_folders_name_cannot_move_the_cursor_nor_make_a_line(folder, capsys, caplog):
    (folder / "job4").rename(folder / "\x1b]0;a title\x07job4\njob9  forged")
    (folder / "job3").rename(folder / "\x1b[2J")
    (folder / "\x1b[2J" / "driver.json").write_text("")
    assert cli.main(["jobs", "--dir", str(folder)]) == 0
    out = capsys.readouterr().out
    assert [line.split()[0] for line in out.splitlines()] == ["job4", "job2", "job1", "job0"]
    assert "skipping" in caplog.text
    assert "\x1b" not in out + caplog.text


@pytest.mark.parametrize(
    "text",
    ["", '{"host": "h', "[]", '{"host": "h", "pid": null}', "[" * 99_999],
    ids=["empty", "half", "list", "null", "deep"],
)
def test_a_driver_file_that_cannot_be_read_is_skipped_with_a_warning(folder, caplog, capsys, text):
    (folder / "job2" / "driver.json").write_text(text)
    (folder / "job3" / "result.json").write_text(text)
    jobs.prune(folder, 3)
    assert left(folder) == ["job1", "job2", "job3", "job4", "no job"]
    assert str(folder / "job2" / "driver.json") in caplog.text
    assert cli.main(["jobs", "--dir", str(folder)]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [
        f"job{number}" for number in (4, 3, 1)
    ]
    assert cli.main(["jobs", "--dir", str(folder), "--delete"]) == 0
    assert left(folder) == ["job2", "no job"]


def test_a_job_that_finds_the_disk_full_leaves_no_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(jobs.json, "dumps", full_disk)
    with pytest.raises(errors.InvalidArgument, match="No space"):
        jobs.make(tmp_path, "job")
    assert left(tmp_path) == []


@pytest.mark.parametrize("run_id", [None, "monday"])
@pytest.mark.parametrize("problem", ["full", "a file"])
def test_a_folder_that_can_not_be_written_is_named_with_its_host_at_the_call(
    tmp_path, problem, run_id
):
    if problem == "a file":
        (tmp_path / "jobs").touch()
    distributor = TensorflowDistributor(
        launcher=LocalLauncher(), job_dir=tmp_path / "jobs", run_id=run_id
    )
    where = re.escape(f"can't write to job_dir='{tmp_path / 'jobs'}' on {socket.gethostname()}: ")
    with (
        files_of_at_most(0 if problem == "full" else -1),
        pytest.raises(errors.InvalidArgument, match=f"^{where}.*choose another folder with job_di"),
    ):
        distributor.run(print)


def test_a_temporary_folder_that_can_not_be_written_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    where = re.escape(f"can't write to the temporary folder {tmp_path} on {socket.gethostname()}: ")
    with (
        files_of_at_most(0),
        pytest.raises(errors.InvalidArgument, match=f"^{where}File too large.* TMPDIR names"),
    ):
        TensorflowDistributor(launcher=LocalLauncher()).run(print)
    with (
        files_of_at_most(0),
        pytest.raises(errors.InvalidArgument, match=f"^can't write to {tmp_path} on .* TMPDIR to"),
    ):
        rows = {"train": {"x": np.zeros(1000)}}
        payload = SimpleNamespace(
            job="j", spec=SimpleNamespace(fed=[0], feed=SimpleNamespace(columns={}))
        )
        LocalLauncher().launch(payload, rows, None)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def full_disk(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_run_deletes_what_is_older_than_keep_jobs(folder, monkeypatch):
    monkeypatch.setattr(jobs, "default_folder", lambda: folder)
    distributor = TensorflowDistributor(
        launcher=LocalLauncher(), launch_options=LaunchOptions(keep_jobs=2)
    )
    made, _ = distributor._make_job_dir("new")
    assert left(folder) == ["job3", "job4", "new", "no job"]
    assert made.stat().st_mode & 0o777 == 0o700
    TensorflowDistributor(
        launcher=LocalLauncher(), launch_options=LaunchOptions(keep_jobs=None)
    )._make_job_dir("newer")
    TensorflowDistributor(
        launcher=LocalLauncher(), launch_options=LaunchOptions(keep_jobs=0), job_dir=folder
    )._make_job_dir("a")
    assert left(folder) == ["a", "job3", "job4", "new", "newer", "no job"]
    with pytest.raises(errors.InvalidArgument, match="keep_jobs"):
        TensorflowDistributor(launch_options=LaunchOptions(keep_jobs=-1))
