"""Runs jobs inside ``gridflow run``: on this machine or on a Spark cluster."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gridflow._spec.exits import Exit, exit_code
from gridflow.deploy.commands import warn
from gridflow.deploy.description.problems import JobError, Problem
from gridflow.deploy.distributed import cannot, distributor_options
from gridflow.deploy.drivers.base import say
from gridflow.deploy.inside.child import end_with_parent
from gridflow.deploy.rendering import render
from gridflow.errors import GridflowError, MissingDependency

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

    from gridflow._launch.base import Launcher
    from gridflow._result import Result
    from gridflow.deploy.description.description import Job


def run_in_process(
    job: Job,
    target: str,
    *,
    lossy: bool = False,
    as_json: bool = False,
    folder: Mapping[str, str | None] | None = None,
) -> int:
    """Run a job until it ends and return its `gridflow._spec.exits.Exit`.

    ``folder`` contains ``run_id`` and ``job_dir`` for `gridflow.TensorflowDistributor`.
    """
    if not job.trains:
        return _run_script(job, target)
    lost = cannot(job, target)
    if lost and not lossy:
        raise JobError(lost)
    for problem in lost:
        warn(str(problem))
    launcher, session = _launcher(target, job)
    # With --json, standard output contains only JSON.
    beside = contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext()
    record: dict[str, Any] = {"job": job.name, "succeeded": False}
    code = int(Exit.SUCCEEDED)
    try:
        with beside:
            result = distribute(job, launcher, **(folder or {}))
        record |= {"succeeded": True, "attempts": len(result.attempts)}
        record["job_dir"] = str(result.job_dir)
        say(f"{job.name} succeeded; its logs are in {result.job_dir}")
    except GridflowError as error:
        code = exit_code(error)
        record |= {"error": str(error), "kind": type(error).__name__}
        say(str(error))
    finally:
        if session is not None:
            session.stop()
    if as_json:
        sys.stdout.write(json.dumps({**record, "exit_code": code}, indent=2) + "\n")
    return code


def _run_script(job: Job, target: str) -> int:
    """Run a standalone data service until it is stopped from outside."""
    if target != "local":
        reason = (
            f"the target {target} can't run a standalone data service, because its jobs end with "
            "their training tasks. Use local, compose or kubernetes, or add a data role to the "
            "training job."
        )
        raise JobError([Problem("roles", reason)])
    say(f"the data service's address is localhost:{job.port}; stop it with Ctrl-C")
    script = subprocess.Popen(
        ["/bin/sh", "-c", render(job, target).text()],
        # The script must use this gridflow, whether or not its environment is activated.
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}"},
        process_group=0,  # Ctrl-C is passed on once, by this process
        preexec_fn=end_with_parent,  # noqa: PLW1509 (prctl is async-signal-safe)
    )
    try:
        return script.wait()
    except KeyboardInterrupt:
        script.terminate()
        script.wait()
        raise


def distribute(job: Job, launcher: Launcher | None, **folder: str | None) -> Result:
    """Run a job's tasks until they end; a launcher of None uses the active Spark session."""
    from gridflow._distributor import TensorflowDistributor

    options: dict[str, Any] = {**distributor_options(job), **folder}
    distributor = TensorflowDistributor(launcher=launcher, **options)
    return distributor.run(job.command_of(job.main_role))


def _launcher(target: str, job: Job) -> tuple[Any, Any]:
    if target == "local":
        from gridflow._launch.local import LocalLauncher

        return LocalLauncher(), None
    session = start_session(job.name, job.spark.conf if job.spark else {})
    from gridflow._launch.spark.launcher import SparkLauncher

    return SparkLauncher(session), session


def start_session(name: str, settings: Mapping[str, str]) -> SparkSession:
    """Return the active Spark session, or a new one with these settings.

    Raises `MissingDependency`: pyspark isn't installed.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        reason = "pyspark isn't installed: pip install 'gridflow[spark]'."
        raise MissingDependency(reason) from error
    builder = SparkSession.builder.appName(name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    session: SparkSession = builder.getOrCreate()
    return session
