"""Checks and normalises the arguments of `TensorflowDistributor`."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, ParamSpec

from gridflow._spec import backends, strategies
from gridflow._spec.cluster import DATA, MOST_TASKS, WORKER
from gridflow._spec.command import PATCHES_VARIABLE
from gridflow._spec.gpus import GpuNeed
from gridflow._spec.job import Role
from gridflow._spec.option_checks import whole_number
from gridflow._spec.option_groups import DATA_SERVICE, read_address
from gridflow.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gridflow._spec.option_groups import Distribution, Programs

P = ParamSpec("P")

_A_RANGE: Final = 2

#: Characters that folder names allow, and that ids of Airflow, Argo and people consist of.
_RUN_ID: Final = re.compile(r"[A-Za-z0-9][\w.:+@=-]{0,199}", re.ASCII)


#: Options of `TensorflowDistributor` that are in a group, and in which: as they were called before
#: there were groups, and as fields are called whose group was forgotten.
MOVED: Final = {
    "advertise": "network=Network(advertise=…)",
    "allow_growth": "gpu_options=GpuOptions(allow_growth=…)",
    "classic_flags": "programs=Programs(classic_flags=…)",
    "communication": "distribution=Distribution(communication=…)",
    "copy_to": "tensorboard=TensorBoard(copy_to=…)",
    "detached": "launch_options=LaunchOptions(detached=…)",
    "gpu_memory": "gpu_options=GpuOptions(memory=…)",
    "heartbeat": "deadlines=Deadlines(heartbeat=…)",
    "heartbeat_timeout": "deadlines=Deadlines(heartbeat=…)",
    "host": "network=Network(host=…)",
    "interface": "network=Network(interface=…)",
    "keep_jobs": "launch_options=LaunchOptions(keep_jobs=…)",
    "local_steps": "distribution=Distribution(local_steps=…)",
    "max_preemptions": "restarts=Restarts(max_preemptions=…)",
    "max_replacements": "restarts=Restarts(max_replacements=…)",
    "memory": "gpu_options=GpuOptions(memory=…)",
    "patches": "programs=Programs(patches=…)",
    "policy": "restarts=Restarts(policy=…)",
    "port": "network=Network(port=…)",
    "restart": "restarts=Restarts(policy=…)",
    "run": "deadlines=Deadlines(run=…)",
    "run_timeout": "deadlines=Deadlines(run=…)",
    "shutdown": "deadlines=Deadlines(shutdown=…)",
    "shutdown_timeout": "deadlines=Deadlines(shutdown=…)",
    "spool_dir": "spool=Spool(dir=…)",
    "spool_limit": "spool=Spool(limit=…)",
    "step": "deadlines=Deadlines(step=…)",
    "step_timeout": "deadlines=Deadlines(step=…)",
    "tensorboard_dir": "tensorboard=TensorBoard(copy_to=…)",
    "variable_partitioner": "distribution=Distribution(variable_partitioner=…)",
    "warm_seconds": "launch_options=LaunchOptions(warm_seconds=…)",
}


def refuse_moved(names: Iterable[str]) -> None:
    """Refuse options that are in a group, and say in which.

    Raises `InvalidArgument`: With the first such option.
    """
    for name in names:
        if name in MOVED:
            raise InvalidArgument(f"{name} moved: {MOVED[name]}.")


def says_what_moved(function: Callable[P, None]) -> Callable[P, None]:
    """Let a constructor refuse the keywords of `MOVED`, and say where they are."""

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> None:
        refuse_moved(kwargs)
        function(*args, **kwargs)

    return checked


def sizes_of(num_workers: Any) -> tuple[int | None, Any]:
    """Return with how many workers a group goes on (None: all), and how many there are."""
    if not isinstance(num_workers, tuple):
        return None, num_workers
    if len(num_workers) != _A_RANGE:
        raise InvalidArgument(
            "num_workers must be a number, or the least and the most workers: (2, 8); got "
            f"{num_workers!r}."
        )
    least, most = num_workers
    whole_number("num_workers (the most)", most, 1, MOST_TASKS)
    return whole_number("num_workers (the least)", least, 1, most), most


def roles_of(
    num_workers: int | None, roles: Sequence[Role] | None, gpus: float | None
) -> list[Role]:
    """Return the roles that a user gave, as a number of workers or as a list."""
    if roles is None:
        workers = 1 if num_workers is None else num_workers
        whole_number("num_workers", workers, 1, MOST_TASKS)
        return [Role(WORKER, workers, gpus=gpus)]
    if gpus is not None:
        raise InvalidArgument(
            f"with roles=, give GPUs for each role: Role('worker', 4, gpus={gpus!r}); got "
            f"gpus={gpus!r} for all roles."
        )
    if num_workers is not None:
        raise InvalidArgument(
            f"give either num_workers= or roles=; got num_workers={num_workers!r} and roles. "
            "Role('worker', n) sets the number of workers."
        )
    if isinstance(roles, str | Role) or not isinstance(roles, Sequence):
        raise InvalidArgument(f"roles= must be a list of Role; got {roles!r}.")
    return list(roles)


def service_of(address: str | None, roles: Iterable[Role]) -> dict[str, str]:
    """Return the variable that names a data service which isn't the job's own."""
    if address is None:
        return {}
    if any(role.name == DATA for role in roles):
        raise InvalidArgument(
            f"data_service={address!r} names a data service, and role 'data' starts one: leave one "
            "of them out."
        )
    return {DATA_SERVICE: read_address("data_service=", address)}


def check_distribution(
    strategy: str, backend: str, distribution: Distribution, programs: Programs
) -> None:
    """Refuse options that the strategy or the backend can't use."""
    facts = strategies.of(strategy)
    if distribution.variable_partitioner is not None and not facts.spreads_variables:
        raise InvalidArgument(
            "Distribution(variable_partitioner=) needs parameter servers, but "
            f"strategy={strategy!r} has none. Leave it out, or use strategy='parameter_server'."
        )
    if programs.classic_flags and not facts.takes_flags:
        raise InvalidArgument(
            "Programs(classic_flags=True) needs strategy='server' or 'command'; got "
            f"strategy={strategy!r}."
        )
    for name in ("communication", "local_steps"):
        if getattr(distribution, name) is None:
            continue
        if not backends.of(backend).takes_communication:
            raise InvalidArgument(
                f"Distribution({name}=) concerns TensorFlow's collective operations, but "
                f"backend={backend!r} has its own. Leave it out."
            )
        if not facts.exchanges_gradients:
            raise InvalidArgument(
                f"Distribution({name}=) needs strategy='multi_worker_mirrored', whose workers "
                f"exchange gradients; got strategy={strategy!r}."
            )


