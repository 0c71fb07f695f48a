"""The site of a release beside those of earlier ones: ``make docs-release VERSION=0.2.0``.

Builds the site from the version's tag, and commits it to the branch ``gh-pages`` by mike, which
keeps the other versions and the list that the menu of versions shows. The newest release is also
``latest``, which the site's root leads to. Nothing leaves this machine: pushing is up to you.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from commands import ROOT, run
from packaging.version import Version


def main():
    """Refuse a version without a tag, add the site of any other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("version", metavar="VERSION", help="a release, such as 1.2.3")
    version = parser.parse_args().version
    released = [
        tag.removeprefix("v") for tag in run("git", "tag", "--list", "v*", cwd=ROOT).split()
    ]
    if version not in released:
        known = ", ".join(released) or "none"
        raise SystemExit(f"there is no tag v{version}: 'make release' makes it (released: {known})")
    final = [each for each in map(Version, released) if not each.is_prerelease]
    is_latest = bool(final) and Version(version) == max(final)

    # mike calls mkdocs by its name.
    programs = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "source")
        run("git", "worktree", "add", "--detach", source, f"v{version}", cwd=ROOT)
        try:
            options = {"cwd": source, "env": environment}
            aliases = ("latest",) if is_latest else ()
            run("mike", "deploy", "--update-aliases", version, *aliases, **options)
            if is_latest:
                run("mike", "set-default", "latest", **options)
            print(run("mike", "list", **options))
        finally:
            run("git", "worktree", "remove", "--force", source, cwd=ROOT)
    print("To publish them: git push origin gh-pages")


if __name__ == "__main__":
    sys.exit(main())
