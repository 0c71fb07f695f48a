"""Tasks and the cluster spec: which tasks there are, and their addresses. Pure data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gridflow._spec.roles import ROLES, TRAINING_ROLES, facts_of
from gridflow.errors import InvalidArgument, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


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