def check_shared_gpus(
    strategy: str, backend: str, distribution: Distribution, needs: Sequence[GpuNeed]
) -> None:
    """Refuse parts of GPUs for ranks that only NCCL connects, as it needs a GPU for each."""
    sharing = [need for need in needs if need.shares > 1]
    if len(sharing) < 2 or not strategies.of(strategy).exchanges_gradients:  # noqa: PLR2004
        return
    given = f"gpus={1 / sharing[0].shares:.3g} for {len(sharing)} workers"
    if not backends.of(backend).shares_gpus:
        raise InvalidArgument(
            f"on {backend}, the workers of one model can't share a GPU, as NCCL refuses it; got "
            f"{given}. Use gpus=1, or the backends {backends.sharing_gpus()}, which exchange "
            "values another way then."
        )
    communication = distribution.communication
    if communication is not None and communication.implementation == "nccl":
        raise InvalidArgument(
            "CommunicationOptions(implementation='nccl') needs a GPU for each worker; got "
            f"{given}. Use gpus=1, or leave implementation 'auto'."
        )


def named_datasets(data: Any) -> dict[str, Any]:
    """Return datasets by name. The keys of a dict are names of datasets, never of columns."""
    if data is None:
        return {}
    if not isinstance(data, Mapping):
        return {"train": data}
    for name in data:
        if not isinstance(name, str) or not name.isidentifier():
            raise InvalidArgument(
                f"names of datasets in data= must be identifiers such as 'train'; got {name!r}."
            )
    return dict(data)


def check_run_id(run_id: Any, job_dir: Any) -> str | None:
    """Return the run id that a user gave, or None."""
    if run_id is None:
        return None
    if not isinstance(run_id, str) or not _RUN_ID.fullmatch(run_id):
        raise InvalidArgument(
            "run_id= must be a valid folder name: a letter or digit, then up to 199 letters, "
            f"digits and any of _ . : + @ = -; got {run_id!r}."
        )
    if job_dir is None:
        raise InvalidArgument(
            f"run_id={run_id!r} needs job_dir=, where the run is recorded. Use a folder that "
            "outlives this driver and that the next one can see."
        )
    return run_id


def patched(strategy: str, *, patches: bool) -> dict[str, str]:
    """Return the variables that tell programs whether to use gridflow's patches.

    Raises `InvalidArgument`: A function trains, which always uses them.
    """
    if patches:
        return {}
    if not strategies.of(strategy).runs_programs:
        raise InvalidArgument(
            "Programs(patches=False) needs strategy='command': functions are always trained with "
            f"gridflow's patches of Keras. Got strategy={strategy!r}."
        )
    return {PATCHES_VARIABLE: "0"}


def check_command_options(strategy: str, roles: Sequence[Role], options: Mapping[str, Any]) -> None:
    """Refuse options that a command can't use, as it trains by itself."""
    if not strategies.of(strategy).runs_programs:
        for role in roles:
            if role.command is not None:
                raise InvalidArgument(
                    f"Role({role.name!r}, command=…) needs strategy='command'; got "
                    f"strategy={strategy!r}."
                )
        return
    for name, value in options.items():
        if value:
            raise InvalidArgument(
                f"strategy='command' can't pass {name}= on to the programs that it runs; got "
                f"{value!r}. Leave it out, and configure the program itself."
            )
    for role in roles:
        if GpuNeed.parse(f"gpus of role {role.name!r}", role.gpus).shares > 1:
            raise InvalidArgument(
                "strategy='command' supports only whole GPUs, as it can't limit a program's GPU "
                f"memory; got gpus={role.gpus!r} for role {role.name!r}."
            )
