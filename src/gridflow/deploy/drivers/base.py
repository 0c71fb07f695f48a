"""What every driver can do, and the tools that they call."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TextIO

from gridflow._spec.exits import Exit, of_program
from gridflow.deploy.inside.terminal import paint
from gridflow.errors import GridflowError, JobExists, MissingDependency

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True)
class TaskStatus:
    """One task as its target sees it."""

    task: str
    state: str
    detail: str = ""


class Driver(Protocol):
    """A job on a target."""

    def start(self, *, replace: bool = False) -> None:
        """Start it; ``replace`` removes the one of its name that is there, which is refused else.

        Raises
        ------
        AlreadyThere
            For a job that exists already.
        """

    def follow(self, output: TextIO) -> int:
        """Show its output on a stream until its end; return its `gridflow._spec.exits.Exit`."""

    def status(self) -> list[TaskStatus]:
        """Return its tasks."""

    def is_there(self) -> bool:
        """Return whether there is such a job, though it has no tasks; say what is known of it."""

    def logs(self, *, follow: bool) -> int:
        """Print its output."""

    def cancel(self) -> None:
        """End it and remove it."""


class AlreadyThere(JobExists):
    """A job of this name is there; to start it again would show its old end as the new one's."""

    def __init__(self, name: str, what: str) -> None:
        self.name, self.what = name, what
        super().__init__(
            f"{what}, so nothing was started. 'gridflow run --replace' removes it first, "
            f"'--set name={name}-2' runs another one next to it, 'gridflow logs' prints its output."
        )

    def __reduce__(self) -> tuple[type[AlreadyThere], tuple[str, str]]:
        return type(self), (self.name, self.what)


class NotThere(GridflowError):
    """There is no job of this name."""

    def __init__(self, target: str, name: str) -> None:
        self.target, self.name = target, name
        super().__init__(
            f"there is no job {name!r} on the target {target}: it was never started in this "
            f"namespace or project, or it has been removed."
        )

    def __reduce__(self) -> tuple[type[NotThere], tuple[str, str]]:
        return type(self), (self.target, self.name)


def tool(name: str, hint: str) -> str:
    """Return the path of a command.

    Raises
    ------
    MissingDependency
        If it isn't installed.
    """
    path = shutil.which(name)
    if path is None:
        raise MissingDependency(f"{name} isn't installed, or not on the PATH. {hint}")
    return path


def call(words: Sequence[str], text: str | None = None) -> str:
    """Run a tool and return what it prints.

    Raises
    ------
    GridflowError
        If it fails, with its own words.
    """
    done = subprocess.run(words, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr or done.stdout).strip()
        reason = f"'{' '.join(words)}' failed with exit code {done.returncode}: {said}"
        raise GridflowError(reason)
    return done.stdout


def verdict(failed: Mapping[str, int]) -> int:
    """Say how tasks have failed, and return the job's `gridflow._spec.exits.Exit`.

    Parameters
    ----------
    failed : mapping of str to int
        The exit codes of the tasks that have failed; the first one's is the job's, unless another
        task ended it.
    """
    for name, code in failed.items():
        own = "failed" if code != Exit.GIVEN_UP else "was ended, as another task had failed,"
        say(f"{name} {own} with exit code {code}")
    own_codes = [code for code in failed.values() if code != Exit.GIVEN_UP]
    return of_program((own_codes or list(failed.values()) or [0])[0])


def say(text: str) -> None:
    """Tell the user what happens, beside the job's own output."""
    sys.stderr.write(f"{paint('gridflow:', 'dim', sys.stderr)} {text}\n")
    sys.stderr.flush()
