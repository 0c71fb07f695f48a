"""Who this process is in the job: role, index and cluster, whatever the target calls them."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gridflow.errors import InvalidArgument, did_you_mean
from gridflow.spec.cluster import CHIEF, EVALUATOR, PS, ROLES, WORKER

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: What targets call a role. ``node`` is Kubeflow Trainer's name for whoever trains.
_SYNONYMS: Final = {"master": CHIEF, "coordinator": CHIEF, "parameter-server": PS, "node": "node"}
_FLAGS: Final = ("job_name", "task_index", "ps_hosts", "worker_hosts", "chief_hosts")
_INDEXES: Final = ("GRIDFLOW_INDEX", "JOB_COMPLETION_INDEX", "VC_TASK_INDEX", "VK_TASK_INDEX")
_ROLES_FROM: Final = ("GRIDFLOW_ROLE", "REPLICATED_JOB_NAME", "VC_TASK_NAME")
_DEFAULT_PORT: Final = 2222

#: A role's addresses; a mapping of index to address where an operator tells a task only some.
Hosts = list[str] | dict[str, str]


@dataclass(frozen=True)
class Identity:
    """One process of the job.

    Attributes
    ----------
    role : str
    index : int
    cluster : dict
        Addresses by role, without the evaluator, which is no part of the cluster that it watches.
    source : str
        Where this was found.
    """

    role: str
    index: int
    cluster: dict[str, Hosts]
    source: str

    def __str__(self) -> str:
        return f"{self.role}:{self.index}"

    @property
    def tf_config(self) -> str:
        """The value of ``TF_CONFIG``."""
        task = {"type": self.role, "index": self.index}
        return json.dumps({"cluster": self.cluster, "task": task})

    @property
    def flags(self) -> list[str]:
        """The four classic flags, and the chief's hosts where there is one."""
        words = [f"--job_name={self.role}", f"--task_index={self.index}"]
        words += [
            f"--{role}_hosts={','.join(addresses(self.cluster.get(role, [])))}"
            for role in (PS, WORKER)
        ]
        if CHIEF in self.cluster:
            words.append(f"--chief_hosts={','.join(addresses(self.cluster[CHIEF]))}")
        return words

    @property
    def own_address(self) -> str | None:
        """The address of this task, None for an evaluator."""
        hosts = self.cluster.get(self.role)
        if isinstance(hosts, dict):
            return hosts.get(str(self.index))
        return hosts[self.index] if hosts else None

    @property
    def peers(self) -> list[str]:
        """The addresses of everybody else."""
        everyone = [address for hosts in self.cluster.values() for address in addresses(hosts)]
        return [address for address in everyone if address != self.own_address]


def addresses(hosts: Hosts) -> list[str]:
    """Return a role's addresses in order."""
    return list(hosts.values()) if isinstance(hosts, dict) else hosts


def identify(
    environ: Mapping[str, str], words: Sequence[str] = (), own: Mapping[str, str] | None = None
) -> Identity:
    """Find out who this process is.

    In this order: ``gridflow launch``'s own options, TF_CONFIG (also an operator's), gridflow's or
    the target's variables, the classic flags among the program's words.

    Parameters
    ----------
    environ : mapping of str to str
        The environment.
    words : sequence of str
        The program's command.
    own : mapping of str to str, optional
        The classic flags given to ``gridflow launch`` itself.

    Raises
    ------
    InvalidArgument
        If none of them says it, or what they say is no role, index or cluster.
    """
    if own:
        return _from_flags(own, "the options")
    if environ.get("TF_CONFIG", "").strip():
        return _from_tf_config(environ["TF_CONFIG"])
    role, index, source = _from_variables(environ)
    if role is None:
        flags = _read_flags(words)
        if "job_name" in flags:
            return _from_flags(flags, "the command's flags")
        seen = [n for n in (*_ROLES_FROM, *_INDEXES, "MARATHON_APP_ID") if n in environ]
        found = f"only {', '.join(seen)}" if seen else "none of them"
        raise InvalidArgument(
            f"no role found: there is {found}. Set TF_CONFIG, or GRIDFLOW_ROLE, GRIDFLOW_INDEX and "
            "GRIDFLOW_CLUSTER, or give --job_name, --task_index, --ps_hosts and --worker_hosts."
        )
    cluster = _cluster(environ, role, index)
    if role == "node":
        role = CHIEF if CHIEF in cluster else WORKER
    return _checked(role, index, cluster, source)


