"""Files that gridflow keeps on this machine, where other users may have put some before."""

from __future__ import annotations

import errno
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from gridflow import (
    GridflowError,
    InvalidArgument,
    LocalLauncher,
    TensorflowDistributor,
    UnsafePath,
)
from gridflow._agent.folder import temporary_folder
from gridflow._coordinator import folders, record
from gridflow._coordinator.record import Outcome
from gridflow._features.checkpoints.owner import FolderLock
from gridflow._features.checkpoints.store import CheckpointStore
from gridflow._feed.ledger import Ledger
from gridflow._files import local
from gridflow._spec.cluster import Task

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="plays another user")
#: Of somebody without a name here.
ANOTHER = 54_321


@pytest.fixture
def shared(tmp_path, monkeypatch):
    """Give a temporary folder where anybody may create names, as /tmp is."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


def owned_by_another(path):
    """Give a path, which need not lead anywhere, to somebody else."""
    os.lchown(path, ANOTHER, ANOTHER)
    return path


def train(**options):
    return TensorflowDistributor(
        1, "none", launcher=LocalLauncher(), logs="none", progress=False, **options
    ).start(lambda: None)


class Planted:
    """Makes a file when it is unpickled."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return Path.touch, (self.mark,)


@pytest.fixture
def run(tmp_path):
    """Give a run under a known id that has succeeded, and whose value makes a file when read."""
    path = tmp_path / "runs" / "nightly"
    (path / "result").mkdir(parents=True, mode=0o755)
    path.chmod(0o755)
    header = {"kind": "pickle", "files": ["value.pickle"]}
    (path / "result" / "value.pickle").write_bytes(pickle.dumps(Planted(tmp_path / "mark")))
    logs = {Task("worker", 0): path / "logs" / "worker-0.log"}
    record.write_outcome(path, Outcome((header,), {}, Ledger(), (), logs, None, {}))
    record.write(path, record.RESULT, {"state": record.SUCCEEDED, "ended": "yesterday"})
    return path


def value_of(run):
    return train(job_dir=run.parent, run_id=run.name).result(60).value


# The folder of all jobs --------------------------------------------------------------------------


def test_the_folder_of_jobs_is_for_this_user_alone(shared):
    made = folders.make_in_default("job", 20)
    assert [p.stat().st_mode & 0o777 for p in (made, made.parent)] == [0o700, 0o700]
    made.parent.chmod(0o755)  # as an older gridflow made it
    folders.make_in_default("another", 20)
    assert made.parent.stat().st_mode & 0o777 == 0o700


@needs_root
@pytest.mark.parametrize("mode", [0o700, 0o755, 0o777])
def test_a_folder_of_jobs_that_another_user_made_is_refused(shared, mode):
    theirs = folders.default_folder()
    theirs.mkdir()
    theirs.chmod(mode)
    owned_by_another(theirs)
    with pytest.raises(UnsafePath, match=f"belongs to {ANOTHER}") as refused:
        train()
    assert str(theirs) in str(refused.value)
    assert list(theirs.iterdir()) == []


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o1777])
def test_a_folder_of_jobs_that_others_can_write_to_is_refused(shared, mode):
    folders.default_folder().mkdir()
    folders.default_folder().chmod(mode)
    with pytest.raises(UnsafePath, match="other users can write"):
        train()


