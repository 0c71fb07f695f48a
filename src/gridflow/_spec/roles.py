"""The table of roles and the properties of their tasks. Pure.

A new role is an entry of this table; if a strategy uses it in a special way, an entry in
`gridflow._spec.strategies` says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

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