def _from_tf_config(text: str) -> Identity:
    try:
        tree = json.loads(text)
        task = tree["task"]
        role, index = str(task["type"]), int(task["index"])
        cluster: dict[str, Any] = tree.get("cluster") or {}
        cluster = {_role(name): hosts for name, hosts in cluster.items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidArgument(f"TF_CONFIG can't be read ({error!r}): {text!r}.") from error
    return _checked(_role(role), index, cluster, "TF_CONFIG")


def _from_variables(environ: Mapping[str, str]) -> tuple[str | None, int, str]:
    role_from = next((name for name in _ROLES_FROM if environ.get(name)), None)
    index_from = next((name for name in _INDEXES if environ.get(name)), None)
    app = re.search(r"([a-z]+)-(\d+)\Z", environ.get("MARATHON_APP_ID", "").rpartition("/")[2])
    if role_from is None:
        if app is None:
            return None, 0, ""
        return _role(app.group(1)), int(app.group(2)), "MARATHON_APP_ID"
    role = _role(environ[role_from])
    if index_from is None:
        if app is None:
            reason = f"{role_from} is {role!r}, but there is no index: set one of "
            raise InvalidArgument(reason + f"{', '.join(_INDEXES)}.")
        return role, int(app.group(2)), f"{role_from} and MARATHON_APP_ID"
    if not environ[index_from].isdigit():
        raise InvalidArgument(f"{index_from} is a number from 0, got {environ[index_from]!r}.")
    return role, int(environ[index_from]), f"{role_from} and {index_from}"


def _cluster(environ: Mapping[str, str], role: str, index: int) -> dict[str, Any]:
    text = environ.get("GRIDFLOW_CLUSTER", "")
    if text:
        try:
            tree: dict[str, Any] = json.loads(text)
            return {_role(name): hosts for name, hosts in tree.items()}
        except (ValueError, AttributeError) as error:
            raise InvalidArgument(f"GRIDFLOW_CLUSTER is no JSON ({error}): {text!r}.") from error
    if index:
        reason = f"{role}:{index} has peers, but GRIDFLOW_CLUSTER doesn't say where they are."
        raise InvalidArgument(reason)
    if role == EVALUATOR:
        return {}
    port = environ.get("GRIDFLOW_PORT", str(_DEFAULT_PORT))
    return {WORKER if role == "node" else role: [f"localhost:{port}"]}


def _read_flags(words: Sequence[str]) -> dict[str, str]:
    flags: dict[str, str] = {}
    for place, word in enumerate(words):
        name, sign, value = word.lstrip("-").partition("=")
        if not word.startswith("-") or name not in _FLAGS:
            continue
        following = words[place + 1] if place + 1 < len(words) else ""
        flags[name] = value if sign else following
    return flags


def _from_flags(flags: Mapping[str, str], source: str) -> Identity:
    if "job_name" not in flags:
        raise InvalidArgument(f"{source} lack --job_name; got {', '.join(flags)}.")
    index = flags.get("task_index", "0")
    if not index.isdigit():
        raise InvalidArgument(f"--task_index is a number from 0, got {index!r}.")
    cluster: dict[str, Any] = {
        role: [host for host in flags[f"{role}_hosts"].split(",") if host]
        for role in (CHIEF, WORKER, PS)
        if flags.get(f"{role}_hosts")
    }
    return _checked(_role(flags["job_name"]), int(index), cluster, source)


def _role(name: str) -> str:
    role = _SYNONYMS.get(name.lower(), name.lower())
    if role not in {*ROLES, "node"}:
        reason = f"{name!r} is no role; the roles are {', '.join(ROLES)}."
        raise InvalidArgument(reason + did_you_mean(role, ROLES))
    return role


def _checked(role: str, index: int, cluster: dict[str, Any], source: str) -> Identity:
    cluster = {name: hosts for name, hosts in cluster.items() if hosts and name != EVALUATOR}
    for name, hosts in cluster.items():
        for address in addresses(hosts):
            host, _, port = str(address).rpartition(":")
            if not host or not port.isdigit():
                raise InvalidArgument(
                    f"{source}: an address is host:port, got {address!r} ({name})."
                )
        if name == CHIEF and len(hosts) > 1:
            raise InvalidArgument(f"{source}: a cluster has one chief, got {len(hosts)}.")
    hosts = cluster.get(role, [])
    known = str(index) in hosts if isinstance(hosts, dict) else index < len(hosts)
    if role != EVALUATOR and not known:
        if hosts or index:
            reason = f"{source}: {role}:{index} isn't in the cluster, which has {len(hosts)}."
            raise InvalidArgument(reason)
        cluster[role] = [f"localhost:{_DEFAULT_PORT}"]
    return Identity(role, index, cluster, source)
