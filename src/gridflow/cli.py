"""The command ``gridflow``. Each subcommand's code is imported when it is called."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import io
import os
import signal
import sys
from typing import TYPE_CHECKING, Final

from gridflow._files.local import FULL
from gridflow._spec.backends import BACKENDS
from gridflow._spec.cluster import FLAGS
from gridflow._spec.exits import Exit, exit_code
from gridflow._spec.printable import printable
from gridflow.deploy.inside.terminal import paint
from gridflow.errors import GridflowError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    argv : sequence of str, optional
        The arguments after ``gridflow``; by default those of the process.

    Returns
    -------
    int
        One of `gridflow._spec.exits.Exit`; ``launch`` returns its program's code.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # an unencodable character mustn't fail it
            stream.reconfigure(errors="backslashreplace")
    if argv is None and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # Inherited from a script's background; there, too, `kill -INT` ends all that was started.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    words = list(sys.argv[1:] if argv is None else argv)
    parser = make_parser(tfrecord=words[:1] != ["launch"])
    words, command = _split_command(words)
    arguments = parser.parse_args(words)
    if command and arguments.subcommand != "launch":
        parser.error(f"{arguments.subcommand} takes nothing after '--'.")
    arguments.command = command
    try:
        code: int = arguments.run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has closed the pipe; Python would complain again at exit.
        _drop_output()
        return int(Exit.BROKEN_PIPE)
    except OSError as error:
        if error.errno not in FULL:
            raise
        sys.stderr.write(f"gridflow {arguments.subcommand}: can't write: {error}\n")
        _drop_output()
        return int(Exit.OTHER)
    except KeyboardInterrupt:
        sys.stderr.write(f"gridflow {arguments.subcommand}: interrupted\n")
        return int(Exit.INTERRUPTED)
    except GridflowError as error:
        title = paint(f"gridflow {arguments.subcommand}:", "red", sys.stderr)
        sys.stderr.write(f"{title} {printable(str(error))}\n")
        return exit_code(error)
    return code


def _drop_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _split_command(words: list[str]) -> tuple[list[str], list[str]]:
    """Split off the program after ``--``, which argparse would confuse with options."""
    if "--" not in words:
        return words, []
    place = words.index("--")
    return words[:place], words[place + 1 :]


def make_parser(*, tfrecord: bool = True) -> argparse.ArgumentParser:
    """Return the parser of the whole command line.

    ``tfrecord`` adds the subcommands of `gridflow.tfrecord`, whose import may need more than the
    standard library.
    """
    parser = argparse.ArgumentParser(
        prog="gridflow", description="TensorFlow jobs on Spark, Kubernetes, Compose and more."
    )
    subcommands = parser.add_subparsers(dest="subcommand", metavar="SUBCOMMAND", required=True)
    _add_documents(subcommands)
    _add_running(subcommands)
    _add_launch(subcommands)
    _add_jobs(subcommands)
    _add_environments(subcommands)
    _add_doctor(subcommands)
    _add_completion(subcommands)
    if tfrecord and _is_there("gridflow.tfrecord") and _is_there("gridflow.tfrecord.cli"):
        importlib.import_module("gridflow.tfrecord.cli").add_parser(subcommands)
    return parser


def _is_there(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


#: Arguments that are paths of files.
_FILES: Final = frozenset({"file", "paths", "source", "target"})
Subparsers = argparse._SubParsersAction  # noqa: SLF001  (argparse has no public name for it)


def _job(parser: argparse.ArgumentParser, *, target: bool = True) -> None:
    if target:
        parser.add_argument("-t", "--target", required=True, help="see 'gridflow targets'")
    parser.add_argument("job", metavar="job.yaml", help="the job's description")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="A.B=C",
        dest="assignments",
        help="change a field, like roles.worker.replicas=3; may be repeated",
    )
    parser.add_argument(
        "--lossy", action="store_true", help="leave out what the target can't express, and warn"
    )


def _json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")


def _calls(parser: argparse.ArgumentParser, module: str, function: str) -> None:
    def run(arguments: argparse.Namespace) -> int:
        code: int = getattr(importlib.import_module(module), function)(arguments)
        return code

    parser.set_defaults(run=run)


def _add_documents(subcommands: Subparsers[argparse.ArgumentParser]) -> None:
    module = "gridflow.deploy.commands"
    add = subcommands.add_parser
    parser = add("targets", help="list where a job can run")
    _json(parser)
    _calls(parser, module, "targets")
    parser = add(
        "init",
        help="print or write a new job.yaml",
        description="In a terminal, ask a few questions; an option answers one. Otherwise, with "
        "options, take the defaults for the rest; without, print all fields with comments.",
    )
    parser.add_argument("file", nargs="?", help="a new file; standard output by default")
    for option, text in (
        ("target", "where it runs"),
        ("name", "of the job"),
        ("program", "a command, like 'python train.py'"),
        ("image", "of the containers"),
        ("workers", "how many"),
        ("gpus", "of each worker"),
        ("backend", f"of Keras: {', '.join(BACKENDS)}"),
        ("ps", "how many parameter servers"),
        ("data", "a folder, pvc:CLAIM, a URL, or none; the program finds it in $DATA"),
    ):
        parser.add_argument(f"--{option}", help=text)
    _calls(parser, "gridflow.deploy.asking", "init")
    parser = add("render", help="print a target's documents")
    _job(parser)
    parser.add_argument("-o", "--output", metavar="DIR", help="write one file for each document")
    _calls(parser, module, "render_job")
    parser = add("validate", help="check documents: schema and lint")
    parser.add_argument("-t", "--target", required=True, help="see 'gridflow targets'")
    parser.add_argument("file", help="YAML or JSON; '-' is standard input")
    parser.add_argument("--schemas", metavar="DIR", help="a folder of schemas of custom kinds")
    _json(parser)
    _calls(parser, module, "validate_file")
    parser = add("explain", help="show what a target can't express")
    parser.add_argument("-t", "--target", required=True, help="see 'gridflow targets'")
    _json(parser)
    _calls(parser, module, "explain_target")
    parser = add("template", help="render your own Jinja2 file")
    inner = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    parser = inner.add_parser("render", help="print the rendered file")
    parser.add_argument("file", help="a Jinja2 template")
    parser.add_argument(
        "--set", action="append", default=[], metavar="A.B=C", dest="assignments", help="a variable"
    )
    _calls(parser, module, "render_template")


def _add_running(subcommands: Subparsers[argparse.ArgumentParser]) -> None:
    module = "gridflow.deploy.running"
    for name, text in (
        ("run", "start a job and follow it until it ends"),
        ("status", "show a job's tasks"),
        ("logs", "print a job's output"),
        ("cancel", "end a job and remove it"),
    ):
        parser = subcommands.add_parser(name, help=text)
        _job(parser)
        if name in {"run", "status"}:
            _json(parser)
        if name == "run":
            parser.add_argument("--detach", action="store_true", help="start it and return")
            parser.add_argument(
                "--replace", action="store_true", help="remove an existing job of this name"
            )
            parser.add_argument(
                "--run-id", metavar="ID", help="don't repeat a run that has succeeded; needs --dir"
            )
            parser.add_argument("--dir", help="folder for the jobs' files (local, spark)")
        if name == "logs":
            parser.add_argument(
                "-f", "--follow", action="store_true", help="keep going until the end"
            )
        _calls(parser, module, name)


def _add_launch(subcommands: Subparsers[argparse.ArgumentParser]) -> None:
    parser = subcommands.add_parser(
        "launch",
        help="run one task, in its container",
        usage="gridflow launch [options] [-- command ...]",
        description="Find role and index, wait for the peers' names, set TF_CONFIG, run the "
        "command. A ps or worker without a command runs a standard TensorFlow server.",
    )
    add = parser.add_argument
    add("--classic-flags", action="store_true", help="append --job_name, --task_index, …")
    policies = ("never", "on-failure", "exit-code")
    add("--restart-policy", choices=policies, default="never")
    add("--restart-limit", type=int, default=3, metavar="N")
    add("--pod-restart-policy", choices=policies, help="how the target restarts this task")
    add("--pod-restart-limit", type=int, default=3, metavar="N")
    add(
        "--retry-on", type=int, action="append", default=[], metavar="CODE", help="a retryable exit"
    )
    add(
        "--retryable-exit-code",
        type=int,
        metavar="CODE",
        help="the exit code for retryable failures",
    )
    add("--stay", action="store_true", help="stay once finished, where ended tasks are restarted")
    add("--finished-dir", metavar="DIR", help="record there that the task has finished")
    add("--resolve-timeout", type=float, default=300.0, metavar="SECONDS")
    add("--grace", type=float, default=25.0, metavar="SECONDS", help="from SIGTERM to SIGKILL")
    add("--deadline", type=float, metavar="SECONDS", help="end the command after this time")
    for flag in FLAGS:
        add(f"--{flag}", help="instead of the environment's value")
    parser.set_defaults(run=_launch)


def _add_jobs(subcommands: Subparsers[argparse.ArgumentParser]) -> None:
    parser = subcommands.add_parser(
        "jobs",
        help="list or delete the folders that jobs left on the driver",
        description="List the folders of jobs (logs, results, event files), the latest first.",
    )
    parser.add_argument("--dir", help="where the folders are; the temporary folder by default")
    parser.add_argument(
        "--days",
        type=float,
        default=0.0,
        metavar="N",
        help="only those that started at least N days ago",
    )
    parser.add_argument(
        "--delete", nargs="*", metavar="ID", help="delete these; without IDs, all that have ended"
    )
    _json(parser)
    _calls(parser, "gridflow._coordinator.folders", "command")
    parser = subcommands.add_parser(
        "replay",
        help="tell how a job went, decision by decision",
        description="Print what a job's driver was told and what it decided, from the log in the "
        "job's folder, and where this version of gridflow would decide otherwise.",
    )
    parser.add_argument("folder", metavar="JOB_DIR", help="see 'gridflow jobs'")
    _calls(parser, "gridflow._coordinator.stimuli", "command")
    parser = subcommands.add_parser(
        "report",
        help="write a job's page: tasks, where time goes, curves, events, logs",
        description="Write one HTML file that loads nothing from elsewhere, also of a job that "
        "runs. By default of the latest job in the temporary folder.",
    )
    parser.add_argument("folder", nargs="?", metavar="JOB_DIR", help="see 'gridflow jobs'")
    parser.add_argument("-o", "--output", metavar="FILE", help="JOB_DIR/report.html by default")
    parser.add_argument(
        "-f", "--follow", action="store_true", help="write it again until the job has ended"
    )
    _calls(parser, "gridflow._coordinator.report", "command")
    parser = subcommands.add_parser(
        "top",
        help="show a job in the terminal until it has ended",
        description="Show tasks, rows per second, where time goes and the last events. By default "
        "of the latest job in the temporary folder.",
    )
    parser.add_argument("folder", nargs="?", metavar="JOB_DIR", help="see 'gridflow jobs'")
    parser.add_argument(
        "--seconds", type=float, default=2.0, metavar="N", help="between two looks; 2 by default"
    )
    _calls(parser, "gridflow._coordinator.report", "top")


def _add_environments(subcommands: Subparsers[argparse.ArgumentParser]) -> None:
    parser = subcommands.add_parser("env", help="ship a Python environment to a cluster")
    inner = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    parser = inner.add_parser(
        "pack",
        help="make an archive for spark.archives, and print the settings that use it",
        description="Pack a virtual environment with its interpreter, so that hosts need no "
        "Python, and print the settings for YARN, standalone and Kubernetes.",
    )
    parser.add_argument("-o", "--output", default="environment.tar.gz", metavar="FILE")
    parser.add_argument("--prefix", metavar="DIR", help="the environment; this one by default")
    parser.add_argument("--force", action="store_true", help="overwrite an existing file")
    _json(parser)
    _calls(parser, "gridflow.deploy.environments", "command")


def _add_doctor(subcommands: Subparsers[argparse.ArgumentParser]) -> None:
    parser = subcommands.add_parser(
        "doctor",
        help="check this machine or a Spark cluster, and say what to mend",
        description="Without a job.yaml and without --conf, check this machine. With them, start "
        "a Spark application and look around in its executors. Exits with 1 if there is an error.",
    )
    add = parser.add_argument
    add("job", nargs="?", metavar="job.yaml", help="its Spark settings, and what its tasks need")
    add("--conf", action="append", default=[], metavar="spark.A=B", help="a setting of Spark")
    add(
        "--set",
        action="append",
        default=[],
        metavar="A.B=C",
        dest="assignments",
        help="change a field of the job",
    )
    add(
        "--shared",
        action="append",
        default=[],
        metavar="DIR",
        help="a folder that all hosts should see; may be repeated",
    )
    add("--spool", metavar="DIR", help="the folder of Spool(dir=…)")
    add("--port", metavar="PORT", help="of Network(port=…), like 40000 or 40000-40100")
    add("--backend", choices=BACKENDS, default=BACKENDS[0], help="what tasks train with")
    add("--timeout", type=float, default=180.0, metavar="SECONDS", help="180 by default")
    _json(parser)
    _calls(parser, "gridflow._doctor.command", "command")


def _add_completion(subcommands: Subparsers[argparse.ArgumentParser]) -> None:
    parser = subcommands.add_parser(
        "completion",
        help="print a script that completes this command in bash or zsh",
        description='For bash, put eval "$(gridflow completion bash)" into ~/.bashrc. For zsh, '
        "write the script to a file _gridflow in a folder of $fpath.",
    )
    parser.add_argument("shell", choices=("bash", "zsh"))
    parser.set_defaults(run=_complete)


def _complete(arguments: argparse.Namespace) -> int:
    import shtab

    from gridflow.deploy.targets.registry import names

    parser = make_parser()
    for action in _actions(parser):
        if "--target" in action.option_strings:
            action.choices = names()  # which no other subcommand need import
        elif action.metavar == "DIR" or action.dest == "dir":
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
        elif action.metavar in {"FILE", "job.yaml"} or action.dest in _FILES:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    sys.stdout.write(shtab.complete(parser, arguments.shell) + "\n")
    return 0


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield the arguments of a parser and of its subcommands."""
    for action in parser._actions:  # noqa: SLF001  (argparse has no public way)
        yield action
        if isinstance(action, Subparsers):
            for inner in action.choices.values():
                yield from _actions(inner)


def _launch(arguments: argparse.Namespace) -> int:
    from gridflow.deploy.inside.launch import LaunchArguments, launch

    flags = {name: getattr(arguments, name) for name in FLAGS if getattr(arguments, name)}
    options = LaunchArguments(
        command=tuple(arguments.command),
        classic_flags=arguments.classic_flags,
        restart_policy=arguments.restart_policy,
        restart_limit=arguments.restart_limit,
        pod_restart_policy=arguments.pod_restart_policy,
        pod_restart_limit=arguments.pod_restart_limit,
        retryable_exits=tuple(arguments.retry_on),
        retryable_exit_code=arguments.retryable_exit_code,
        stay=arguments.stay,
        finished_dir=arguments.finished_dir,
        resolve_timeout=arguments.resolve_timeout,
        grace=arguments.grace,
        deadline=arguments.deadline,
        flags=flags,
    )
    return launch(options)


if __name__ == "__main__":
    sys.exit(main())
