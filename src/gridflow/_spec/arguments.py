"""What a user gives `TensorflowDistributor`, looked at and brought into one form."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, ParamSpec

from gridflow._spec import backends, strategies
from gridflow._spec.command import PATCHES_VARIABLE
from gridflow._spec.gpus import GpuNeed
from gridflow._spec.option_checks import whole_number
from gridflow._spec.roles import WORKER
from gridflow._spec.tasks import Role
from gridflow.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gridflow._spec.option_groups import Distribution, Programs

P = ParamSpec("P")

#: What can be the name of a folder, and is what Airflow, Argo and people make ids of.
_RUN_ID: Final = re.compile(r"[A-Za-z0-9][\w.:+@=-]{0,199}", re.ASCII)


#: Options of `TensorflowDistributor` that stand in a group, and where.
MOVED: Final = {
    "advertise": "network=Network(advertise=…)",
    "allow_growth": "gpu_options=GpuOptions(allow_growth=…)",
    "classic_flags": "programs=Programs(classic_flags=…)",
    "communication": "distribution=Distribution(communication=…)",
    "detached": "launch_options=LaunchOptions(detached=…)",
    "gpu_memory": "gpu_options=GpuOptions(memory=…)",
    "heartbeat_timeout": "deadlines=Deadlines(heartbeat=…)",
    "host": "network=Network(host=…)",
    "interface": "network=Network(interface=…)",
    "keep_jobs": "launch_options=LaunchOptions(keep_jobs=…)",
    "max_preemptions": "restarts=Restarts(max_preemptions=…)",
    "patches": "programs=Programs(patches=…)",
    "port": "network=Network(port=…)",
    "restart": "restarts=Restarts(policy=…)",
    "run_timeout": "deadlines=Deadlines(run=…)",
    "shutdown_timeout": "deadlines=Deadlines(shutdown=…)",
    "spool_dir": "spool=Spool(dir=…)",
    "spool_limit": "spool=Spool(limit=…)",
    "step_timeout": "deadlines=Deadlines(step=…)",
    "tensorboard_dir": "tensorboard=TensorBoard(copy_to=…)",
    "variable_partitioner": "distribution=Distribution(variable_partitioner=…)",
    "warm_seconds": "launch_options=LaunchOptions(warm_seconds=…)",
}


def refuse_moved(names: Iterable[str]) -> None:
    """Say where an option is that stands in a group.

    Raises
    ------
    InvalidArgument
        With the first of those that do.
    """
    for name in names:
        if name in MOVED:
            raise InvalidArgument(f"{name} moved: {MOVED[name]}.")


def says_what_moved(function: Callable[P, None]) -> Callable[P, None]:
    """Let a constructor say of each keyword of `MOVED` where it is."""

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> None:
        refuse_moved(kwargs)
        function(*args, **kwargs)

    return checked


def roles_of(
    num_workers: int | None, roles: Sequence[Role] | None, gpus: float | None
) -> list[Role]:
    """Return the roles that a user gave, by number or by name."""
    if roles is None:
        workers = 1 if num_workers is None else whole_number("num_workers", num_workers, 1)
        return [Role(WORKER, workers, gpus=gpus)]
    if gpus is not None:
        raise InvalidArgument(
            f"beside roles= each role says its own GPUs: Role('worker', 4, gpus={gpus!r}); got "
            f"gpus={gpus!r} for all."
        )
    if num_workers is not None:
        raise InvalidArgument(
            f"give either num_workers= or roles=; got num_workers={num_workers!r} beside roles. "
            "Role('worker', n) says how many workers there are."
        )
    if isinstance(roles, str | Role) or not isinstance(roles, Sequence):
        raise InvalidArgument(f"roles= is a list of Role; got {roles!r}.")
    return list(roles)


def check_distribution(
    strategy: str, backend: str, distribution: Distribution, programs: Programs
) -> None:
    """Refuse what the strategy or the backend has no use for."""
    facts = strategies.of(strategy)
    if distribution.variable_partitioner is not None and not facts.spreads_variables:
        raise InvalidArgument(
            f"Distribution(variable_partitioner=) spreads variables over parameter servers, which "
            f"strategy={strategy!r} has none of; leave it out, or use 'parameter_server'."
        )
    if programs.classic_flags and not facts.takes_flags:
        raise InvalidArgument(
            "Programs(classic_flags=True) is for strategy='server' and 'command'; got "
            f"strategy={strategy!r}."
        )
    if distribution.communication is None:
        return
    if not backends.of(backend).takes_communication:
        raise InvalidArgument(
            "Distribution(communication=) is for TensorFlow's collective operations; got "
            f"backend={backend!r}, which has its own. Leave it out."
        )
    if not facts.exchanges_gradients:
        raise InvalidArgument(
            "Distribution(communication=) is for strategy='multi_worker_mirrored', whose workers "
            f"exchange gradients; got strategy={strategy!r}."
        )


def named_datasets(data: Any) -> dict[str, Any]:
    """Return datasets by name: a dict's keys always are names of datasets, never of columns."""
    if data is None:
        return {}
    if not isinstance(data, Mapping):
        return {"train": data}
    for name in data:
        if not isinstance(name, str) or not name.isidentifier():
            raise InvalidArgument(
                f"data= names each dataset by an identifier such as 'train'; got {name!r}."
            )
    return dict(data)


def check_run_id(run_id: Any, job_dir: Any) -> str | None:
    """Return the id that a user gave to the run, None for none."""
    if run_id is None:
        return None
    if not isinstance(run_id, str) or not _RUN_ID.fullmatch(run_id):
        raise InvalidArgument(
            "run_id= is the name of a folder: a letter or digit, then up to 199 letters, digits "
            f"and any of _ . : + @ = -; got {run_id!r}."
        )
    if job_dir is None:
        raise InvalidArgument(
            f"run_id={run_id!r} is remembered in job_dir=, which has to outlive the driver: give a "
            "folder that the next driver sees, too."
        )
    return run_id


def patched(strategy: str, *, patches: bool) -> dict[str, str]:
    """Return the variables by which programs are told whether they have gridflow's patches.

    Raises
    ------
    InvalidArgument
        They are to be left out where a function trains, which is made for them.
    """
    if patches:
        return {}
    if not strategies.of(strategy).runs_programs:
        raise InvalidArgument(
            "Programs(patches=False) is for programs of strategy='command'; a function is trained "
            f"with gridflow's patches of Keras. Got strategy={strategy!r}."
        )
    return {PATCHES_VARIABLE: "0"}


def check_command_options(strategy: str, roles: Sequence[Role], options: Mapping[str, Any]) -> None:
    """Refuse what a command has no use for: it trains by itself, gridflow's part ends before."""
    if not strategies.of(strategy).runs_programs:
        for role in roles:
            if role.command is not None:
                raise InvalidArgument(
                    f"Role({role.name!r}, command=…) is for strategy='command'; got "
                    f"strategy={strategy!r}."
                )
        return
    for name, value in options.items():
        if value:
            raise InvalidArgument(
                f"strategy='command' runs programs of their own, which don't hear of {name}=; got "
                f"{value!r}. Leave it out, and say it to the program."
            )
    for role in roles:
        if GpuNeed.parse(f"gpus of role {role.name!r}", role.gpus).shares > 1:
            raise InvalidArgument(
                "strategy='command' gives whole GPUs only, as nobody keeps a program to its part "
                f"of the memory; got gpus={role.gpus!r} for role {role.name!r}."
            )
