"""The driver program of a job on Spark: ``spark-submit spark_main.py --roles=worker=2 -- command``.

The image of the ``docker`` target has it at ``/opt/gridflow/spark_main.py``.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from gridflow.deploy.drivers.in_process import distribute
from gridflow.errors import GridflowError, InvalidArgument, did_you_mean
from gridflow.job import Job, Role
from gridflow.spec.cluster import ROLES

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job on the session that spark-submit set up; return the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    place = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser(
        prog="spark_main.py", usage="%(prog)s [options] -- command ..."
    )
    parser.add_argument("--name", default="gridflow")
    parser.add_argument("--roles", default="worker=1", help="like chief=1,worker=2")
    parser.add_argument("--restart-limit", type=int, default=0)
    parser.add_argument("--classic-flags", action="store_true")
    arguments = parser.parse_args(words[:place])
    command = tuple(words[place + 1 :])
    if not command:
        parser.error("no command: put it after '--'")

    try:
        job = Job(
            name=arguments.name,
            command=command,
            roles={name: Role(replicas=n) for name, n in read_roles(arguments.roles).items()},
            restart_limit=arguments.restart_limit,
            classic_flags=arguments.classic_flags,
        )
        from pyspark.sql import SparkSession

        session = SparkSession.builder.appName(job.name).getOrCreate()
        distribute(job, None)
        session.stop()
    except GridflowError as error:
        sys.stderr.write(f"gridflow: {error}\n")
        return 1
    return 0


def read_roles(text: str) -> dict[str, int]:
    """Read ``chief=1,worker=2``.

    Raises
    ------
    InvalidArgument
        If it isn't written so, or names no role.
    """
    counts = {}
    for part in text.split(","):
        role, _, count = part.partition("=")
        if role not in ROLES or not count.isdigit():
            reason = f"roles are written like chief=1,worker=2, got {part!r}."
            raise InvalidArgument(reason + did_you_mean(role, ROLES))
        counts[role] = int(count)
    return {role: counts[role] for role in ROLES if counts.get(role)}


if __name__ == "__main__":
    sys.exit(main())
