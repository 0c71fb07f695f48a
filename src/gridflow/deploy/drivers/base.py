"""The interface of drivers, and helpers to call external tools."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TextIO

from gridflow._spec.exits import Exit, of_program
from gridflow._spec.printable import printable
from gridflow.deploy.inside.terminal import paint
from gridflow.errors import GridflowError, JobExists, MissingDependency

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

#: What kubectl says of errors that trying again won't resolve: an unknown kind, 403 and 401.
UNKNOWN_KIND: Final = "doesn't have a resource type"
_FINAL: Final = (UNKNOWN_KIND, "(Forbidden)", "(Unauthorized)", "must be logged in")
#: Seconds in which a target notices that tasks have ended at the job's deadline.
_SETTLES: Final = 60.0


@dataclass(frozen=True)
class TaskStatus:
    """A task's state on its target."""

    task: str
    state: str
    detail: str = ""


class Driver(Protocol):
    """A job on a target."""

    def start(self, *, replace: bool = False, follows: bool = True) -> None:
        """Start the job; with ``replace``, first remove an existing job of the same name.

        ``follows`` is whether it will be followed.

        Raises
        ------
        AlreadyThere
            If the job already exists and ``replace`` is False.
        NotAllowed
            If the user lacks permissions that will be needed.
        """

    def follow(self, output: TextIO) -> int:
        """Print the job's output until it ends; return its `gridflow._spec.exits.Exit`."""

    def status(self) -> list[TaskStatus]:
        """Return the job's tasks."""

    def is_there(self) -> bool:
        """Return whether the job exists, even without tasks; print what is known about it."""

    def logs(self, *, follow: bool) -> int:
        """Print the job's output."""

    def cancel(self) -> None:
        """Stop the job and remove it."""


class AlreadyThere(JobExists):
    """A job of this name exists; starting it again would report the old job's end."""

    def __init__(self, name: str, what: str) -> None:
        self.name, self.what = name, what
        super().__init__(
            f"{what}, so nothing was started. Remove it first with 'gridflow run --replace', run "
            f"another job with '--set name={name}-2', or print its output with 'gridflow logs'."
        )

    def __reduce__(self) -> tuple[type[AlreadyThere], tuple[str, str]]:
        return type(self), (self.name, self.what)


class NotThere(GridflowError):
    """There is no job of this name."""

    def __init__(self, target: str, name: str) -> None:
        self.target, self.name = target, name
        super().__init__(
            f"no job {name!r} on the target {target}: it was never started in this namespace or "
            "project, or it has been removed."
        )

    def __reduce__(self) -> tuple[type[NotThere], tuple[str, str]]:
        return type(self), (self.target, self.name)


def tool(name: str, hint: str) -> str:
    """Return the path of a command.

    Raises `MissingDependency`: If it isn't installed.
    """
    path = shutil.which(name)
    if path is None:
        raise MissingDependency(f"{name} isn't installed or isn't on the PATH. {hint}")
    return path


def call(words: Sequence[str], text: str | None = None) -> str:
    """Run a tool and return its output.

    Raises `GridflowError`: If it fails; contains its error message.
    """
    done = subprocess.run(words, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr or done.stdout).strip()
        reason = f"'{' '.join(words)}' failed with exit code {done.returncode}: {said}"
        raise GridflowError(reason)
    return done.stdout


def is_final(said: str) -> bool:
    """Return whether what kubectl says won't change by trying again."""
    return any(words in said for words in _FINAL)


class Patience:
    """How long `Driver.follow` waits for a job of which nothing runs.

    Until a task has started, nothing inside the job counts its `start_timeout` or its deadline.

    `name`: The job's.
    """

    def __init__(
        self,
        name: str,
        start_timeout: int,
        deadline: int | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._start_timeout, self._deadline = start_timeout, deadline
        self._clock = clock
        self._began = self._last_sign = clock()
        self._settles = 0.0

    def verdict(
        self, *, has_begun: bool, is_running: bool, is_queued: bool, reasons: Iterable[str]
    ) -> int | None:
        """Return the exit code if the job is given up, otherwise None; print why.

        `has_begun`, `is_running`: Whether there is a task that has started, and one that hasn't
            ended since.
        `is_queued`: Whether the job waits in a queue, for as long as that takes.
        `reasons` (iterable of str): What is known about tasks that haven't started.
        """
        now = self._clock()
        if has_begun:
            self._settles = _SETTLES
        if is_queued:
            self._began = now
        if is_queued or has_begun:
            self._last_sign = now
        if (
            self._deadline is not None
            and not is_running
            and now - self._began >= self._deadline + self._settles
        ):
            self._say(
                f"nothing of {self._name} runs at its deadline of {self._deadline} s", reasons
            )
            return int(Exit.OVERDUE)
        if now - self._last_sign >= self._start_timeout:
            limit = f"start_timeout ({self._start_timeout} s)"
            self._say(f"nothing of {self._name} has started within its {limit}", reasons)
            say("to wait longer, run it with '--replace --set start_timeout=30m'")
            return int(Exit.TRY_AGAIN)
        return None

    def _say(self, what: str, reasons: Iterable[str]) -> None:
        say(f"{what}; it may still start: remove it with 'gridflow cancel'")
        for reason in dict.fromkeys(reasons):
            say(f"  {reason}")


def verdict(failed: Mapping[str, int]) -> int:
    """Print how tasks have failed, and return the job's `gridflow._spec.exits.Exit`.

    `failed` (mapping of str to int): The exit codes of the failed tasks. The first one determines
        the job's, unless that task was stopped because of another.
    """
    for name, code in failed.items():
        own = "failed" if code != Exit.GIVEN_UP else "was stopped because another task failed,"
        say(f"{name} {own} with exit code {code}")
    own_codes = [code for code in failed.values() if code != Exit.GIVEN_UP]
    return of_program((own_codes or list(failed.values()) or [0])[0])


def say(text: str) -> None:
    """Print a message to the user, separately from the job's output."""
    sys.stderr.write(f"{paint('gridflow:', 'dim', sys.stderr)} {printable(text)}\n")
    sys.stderr.flush()
