"""A release: ``make release VERSION=0.2.0``, or ``python scripts/release.py --help``.

Writes the version into ``pyproject.toml`` and its copies, and the notes into ``CHANGELOG.md``,
commits them, builds and checks ``dist/`` from that commit (``scripts/dist.py``), and tags it. If a
step fails, the clone is as before. Nothing leaves this machine: pushing and uploading is up to you.

The notes are the fragments of ``changelog.d``, put together by towncrier. To edit them first, run
``towncrier build --version 0.2.0 --date unreleased``, edit and commit: an entry with that date
is taken as it is.
"""

from __future__ import annotations

import argparse
import datetime as dt
import re
import subprocess
import sys

from commands import ROOT, release_tool, run
from dist import PYTHONS
from packaging.version import Version

FORMAT = re.compile(r"\d+\.\d+\.\d+(rc\d+)?")
ENTRY = re.compile(r"^## (\S+) \((.+)\)$", re.MULTILINE)
UNRELEASED = "unreleased"
#: Where the version stands, each with what surrounds it.
PLACES = {
    "pyproject.toml": re.compile(r'(?<=^version = ")[^"]+', re.MULTILINE),
    "java/pom.xml": re.compile(r"(?<=<version>)[^<]+"),
    "conda/recipe.yaml": re.compile(r'(?<=^  version: ")[^"]+', re.MULTILINE),
}


def git(*words):
    return run("git", *words, cwd=ROOT)


def entries():
    """Return the dates of the versions in the changelog."""
    return dict(ENTRY.findall((ROOT / "CHANGELOG.md").read_text()))


def fragments():
    return [path for path in (ROOT / "changelog.d").iterdir() if path.name != "README.md"]


def refusal(version):
    """Return why there can't be such a release now; None if there can."""
    if not FORMAT.fullmatch(version):
        return f"VERSION is {version!r}; it must be like 1.2.3 or 1.2.3rc1"
    if changed := git("status", "--porcelain"):
        return f"there are files that aren't committed; commit or remove them:\n{changed}"
    if not git("branch", "--show-current"):
        return "no branch is checked out, so the release's commit would be lost: git switch BRANCH"
    dates = entries()
    released = [tag.removeprefix("v") for tag in git("tag", "--list", "v*").split()]
    released += [each for each, date in dates.items() if date != UNRELEASED]
    if version in released:
        return f"{version} has been released already (see 'git tag' and CHANGELOG.md)"
    newest = max(released, key=Version, default=None)
    if newest and Version(version) < Version(newest):
        return f"{version} is older than the last release, {newest}"
    waiting = [each for each, date in dates.items() if date == UNRELEASED]
    if waiting and waiting != [version]:
        return f"CHANGELOG.md has an unreleased entry for {', '.join(waiting)}, not for {version}"
    left = len(fragments())
    if waiting and left:
        return (
            f"CHANGELOG.md has the entry for {version} already, but changelog.d has {left} changes "
            "that came later: write them into the entry, and delete them"
        )
    if not waiting and not left:
        return "changelog.d is empty: nothing has changed that a user would notice"
    return None


def write_notes(version):
    """Write the notes of a version into the changelog; return them."""
    path, today = ROOT / "CHANGELOG.md", dt.datetime.now(tz=dt.UTC).date().isoformat()
    if version in entries():
        waiting, dated = f"## {version} ({UNRELEASED})", f"## {version} ({today})"
        path.write_text(path.read_text().replace(waiting, dated))
    else:
        words = ("build", "--yes", "--version", version, "--date", today)
        release_tool("towncrier", *words, cwd=ROOT)
    notes = path.read_text().partition(f"## {version} ")[2]
    following = ENTRY.search(notes)
    return f"## {version} {notes[: following.start() if following else None].rstrip()}"


def write_version(version):
    for name, pattern in PLACES.items():
        path = ROOT / name
        text, count = pattern.subn(version, path.read_text(), count=1)
        if not count:
            raise SystemExit(f"{name} has no version to replace")
        path.write_text(text)


def main():
    """Refuse what can't be released, release the rest."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("version", metavar="VERSION", help="such as 1.2.3 or 1.2.3rc1")
    parser.add_argument(
        "--dry-run", action="store_true", help="show the notes, and leave everything as it is"
    )
    parser.add_argument(
        "--pythons",
        nargs="*",
        default=list(PYTHONS),
        metavar="PYTHON",
        help="versions of Python to try the wheel with (default: %(default)s)",
    )
    given = parser.parse_args()
    if reason := refusal(given.version):
        raise SystemExit(reason)
    before, tag = git("rev-parse", "HEAD"), f"v{given.version}"
    done = False
    try:
        notes = write_notes(given.version)
        write_version(given.version)
        if given.dry_run:
            print(notes)
            return
        git("commit", "--quiet", "--all", "--message", f"Release {given.version}")
        script = ROOT / "scripts" / "dist.py"
        subprocess.run([sys.executable, script, "--pythons", *given.pythons], check=True)
        git("tag", "--annotate", tag, "--message", notes, "--cleanup=verbatim")
        done = True
    except subprocess.CalledProcessError:
        raise SystemExit("dist/ can't be built: the clone is as before") from None
    finally:
        if not done:
            git("reset", "--quiet", "--hard", before)
    branch = git("branch", "--show-current")
    print(f"Tagged {tag}. To publish it: git push origin {branch} {tag}, then upload dist/.")
    print(f"Its documentation: make docs-release VERSION={given.version}")


if __name__ == "__main__":
    sys.exit(main())
