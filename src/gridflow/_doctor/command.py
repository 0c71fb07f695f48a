"""The subcommand ``gridflow doctor``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from gridflow._doctor.findings import has_errors, to_json, write
from gridflow._doctor.machine import check_machine
from gridflow.errors import InvalidArgument

if TYPE_CHECKING:
    import argparse

    from gridflow._doctor.findings import Diagnosis


def command(arguments: argparse.Namespace) -> int:
    """Print what was found; 1 if any of it is an error."""
    findings = _findings(arguments)
    if arguments.json:
        sys.stdout.write(to_json(findings))
    else:
        write(findings, sys.stdout)
    return int(has_errors(findings))


def _findings(arguments: argparse.Namespace) -> list[Diagnosis]:
    settings = dict(_setting(text) for text in arguments.conf)
    if arguments.job is None and not settings:
        if arguments.shared or arguments.port:
            raise InvalidArgument(
                "--shared and --port are about a cluster: name it with a job.yaml or with "
                "--conf spark.master=…"
            )
        return check_machine(arguments.backend, arguments.spool)
    job = None
    if arguments.job is not None:
        from gridflow.deploy.description.loading import load_job

        job = load_job(arguments.job, arguments.assignments)
        settings = {**(job.spark.conf if job.spark else {}), **settings}
    if not arguments.timeout > 0:
        raise InvalidArgument(f"--timeout must be more than 0 seconds; got {arguments.timeout:g}.")
    from gridflow._doctor.cluster import Wishes, check_cluster

    return check_cluster(
        Wishes(
            settings=settings,
            job=job,
            shared=arguments.shared,
            spool=arguments.spool,
            backend=arguments.backend,
            port=arguments.port,
            timeout=arguments.timeout,
        )
    )


def _setting(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign or not name.startswith("spark."):
        raise InvalidArgument(f"--conf is written spark.NAME=VALUE, got {name!r}.")
    return name, value
