"""Finds out which task of the job this process is, from the target's variables or flags."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

from gridflow._spec.cluster import (
    CHIEF,
    DEFAULT_PORT,
    TF_CONFIG,
    WORKER,
    ClusterMember,
    canonical_role,
    facts_of,
    find_flags,
    in_order,
)
from gridflow.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: Kubeflow Trainer's name for training tasks.
_NODE: Final = "node"
#: The number of nodes, from Trainer's policy for torchrun, and the name of its JobSet and job.
_NODES: Final = "PET_NNODES"
_SET: Final = "JOBSET_NAME"
#: Variables with an index, and the first index; Docker Swarm counts slots from 1.
_INDEXES: Final = {
    "GRIDFLOW_INDEX": 0,
    "JOB_COMPLETION_INDEX": 0,
    "VC_TASK_INDEX": 0,
    "VK_TASK_INDEX": 0,
    "GRIDFLOW_SLOT": 1,
}
_ROLES_FROM: Final = ("GRIDFLOW_ROLE", "REPLICATED_JOB_NAME", "VC_TASK_NAME")
#: Names the variable with role and index, such as ``worker-0``, for targets that aren't in here.
_TASK_FROM: Final = "GRIDFLOW_TASK_FROM"


def identify(
    environ: Mapping[str, str], words: Sequence[str] = (), own: Mapping[str, str] | None = None
) -> ClusterMember:
    """Find out which task this process is.

    Looks, in this order, at the options of ``gridflow launch``, at TF_CONFIG (also from an
    operator), at gridflow's or the target's variables, and at classic flags in the program's
    command.

    `environ` (mapping of str to str): The environment.
    `words` (sequence of str): The program's command.
    `own` (mapping of str to str): The classic flags passed to ``gridflow launch`` itself.
    Raises `InvalidArgument`: If none of these is present, or one has an invalid role, index or
        cluster.
    """
    if own:
        return ClusterMember.from_flags(own, "the options")
    if environ.get(TF_CONFIG, "").strip():
        return ClusterMember.from_tf_config(environ[TF_CONFIG])
    role, index, source = _from_variables(environ)
    if role is None:
        flags = find_flags(words)
        if "job_name" in flags:
            return ClusterMember.from_flags(flags, "the command's flags")
        seen = [n for n in (*_ROLES_FROM, *_INDEXES, _task_from(environ)) if n in environ]
        found = f" (only {', '.join(seen)} is set)" if seen else ""
        raise InvalidArgument(
            f"no role found{found}. Set TF_CONFIG, or GRIDFLOW_ROLE, GRIDFLOW_INDEX and "
            "GRIDFLOW_CLUSTER, or pass --job_name, --task_index, --ps_hosts and --worker_hosts."
        )
    cluster = _cluster(environ, role, index)
    if role == _NODE:
        role = CHIEF if CHIEF in cluster else WORKER
    return ClusterMember.checked(role, index, cluster, source)


def _from_variables(environ: Mapping[str, str]) -> tuple[str | None, int, str]:
    role_from = next((name for name in _ROLES_FROM if environ.get(name)), None)
    index_from = next((name for name in _INDEXES if environ.get(name)), None)
    task_from = _task_from(environ)
    task = re.search(r"([a-z]+)-(\d+)\Z", environ.get(task_from, "").rpartition("/")[2])
    if role_from is None:
        if task is None:
            return None, 0, ""
        return _role(task.group(1)), int(task.group(2)), task_from
    role = _role(environ[role_from])
    if index_from is None:
        if task is None:
            reason = f"{role_from} is {role!r}, but no index is set: set one of "
            raise InvalidArgument(reason + f"{', '.join(_INDEXES)}.")
        return role, int(task.group(2)), f"{role_from} and {task_from}"
    first, text = _INDEXES[index_from], environ[index_from]
    if not text.isdigit() or int(text) < first:
        raise InvalidArgument(f"{index_from} must be a number of at least {first}; got {text!r}.")
    return role, int(text) - first, f"{role_from} and {index_from}"


def _task_from(environ: Mapping[str, str]) -> str:
    return environ.get(_TASK_FROM) or "MARATHON_APP_ID"


def _cluster(environ: Mapping[str, str], role: str, index: int) -> dict[str, Any]:
    text = environ.get("GRIDFLOW_CLUSTER", "")
    if text:
        try:
            tree: dict[str, Any] = json.loads(text)
            return {canonical_role(name): hosts for name, hosts in tree.items()}
        except (ValueError, AttributeError) as error:
            raise InvalidArgument(
                f"GRIDFLOW_CLUSTER is not valid JSON ({error}): {text!r}."
            ) from error
    if role == _NODE and (count := _nodes(environ)):
        name, port = environ[_SET], environ.get("GRIDFLOW_PORT", str(DEFAULT_PORT))
        # A set without a subdomain uses its own name; Trainer's policy for torchrun relies on that.
        return {WORKER: [f"{name}-{_NODE}-0-{i}.{name}:{port}" for i in range(count)]}
    if index:
        reason = f"{role}:{index} has peers, but GRIDFLOW_CLUSTER with their addresses isn't set."
        raise InvalidArgument(reason)
    if not facts_of(role).is_in_cluster:
        return {}
    port = environ.get("GRIDFLOW_PORT", str(DEFAULT_PORT))
    return {WORKER if role == _NODE else role: [f"localhost:{port}"]}


def nodes_of_a_trainjob(environ: Mapping[str, str], who: ClusterMember) -> dict[str, list[str]]:
    """Return the nodes' second addresses for a TrainJob whose runtime doesn't know their names."""
    if environ.get("GRIDFLOW_CLUSTER") or not _nodes(environ):
        return {}
    found = [address.rpartition(":") for address in in_order(who.cluster.get(WORKER, []))]
    return {WORKER: [f"{host}:{int(port) + 1}" for host, _, port in found]}


def _nodes(environ: Mapping[str, str]) -> int:
    """Return a TrainJob's number of nodes, 0 outside a TrainJob."""
    text = environ.get(_NODES, "")
    return int(text) if text.isdigit() and environ.get(_SET) else 0


def _role(name: str) -> str:
    return _NODE if name.lower() == _NODE else canonical_role(name)
