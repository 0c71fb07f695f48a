"""Roles, tasks and the cluster spec: which tasks there are, and their addresses. Pure data.

A new role is an entry of the table of roles; if a strategy uses it in a special way, an entry in
`gridflow._spec.strategies` says so.

``TF_CONFIG`` and the flags of classic programs tell a process the cluster's addresses and which
task it is. The first is TensorFlow's own
(https://www.tensorflow.org/guide/distributed_training#TF_CONFIG), the flags are those of its
classic guides: ``--job_name``, ``--task_index``, ``--ps_hosts``, ``--worker_hosts``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

from gridflow.errors import InvalidArgument, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


CHIEF: Final = "chief"
WORKER: Final = "worker"
PS: Final = "ps"
EVALUATOR: Final = "evaluator"
#: TensorFlow's data service: who knows the pipelines, and those that run them.
DISPATCHER: Final = "dispatcher"
DATA: Final = "data"

#: Of one role: far more than a job's names have room for in the environment of a program.
MOST_TASKS: Final = 10_000


@dataclass(frozen=True)
class RoleFacts:
    """The properties of a role, independent of the strategy.

    `trains`: Whether its tasks train: they have a rank, rows, and GPUs if available.
    `is_single`: Whether a job has at most one such task.
    `is_in_cluster`: Whether its tasks are part of TensorFlow's cluster; otherwise they only watch
        it, or are a service beside it.
    `can_serve`: Whether its tasks may be TensorFlow's own servers while others run commands.
    `is_data_service`: Whether its tasks are servers of TensorFlow's data service.
    """

    name: str
    trains: bool = False
    is_single: bool = False
    is_in_cluster: bool = True
    can_serve: bool = False
    is_data_service: bool = False


#: In the order of ranks: if there is a chief, it trains as rank 0.
_FACTS: Final = (
    RoleFacts(CHIEF, trains=True, is_single=True),
    RoleFacts(WORKER, trains=True, can_serve=True),
    RoleFacts(PS, can_serve=True),
    RoleFacts(EVALUATOR, is_single=True, is_in_cluster=False),
    RoleFacts(
        DISPATCHER, is_single=True, is_in_cluster=False, can_serve=True, is_data_service=True
    ),
    RoleFacts(DATA, is_in_cluster=False, can_serve=True, is_data_service=True),
)
_BY_NAME: Final = {facts.name: facts for facts in _FACTS}
ROLES: Final = tuple(_BY_NAME)
#: The roles whose tasks train, and so have a rank.
TRAINING_ROLES: Final = tuple(facts.name for facts in _FACTS if facts.trains)
#: Those whose tasks may run the user's function: all but servers that never do.
FUNCTION_ROLES: Final = tuple(facts.name for facts in _FACTS if not facts.is_data_service)


def runs_no_command(name: str) -> bool:
    """Return whether tasks of a role are TensorFlow's own servers unless they have a command."""
    return name == PS or facts_of(name).is_data_service


def facts_of(name: str) -> RoleFacts:
    """Return the facts of a role; for an unknown name, those of most roles."""
    return _BY_NAME.get(name, RoleFacts(name))


@dataclass(frozen=True, order=True)
class Task:
    """One role and index, written ``worker:1``."""

    role: str
    index: int

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            msg = f"unknown role {self.role!r}; supported: {', '.join(ROLES)}."
            raise InvalidArgument(msg + did_you_mean(self.role, ROLES))
        if self.index < 0:
            raise InvalidArgument(f"the index of a task must be at least 0; got {self.index}.")

    def __str__(self) -> str:
        return f"{self.role}:{self.index}"

    @classmethod
    def parse(cls, text: str) -> Task:
        """Read ``worker:1`` back."""
        role, _, index = text.partition(":")
        if not index.isdigit():
            raise InvalidArgument(f"expected a task such as 'worker:1'; got {text!r}.")
        return cls(role, int(index))


@dataclass(frozen=True)
class ClusterSpec:
    """Addresses (``host:port``) of all tasks, by role, in index order."""

    addresses: Mapping[str, Sequence[str]]

    def __post_init__(self) -> None:
        for role, hosts in self.addresses.items():
            Task(role, 0)
            for address in hosts:
                if not address.rpartition(":")[2].isdigit():
                    raise InvalidArgument(
                        f"expected host:port as the address of {role}; got {address!r}."
                    )
            if facts_of(role).is_single and len(hosts) > 1:
                raise InvalidArgument(f"a cluster can have only one {role}.")

    @property
    def tasks(self) -> tuple[Task, ...]:
        """All tasks, in the order of `ROLES` and index."""
        return tuple(
            Task(role, index)
            for role in ROLES
            for index in range(len(self.addresses.get(role, ())))
        )

    @property
    def ranks(self) -> tuple[Task, ...]:
        """The tasks that train. A task's index here is its rank."""
        return tuple(task for task in self.tasks if task.role in TRAINING_ROLES)

    def rank(self, task: Task) -> int | None:
        """Return the rank of a task; None for a parameter server or evaluator."""
        return self.ranks.index(task) if task in self.ranks else None

    def address(self, task: Task) -> str:
        """Return the ``host:port`` of a task."""
        return self.addresses[task.role][task.index]

    def as_dict(self) -> dict[str, list[str]]:
        """Return the addresses by role for ``tf.train.ClusterSpec``, without the evaluator's."""
        return {r: list(a) for r, a in self.addresses.items() if a and facts_of(r).is_in_cluster}


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
