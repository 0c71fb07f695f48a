"""``make release``, in a clone that is thrown away."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from suite.waiting import LONGEST, patience

ROOT = Path(__file__).parents[1]
ENTRY = "<!-- towncrier release notes start -->\n"


def git(clone, *words):
    done = subprocess.run(
        ["git", *words], cwd=clone, capture_output=True, text=True, check=True, timeout=patience()
    )
    return done.stdout.strip()


def release(clone, *words):
    """Run the script of a clone; return its exit code and all that it says."""
    done = subprocess.run(
        [sys.executable, clone / "scripts" / "release.py", *words],
        env={**os.environ, "PATH": f"{os.environ['PATH']}:{ROOT / '.tools' / 'bin'}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=LONGEST,
    )
    return done.returncode, done.stdout + done.stderr


def state(clone):
    """Return what a release changes."""
    return git(clone, "log", "-1", "--format=%H"), git(clone, "tag"), git(clone, "status", "-s")


@pytest.fixture
def clone(tmp_path):
    """Copy what a release looks at, with one release and one change since."""
    folder = tmp_path / "clone"
    (folder / "changelog.d").mkdir(parents=True)
    for name in ("pyproject.toml", "java", "conda", "scripts", "requirements", "tests/suite"):
        source, target = ROOT / name, folder / name
        if source.is_file():
            shutil.copy(source, target)
        else:
            built = shutil.ignore_patterns("__pycache__", "target")
            shutil.copytree(source, target, ignore=built)
    (folder / ".gitignore").write_text("__pycache__/\n")
    (folder / "CHANGELOG.md").write_text(f"# Changes\n\n{ENTRY}\n## 1.0.0 (2026-01-01)\n\nFirst.\n")
    (folder / "changelog.d" / "7.added.1.md").write_text("Trains on the moon.\n")
    git(folder, "init", "--quiet", "--initial-branch", "main")
    git(folder, "config", "user.name", "Tester")
    git(folder, "config", "user.email", "tester@example.org")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "All")
    git(folder, "tag", "v1.0.0")
    return folder


def commit(clone):
    git(clone, "add", "--all")
    git(clone, "commit", "--quiet", "--message", "Change")


def nothing(_):
    """Leave the clone as it is."""


def change(clone):
    (clone / "pyproject.toml").write_text("")


def add(clone):
    (clone / "new.py").write_text("")


def leave(clone):
    git(clone, "switch", "--quiet", "--detach")


def use_up(clone):
    (clone / "changelog.d" / "7.added.1.md").unlink()
    (clone / "changelog.d" / "README.md").write_text("Fragments.\n")
    commit(clone)


def announce(clone):
    path = clone / "CHANGELOG.md"
    path.write_text(path.read_text().replace(ENTRY, f"{ENTRY}\n## 2.0.0 (unreleased)\n\nMoon.\n"))
    commit(clone)


@pytest.mark.parametrize(
    ("prepare", "version", "reason"),
    [
        (nothing, "v2.0.0", "VERSION is 'v2.0.0'; it must be like 1.2.3 or 1.2.3rc1"),
        (nothing, "2.0", "must be like 1.2.3"),
        (nothing, "1.0.0", "1.0.0 has been released already"),
        (nothing, "0.9.0", "0.9.0 is older than the last release, 1.0.0"),
        (nothing, "1.0.0rc1", "older than the last release"),
        (change, "2.0.0", "aren't committed; commit or remove them:\nM pyproject.toml"),
        (add, "2.0.0", "aren't committed; commit or remove them:\n?? new.py"),
        (leave, "2.0.0", "no branch is checked out"),
        (use_up, "2.0.0", "changelog.d is empty"),
        (announce, "2.1.0", "has an unreleased entry for 2.0.0, not for 2.1.0"),
        (announce, "2.0.0", "changelog.d has 1 changes that came later"),
    ],
)
def test_what_cannot_be_released_is_refused(clone, prepare, version, reason):
    prepare(clone)
    before = state(clone)
    code, said = release(clone, version)
    assert (code, state(clone)) == (1, before)
    assert reason in said


@pytest.mark.slow
def test_a_dry_run_shows_the_notes_and_changes_nothing(clone):
    before = state(clone)
    code, said = release(clone, "1.1.0rc1", "--dry-run")
    assert code == 0, said
    assert said.startswith("## 1.1.0rc1 (20")
    assert "Trains on the moon." in said
    assert "First." not in said
    assert state(clone) == before


@pytest.mark.slow
def test_a_release_that_cannot_be_built_leaves_everything_as_it_was(clone):
    before = state(clone)
    code, said = release(clone, "1.1.0", "--pythons")
    assert code == 1
    assert "uv build" in said  # there is no package in this clone
    assert "the clone is as before" in said
    assert state(clone) == before


@pytest.mark.slow
@pytest.mark.parametrize("edited", [False, True])
def test_a_release_is_a_commit_with_version_and_notes_and_its_tag(clone, edited):
    if edited:
        announce(clone)
        use_up(clone)
    built = clone / "scripts" / "dist.py"  # the rest of it has a test of its own
    built.write_text(built.read_text().replace("def main():", "def main():\n    return\n"))
    commit(clone)
    before = git(clone, "rev-parse", "HEAD")
    code, said = release(clone, "2.0.0")
    assert code == 0, said
    assert "git push origin main v2.0.0" in said
    assert git(clone, "rev-parse", "v2.0.0^{commit}", "HEAD^").split() == [
        git(clone, "rev-parse", "HEAD"),
        before,
    ]
    assert git(clone, "status", "--short") == ""
    for place, line in {
        "pyproject.toml": 'version = "2.0.0"',
        "java/pom.xml": "<version>2.0.0<",
    }.items():
        assert line in (clone / place).read_text()
    notes = (clone / "CHANGELOG.md").read_text()
    assert "(unreleased)" not in notes
    assert notes.index("## 2.0.0 (20") < notes.index("oon.") < notes.index("## 1.0.0 (2026-01-01)")
    assert not list((clone / "changelog.d").glob("*.added.*"))
    message = git(clone, "tag", "--list", "--format=%(contents)", "v2.0.0")
    assert message.startswith("## 2.0.0 (20")
    assert "oon." in message
