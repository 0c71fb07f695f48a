"""A program in each task: its command line, and the variables that identify its task."""

from __future__ import annotations

import faulthandler
import os
import resource
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol

from gridflow._spec.cluster import TF_CONFIG, ClusterMember, role_variables
from gridflow._spec.option_checks import read_words
from gridflow.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gridflow._spec.cluster import ClusterSpec, Task
    from gridflow._spec.job import Role

# The exit codes of shells for a program that can't be started.
_NOT_FOUND: Final = 127
_NOT_EXECUTABLE: Final = 126

#: Set to ``0``, it keeps gridflow's patches of Keras out of programs.
PATCHES_VARIABLE: Final = "GRIDFLOW_PATCHES"
#: At the front of ``PYTHONPATH``, it lets each Python of a program patch Keras.
_STARTUP: Final = str(Path(__file__).parent.parent / "_startup")


def with_patches(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a program, in which Keras is patched unless that is disabled."""
    if environ.get(PATCHES_VARIABLE) == "0":
        return dict(environ)
    others = environ.get("PYTHONPATH")
    return {**environ, "PYTHONPATH": f"{_STARTUP}{os.pathsep}{others}" if others else _STARTUP}


class CommandContext(Protocol):
    """What a command is told about its task."""

    task: Task
    cluster_spec: ClusterSpec


@dataclass(frozen=True)
class CommandProgram:
    """A command line; it gets ``TF_CONFIG``, ``GRIDFLOW_ROLE`` and ``GRIDFLOW_INDEX``.

    `of_roles`: Instead of them, by role.
    `args`: What comes behind either.
    """

    words: tuple[str, ...]
    of_roles: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    args: tuple[str, ...] = ()

    def run(self, context: CommandContext) -> None:
        """Run it to its end. If it fails, this process ends the same way."""
        words = [*self.of_roles.get(context.task.role, self.words), *self.args]
        member = ClusterMember.of(context.cluster_spec, context.task)
        variables = role_variables(member.role, member.index, member.cluster)
        environ = with_patches({**os.environ, **variables, TF_CONFIG: member.tf_config})
        trouble = ""
        try:
            code = subprocess.run(words, env=environ, check=False).returncode
        except FileNotFoundError:
            code, trouble = _NOT_FOUND, f" (no program {words[0]!r} here or on the PATH)"
        except OSError as error:
            code, trouble = _NOT_EXECUTABLE, f" (can't run {words[0]!r}: {error.strerror})"
        if code:
            how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
            how += trouble
            sys.stderr.write(f"gridflow: {member} {how}: {' '.join(words)}\n")
            _end_like(code)


def make_command(
    words: Sequence[str], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> CommandProgram:
    """Check the user's command and return it in the form that is sent.

    Raises `InvalidArgument`: It isn't a list of words.
    """
    if kwargs:
        raise InvalidArgument(
            f"a command takes no keyword arguments, only words; got {', '.join(kwargs)}."
        )
    return CommandProgram((*read_words("a command", words), *(str(each) for each in args)))


def with_commands_of(program: CommandProgram, roles: Iterable[Role]) -> CommandProgram:
    """Return the program with the commands of roles that have their own.

    Raises `InvalidArgument`: A role has no command.
    """
    running = [role for role in roles if not role.is_standard_server]
    own = {role.name: tuple(role.command) for role in running if role.command is not None}
    lacking = [role.name for role in running if role.name not in own]
    if lacking and not program.words:
        raise InvalidArgument(
            f"role {lacking[0]!r} has no command. Give one for all roles, as in "
            f"run(['python', 'train.py']), or for this one: Role({lacking[0]!r}, "
            "command=['python', 'train.py'])."
        )
    return CommandProgram(program.words, own, program.args)


def _end_like(code: int) -> NoReturn:
    """Exit with a code or by a signal, so that the agent sees how the command ended."""
    sys.stdout.flush()
    sys.stderr.flush()
    if code < 0:
        faulthandler.disable()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the command has dumped its own
        if -code not in {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code if code > 0 else 1)