def test_a_link_or_a_file_in_place_of_the_folder_of_jobs_is_refused(shared, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(0o700)
    folders.default_folder().symlink_to(elsewhere)
    with pytest.raises(UnsafePath, match="not a folder but a symbolic link"):
        train()
    assert list(elsewhere.iterdir()) == []
    folders.default_folder().unlink()
    folders.default_folder().touch()
    with pytest.raises(UnsafePath, match="not a folder but a file"):
        train()


# The folder of a run -----------------------------------------------------------------------------


def test_what_a_run_of_ones_own_returned_is_unpickled(run, tmp_path):
    assert value_of(run) is None
    assert (tmp_path / "mark").exists()


@needs_root
@pytest.mark.parametrize("theirs", ["", "result", "result/value.pickle", "outcome.json"])
def test_nothing_is_unpickled_that_another_user_owns(run, tmp_path, theirs):
    owned_by_another(run / theirs)
    with pytest.raises(UnsafePath, match=f"belongs to {ANOTHER}"):
        value_of(run)
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize("open_to_others", ["", "result", "result/value.pickle"])
@pytest.mark.parametrize("bits", [0o002, 0o020])
def test_nothing_is_unpickled_that_another_user_can_write(run, tmp_path, open_to_others, bits):
    path = run / open_to_others
    path.chmod(path.stat().st_mode | bits)
    with pytest.raises(UnsafePath, match="other users can write"):
        value_of(run)
    assert not (tmp_path / "mark").exists()


def test_modes_below_a_folder_that_lets_nobody_in_do_not_matter(run):
    """As with umask 002, which many Linux distributions set."""
    run.chmod(0o700)
    (run / "result").chmod(0o2775)
    (run / "result" / "value.pickle").chmod(0o664)
    assert value_of(run) is None


@pytest.mark.parametrize("name", ["result", "result/value.pickle", "outcome.json", "logs"])
def test_no_link_in_the_folder_of_a_run_is_followed(run, tmp_path, name):
    elsewhere = tmp_path / "elsewhere"
    if (run / name).exists():
        (run / name).rename(elsewhere)
    (run / name).symlink_to(elsewhere)
    with pytest.raises(UnsafePath, match="symbolic link"):
        value_of(run)
    assert not (tmp_path / "mark").exists()


def test_the_folder_of_a_run_may_be_no_link_itself(run, tmp_path):
    (tmp_path / "runs" / "daily").symlink_to(run)
    with pytest.raises(UnsafePath, match="symbolic link"):
        value_of(run.with_name("daily"))


@needs_root
@pytest.mark.parametrize("argument", ["job_dir", "checkpoint_dir"])
@pytest.mark.parametrize("kind", ["folder", "link"])
def test_what_another_user_made_where_anybody_may_is_refused(shared, tmp_path, argument, kind):
    theirs = shared / "runs"
    if kind == "folder":
        theirs.mkdir(0o777)
    else:
        (tmp_path / "home").mkdir()
        theirs.symlink_to(tmp_path / "home")
    owned_by_another(theirs)
    with pytest.raises(UnsafePath, match=f"{theirs} belongs to {ANOTHER}"):
        train(**{argument: theirs / "mine"})


@needs_root
@pytest.mark.parametrize("kind", ["folder", "link"])
@pytest.mark.parametrize("below", ["", "deep"])
def test_what_another_user_makes_at_the_same_moment_is_refused(
    shared, tmp_path, monkeypatch, kind, below
):
    """Between gridflow's look and its own mkdir."""
    theirs, mkdir = shared / "runs", Path.mkdir

    def too_late(path, *args, **options):
        if path == theirs and not theirs.is_symlink() and not theirs.exists():
            if kind == "link":
                theirs.symlink_to(tmp_path)
            else:
                mkdir(theirs)
            owned_by_another(theirs)
        mkdir(path, *args, **options)

    monkeypatch.setattr(Path, "mkdir", too_late)
    for make in (folders.make, lambda folder, job: FolderLock(folder, job, print)):
        with pytest.raises(UnsafePath, match=f"{theirs} belongs to {ANOTHER}"):
            make(theirs / below, "job")
        theirs.unlink() if kind == "link" else theirs.rmdir()


@needs_root
def test_what_vanishes_at_the_same_moment_is_not_taken_for_ones_own(shared, monkeypatch):
    """Another user's folder, removed while gridflow looks, and made again afterwards."""
    theirs, lstat = shared / "runs", Path.lstat
    theirs.mkdir()
    owned_by_another(theirs)

    def too_late(path):
        if path == theirs and theirs.exists():
            theirs.rmdir()
        return lstat(path)

    monkeypatch.setattr(Path, "lstat", too_late)
    with pytest.raises(InvalidArgument, match="No such file"):
        folders.make(theirs, "job")


@needs_root
def test_a_link_that_leads_over_another_users_link_is_refused(shared, tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "mine").symlink_to(shared / "theirs")
    (shared / "theirs").symlink_to(tmp_path / "home")
    folders.make(tmp_path / "mine", "before")
    owned_by_another(shared / "theirs")
    with pytest.raises(UnsafePath, match=f"theirs belongs to {ANOTHER}"):
        folders.make(tmp_path / "mine", "after")


def test_links_in_a_circle_are_an_error(tmp_path):
    (tmp_path / "one").symlink_to("other")
    (tmp_path / "other").symlink_to("one")
    with pytest.raises(OSError, match="symbolic links"):
        local.check_not_planted(tmp_path / "one")


@needs_root
def test_no_task_works_where_another_user_made_the_folder_of_spools(shared):
    (shared / "spool").mkdir()
    owned_by_another(shared / "spool")
    with (
        pytest.raises(UnsafePath, match="any user could have created it"),
        temporary_folder("gridflow-", shared / "spool"),
    ):
        pass


def test_folders_of_ones_own_and_of_a_group_are_taken(shared, tmp_path):
    mine, team = shared / "mine", tmp_path / "team"
    mine.mkdir()
    team.mkdir()
    team.chmod(0o2775)
    for folder in (mine, mine / "deep" / "down", team, team / "runs", shared):
        made = folders.make(folder, "job")
        assert made.stat().st_mode & 0o777 == 0o700
    assert (mine / "deep").stat().st_mode & 0o022 == 0


@needs_root
def test_a_group_without_a_name_is_this_process_own(tmp_path):
    """Kubernetes gives volumes to the group ``fsGroup``, with the right to write."""
    code = (
        "import os, sys; from pathlib import Path; from gridflow._files import local\n"
        "os.setgroups([54321, 1]); local.check_own(Path(sys.argv[1]))"
    )
    for group, expected in ((ANOTHER, 0), (ANOTHER + 1, 1), (1, 1)):
        tmp_path.chmod(0o2770)
        os.chown(tmp_path, -1, group)
        words = [sys.executable, "-c", code, str(tmp_path)]
        done = subprocess.run(words, capture_output=True, check=False)
        assert done.returncode == expected, done.stderr
        assert expected == 0 or b"other users can write" in done.stderr


# Links in a folder of checkpoints ----------------------------------------------------------------


def test_no_link_among_checkpoints_is_followed(tmp_path):
    precious, folder = tmp_path / "precious", tmp_path / "checkpoints"
    precious.write_text("precious")
    store = CheckpointStore(folder)
    arriving = store.incoming(0, 0)
    arriving.symlink_to(precious)
    (folder / "num_workers").symlink_to(precious)
    (folder / "checkpoint-0000-000000-000000001.npz").symlink_to(precious)
    with pytest.raises(UnsafePath, match="symbolic link"):
        local.open_file(arriving, "wb")
    assert store.workers is None
    with pytest.raises(GridflowError, match=r"can't be read \(UnsafePath: .*symbolic link"):
        store.latest()
    local.write_whole(folder / "num_workers", "2")
    assert (store.workers, precious.read_text()) == (2, "precious")


# Small files -------------------------------------------------------------------------------------


def test_a_file_that_does_not_fit_leaves_the_one_before(tmp_path):
    path = tmp_path / "state"
    local.write_whole(path, "before")
    code = (
        "import resource, signal, sys; from pathlib import Path\n"
        "from gridflow._files import local\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4, 4))\n"
        "local.write_whole(Path(sys.argv[1]), 'behind')"
    )
    words = [sys.executable, "-c", code, str(path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert os.strerror(errno.EFBIG) in done.stderr
    assert ([each.name for each in tmp_path.iterdir()], path.read_text()) == (["state"], "before")


@pytest.mark.parametrize(
    "text", ["", '{"host": ', "[" * 100_000, "\ud800"], ids=["empty", "half", "deep", "no text"]
)
def test_a_file_that_cannot_be_read_is_skipped_with_a_warning(tmp_path, text, caplog):
    path = tmp_path / "state"
    path.write_bytes(text.encode(errors="surrogatepass"))
    assert local.read_json(path) is None
    assert str(path) in caplog.text
    assert local.read_json(tmp_path / "none") is None


def test_no_pipe_is_waited_for(tmp_path):
    os.mkfifo(tmp_path / "state")
    assert local.read_json(tmp_path / "state") is None
    with pytest.raises(UnsafePath, match="pipe"):
        local.open_file(tmp_path / "state")
