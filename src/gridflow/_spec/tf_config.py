"""Reads and writes ``TF_CONFIG`` and the flags of classic programs.

Both tell a process the cluster's addresses and which task it is. The first is TensorFlow's own
(https://www.tensorflow.org/guide/distributed_training#TF_CONFIG), the flags are those of its
classic guides: ``--job_name``, ``--task_index``, ``--ps_hosts``, ``--worker_hosts``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

from gridflow._spec.roles import CHIEF, PS, ROLES, WORKER, facts_of
from gridflow.errors import InvalidArgument, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gridflow._spec.cluster import ClusterSpec, Task

#: The variable's name.
TF_CONFIG: Final = "TF_CONFIG"
#: The flags' names, without their dashes.
FLAGS: Final = ("job_name", "task_index", "ps_hosts", "worker_hosts", "chief_hosts")
DEFAULT_PORT: Final = 2222
#: Other names of roles.
_SYNONYMS: Final = {"master": CHIEF, "coordinator": CHIEF, "parameter-server": PS}

#: A role's addresses; a mapping of index to address if an operator tells a task only some.
Hosts: TypeAlias = "list[str] | dict[str, str]"


@dataclass(frozen=True)
class ClusterMember:
    """A process, and its view of the cluster.

    `cluster`: Addresses by role, without the evaluator, which isn't part of the cluster.
    `source`: Where this was found.
    `data_service`: Addresses of the tasks of the data service, by role.
    """

    role: str
    index: int
    cluster: dict[str, Hosts]
    source: str = ""
    data_service: dict[str, list[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, cluster: ClusterSpec, task: Task) -> Self:
        """Return a task of a cluster."""
        return cls(task.role, task.index, {**cluster.as_dict()})

    @classmethod
    def checked(cls, role: str, index: int, cluster: Mapping[str, Any], source: str) -> Self:
        """Return a checked member.

        Raises `InvalidArgument`: It isn't in its cluster, or the cluster contains something other
            than addresses.
        """
        hosts_of = {
            name: hosts for name, hosts in cluster.items() if hosts and facts_of(name).is_in_cluster
        }
        services = {
            name: hosts for name, hosts in cluster.items() if facts_of(name).is_data_service
        }
        for name, hosts in {**hosts_of, **services}.items():
            for address in in_order(hosts):
                host, _, port = str(address).rpartition(":")
                if not host or not port.isdigit():
                    raise InvalidArgument(
                        f"{source}: expected host:port as an address of {name}; got {address!r}."
                    )
            if facts_of(name).is_single and len(hosts) > 1:
                raise InvalidArgument(
                    f"{source}: a cluster can have only one {name}; got {len(hosts)}."
                )
        hosts = {**hosts_of, **services}.get(role, [])
        known = str(index) in hosts if isinstance(hosts, dict) else index < len(hosts)
        facts = facts_of(role)
        if (facts.is_in_cluster or facts.is_data_service) and not known:
            if hosts or index or facts.is_data_service:
                reason = f"{source}: {role}:{index} isn't in the cluster, which has {len(hosts)}."
                raise InvalidArgument(reason)
            hosts_of[role] = [f"localhost:{DEFAULT_PORT}"]
        return cls(role, index, hosts_of, source, services)

    @classmethod
    def from_tf_config(cls, text: str) -> Self:
        """Parse the value of ``TF_CONFIG``, also one from an operator.

        Raises `InvalidArgument`: It can't be parsed, or is inconsistent.
        """
        try:
            tree = json.loads(text)
            task = tree["task"]
            role, index = str(task["type"]), int(task["index"])
            cluster: dict[str, Any] = tree.get("cluster") or {}
            cluster = {canonical_role(name): hosts for name, hosts in cluster.items()}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InvalidArgument(f"can't parse {TF_CONFIG} ({error!r}): {text!r}.") from error
        return cls.checked(canonical_role(role), index, cluster, TF_CONFIG)

    @classmethod
    def from_flags(cls, flags: Mapping[str, str], source: str) -> Self:
        """Parse the values of the classic flags, by name.

        Raises `InvalidArgument`: ``job_name`` is missing, or they are inconsistent.
        """
        if "job_name" not in flags:
            raise InvalidArgument(f"{source}: missing --job_name; got {', '.join(flags)}.")
        index = flags.get("task_index", "0")
        if not index.isdigit():
            raise InvalidArgument(f"--task_index must be a number of at least 0; got {index!r}.")
        cluster = {
            role: [host for host in flags[f"{role}_hosts"].split(",") if host]
            for role in (CHIEF, WORKER, PS)
            if flags.get(f"{role}_hosts")
        }
        return cls.checked(canonical_role(flags["job_name"]), int(index), cluster, source)

    def __str__(self) -> str:
        return f"{self.role}:{self.index}"

    @property
    def tf_config(self) -> str:
        """The value of ``TF_CONFIG``."""
        task = {"type": self.role, "index": self.index}
        return json.dumps({"cluster": self.cluster, "task": task})

    @property
    def flags(self) -> tuple[str, ...]:
        """The four classic flags, and the chief's hosts if there is a chief."""
        words = [f"--job_name={self.role}", f"--task_index={self.index}"]
        words += [
            f"--{role}_hosts={','.join(in_order(self.cluster.get(role, [])))}"
            for role in (PS, WORKER)
        ]
        if self.cluster.get(CHIEF):
            words.append(f"--chief_hosts={','.join(in_order(self.cluster[CHIEF]))}")
        return tuple(words)

    @property
    def own_address(self) -> str | None:
        """The address of this task; None for an evaluator."""
        hosts = self.cluster.get(self.role)
        if isinstance(hosts, dict):
            return hosts.get(str(self.index))
        return hosts[self.index] if hosts else None

    @property
    def everyone(self) -> list[str]:
        """The addresses of all tasks of the cluster."""
        return [address for hosts in self.cluster.values() for address in in_order(hosts)]

    @property
    def peers(self) -> list[str]:
        """The addresses of all other tasks."""
        return [address for address in self.everyone if address != self.own_address]


def in_order(hosts: Hosts) -> list[str]:
    """Return a role's addresses in order."""
    return list(hosts.values()) if isinstance(hosts, dict) else hosts


def canonical_role(name: str) -> str:
    """Return gridflow's name of a role.

    Raises `InvalidArgument`: There is no such role.
    """
    role = _SYNONYMS.get(name.lower(), name.lower())
    if role not in ROLES:
        reason = f"unknown role {name!r}; supported: {', '.join(ROLES)}."
        raise InvalidArgument(reason + did_you_mean(role, ROLES))
    return role


def role_variables(role: str, index: int | None, cluster: Mapping[str, Hosts]) -> dict[str, str]:
    """Return the variables that tell a process which task it is.

    With an index of None, the target adds the index itself.
    """
    variables = {"GRIDFLOW_ROLE": role}
    if index is not None:
        variables["GRIDFLOW_INDEX"] = str(index)
    return {**variables, "GRIDFLOW_CLUSTER": json.dumps(cluster, separators=(",", ":"))}


def find_flags(words: Sequence[str]) -> dict[str, str]:
    """Return the classic flags in a command line, by name."""
    flags: dict[str, str] = {}
    for place, word in enumerate(words):
        name, sign, value = word.lstrip("-").partition("=")
        if not word.startswith("-") or name not in FLAGS:
            continue
        following = words[place + 1] if place + 1 < len(words) else ""
        flags[name] = value if sign else following
    return flags
