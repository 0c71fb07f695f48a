"""The driver program of a job on Spark: ``spark-submit spark_main.py --roles=worker=2 -- command``.

Images built with the ``docker`` target have it at ``/opt/gridflow/spark_main.py``.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from gridflow._spec.cluster import ROLES
from gridflow._spec.exits import exit_code, leave_message
from gridflow.deploy.description.description import RESTART_POLICIES, START_TIMEOUT, Job
from gridflow.deploy.description.parts import RoleSection
from gridflow.deploy.drivers.in_process import distribute
from gridflow.errors import GridflowError, InvalidArgument, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job on the session that spark-submit set up; return the exit code."""
    try:
        job = read_job(sys.argv[1:] if argv is None else argv)
        from pyspark.sql import SparkSession

        session = SparkSession.builder.appName(job.name).getOrCreate()
        distribute(job, None)
        session.stop()
    except GridflowError as error:
        sys.stderr.write(f"gridflow: {error}\n")
        leave_message(str(error))
        return exit_code(error)
    return 0


def read_job(words: Sequence[str]) -> Job:
    """Read the job from a command line; Spark's own settings contain the rest.

    Raises `InvalidArgument`: If the job is invalid.
    """
    place = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser(
        prog="spark_main.py", usage="%(prog)s [options] -- command ..."
    )
    add = parser.add_argument
    add("--name", default="gridflow")
    add("--roles", default="worker=1", help="for example chief=1,worker=2")
    more: dict[str, Any] = {"action": "append", "default": [], "metavar": "ROLE=JSON"}
    add("--role-command", help='a role\'s own command, such as ps=["python", "ps.py"]', **more)
    add("--role-env", help='a role\'s own variables, such as ps={"A": "b"}', **more)
    add("--restart-policy", choices=RESTART_POLICIES, default="on-failure")
    add("--restart-limit", type=int, default=0)
    add("--start-timeout", type=int, default=START_TIMEOUT, metavar="SECONDS")
    add("--deadline", type=int, metavar="SECONDS")
    add("--classic-flags", action="store_true")
    arguments = parser.parse_args(words[:place])
    command = tuple(words[place + 1 :])
    commands = _by_role("--role-command", arguments.role_command, list)
    variables = _by_role("--role-env", arguments.role_env, dict)
    if not command and not commands:
        parser.error("no command: put it after '--'")
    return Job(
        name=arguments.name,
        command=command,
        roles={
            name: RoleSection(
                replicas=count, command=commands.get(name), env=variables.get(name, {})
            )
            for name, count in read_roles(arguments.roles).items()
        },
        restart_policy=arguments.restart_policy,
        restart_limit=arguments.restart_limit,
        start_timeout=arguments.start_timeout,
        deadline=arguments.deadline,
        classic_flags=arguments.classic_flags,
    )


def read_roles(text: str) -> dict[str, int]:
    """Read ``chief=1,worker=2``.

    Raises `InvalidArgument`: If the format is wrong, or a role is unknown.
    """
    counts = {}
    for part in text.split(","):
        role, _, count = part.partition("=")
        if role not in ROLES or not count.isdigit():
            reason = f"roles must have the form chief=1,worker=2; got {part!r}."
            raise InvalidArgument(reason + did_you_mean(role, ROLES))
        counts[role] = int(count)
    return {role: counts[role] for role in ROLES if counts.get(role)}


def _by_role(option: str, texts: Sequence[str], kind: type) -> dict[str, Any]:
    found = {}
    for text in texts:
        role, _, value = text.partition("=")
        try:
            found[role] = json.loads(value)
        except ValueError as error:
            raise InvalidArgument(f"{option} must be ROLE=JSON; got {text!r}: {error}.") from error
        if role not in ROLES or not isinstance(found[role], kind):
            raise InvalidArgument(f"{option} needs a role and a {kind.__name__}; got {text!r}.")
    return found


if __name__ == "__main__":
    sys.exit(main())
