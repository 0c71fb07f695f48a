"""The subcommands that start, show and cancel jobs."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from typing import TYPE_CHECKING

from gridflow._spec.printable import printable
from gridflow.deploy.commands import described, rendered
from gridflow.deploy.description.loading import load_job
from gridflow.deploy.distributed import DRIVEN
from gridflow.deploy.drivers.base import NotThere, say
from gridflow.deploy.inside.terminal import paint
from gridflow.deploy.targets.registry import get_target
from gridflow.errors import GridflowError, InvalidArgument

if TYPE_CHECKING:
    import argparse

    from gridflow.deploy.drivers.base import Driver, TaskStatus


def run(arguments: argparse.Namespace) -> int:
    """Start a job and follow it."""
    if arguments.target in DRIVEN:
        from gridflow.deploy.drivers.in_process import run_in_process

        with described(arguments) as job:
            return run_in_process(
                job,
                arguments.target,
                lossy=arguments.lossy,
                as_json=arguments.json,
                folder={"run_id": arguments.run_id, "job_dir": arguments.dir},
            )
    if arguments.run_id is not None or arguments.dir is not None:
        raise InvalidArgument(
            f"--run-id and --dir only work with the targets {' and '.join(DRIVEN)}; the "
            f"target {arguments.target} identifies a job by its name: --set name=…"
        )
    driver = _driver(arguments, starts=True)
    driver.start(replace=arguments.replace, follows=not arguments.detach or arguments.json)
    code = 0 if arguments.detach else _follow(driver, arguments)
    if arguments.json:
        _print_status(driver.status(), as_json=True)
    return code


def _follow(driver: Driver, arguments: argparse.Namespace) -> int:
    # With --json, standard output contains only JSON.
    output = sys.stderr if arguments.json else sys.stdout
    try:
        return driver.follow(output)
    except KeyboardInterrupt:
        words = f"gridflow cancel -t {arguments.target} {arguments.job}"
        say(f"the job keeps running; cancel it with '{words}'")
        raise
    except GridflowError:
        words = f"gridflow logs --follow -t {arguments.target} {arguments.job}"
        say(f"the job keeps running; follow it with '{words}'")
        raise


def status(arguments: argparse.Namespace) -> int:
    """Print the state of a job's tasks."""
    driver = _driver(arguments)
    _print_status(_there(driver, arguments), as_json=arguments.json)
    return 0


def logs(arguments: argparse.Namespace) -> int:
    """Print a job's output."""
    driver = _driver(arguments)
    _there(driver, arguments)
    return driver.logs(follow=arguments.follow)


def cancel(arguments: argparse.Namespace) -> int:
    """Cancel a job and remove it."""
    _driver(arguments).cancel()
    return 0


def _there(driver: Driver, arguments: argparse.Namespace) -> list[TaskStatus]:
    """Return the tasks of an existing job."""
    tasks = driver.status()
    if not tasks and not driver.is_there():
        raise NotThere(arguments.target, load_job(arguments.job, arguments.assignments).name)
    return tasks


def _print_status(tasks: list[TaskStatus], *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps([dataclasses.asdict(task) for task in tasks], indent=2) + "\n")
        return
    colours = {"Running": "green", "running": "green", "Failed": "red"}
    width = max((len(task.task) for task in tasks), default=0)
    for task in tasks:
        state = paint(task.state, colours.get(task.state, "dim"), sys.stdout)
        line = printable(f"{task.task:<{width}}  {state}  {task.detail}")
        sys.stdout.write(" ".join(line.split("\n")).rstrip() + "\n")


def _driver(arguments: argparse.Namespace, *, starts: bool = False) -> Driver:
    if arguments.target in DRIVEN:
        raise InvalidArgument(
            f"a job on the target {arguments.target} runs inside 'gridflow run', which shows its "
            "tasks and output; stop it with Ctrl-C."
        )
    now, place = time.time(), get_target(arguments.target)
    job, rendering = rendered(arguments, (lambda job: place.begun(job, now)) if starts else None)
    driver = place.drive(job, rendering)
    if driver is None:
        raise InvalidArgument(
            f"gridflow doesn't start what the target {arguments.target} renders; do it yourself: "
            f"{place.next_step(arguments.job)}"
        )
    return driver
