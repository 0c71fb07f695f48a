"""How scripts run other programs."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]


class CommandFailed(SystemExit):
    """A command that failed; a script that doesn't catch it ends with this.

    Attributes
    ----------
    said : str
        What the command printed.
    """

    def __init__(self, words, code, said):
        super().__init__(f"{' '.join(map(str, words))} ended with {code}:\n{said}")
        self.said = said


def run(*words, **options):
    """Run a command; what it prints is returned, and raised if it fails."""
    done = subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, check=False, **options
    )
    if done.returncode:
        raise CommandFailed(words, done.returncode, (done.stdout + done.stderr).strip())
    return done.stdout.strip()


def uv(*words, **options):
    """Run uv, the one that ``make setup`` installed where there is no other."""
    found = shutil.which("uv") or shutil.which("uv", path=ROOT / ".tools" / "bin")
    if found is None:
        raise SystemExit("there is no uv: run 'make setup'")
    return run(found, *words, **options)


def release_tool(name, *words, package=None, **options):
    """Run a tool in the version that ``requirements/release.txt`` names."""
    pinned = ("--constraints", ROOT / "requirements" / "release.txt", "--from", package or name)
    return uv("tool", "run", "--quiet", *pinned, name, *words, **options)
