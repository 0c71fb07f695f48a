"""The roles: what there are, and what holds of the tasks of each. Pure.

Whoever has to know asks here. A new role is an entry of this table; where a strategy has a use of
its own for it, an entry in `gridflow._spec.strategies` says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

CHIEF: Final = "chief"
WORKER: Final = "worker"
PS: Final = "ps"
EVALUATOR: Final = "evaluator"


@dataclass(frozen=True)
class RoleFacts:
    """What holds of a role, whatever the strategy is.

    Attributes
    ----------
    name : str
    trains : bool
        Whether its tasks train: they have a rank, rows, and GPUs if there are any.
    is_single : bool
        Whether a job has at most one such task.
    is_in_cluster : bool
        Whether its tasks are part of the cluster of TensorFlow; else they only watch it.
    can_serve : bool
        Whether its tasks may be standard TensorFlow servers where others run commands.
    """

    name: str
    trains: bool = False
    is_single: bool = False
    is_in_cluster: bool = True
    can_serve: bool = False


#: In the order in which ranks are given: a chief trains as rank 0 wherever there is one.
_FACTS: Final = (
    RoleFacts(CHIEF, trains=True, is_single=True),
    RoleFacts(WORKER, trains=True, can_serve=True),
    RoleFacts(PS, can_serve=True),
    RoleFacts(EVALUATOR, is_single=True, is_in_cluster=False),
)
_BY_NAME: Final = {facts.name: facts for facts in _FACTS}
ROLES: Final = tuple(_BY_NAME)
#: The roles whose tasks have a rank, because they train.
TRAINING_ROLES: Final = tuple(facts.name for facts in _FACTS if facts.trains)


def facts_of(name: str) -> RoleFacts:
    """Return the facts of a role; of a name that is none, what holds of most."""
    return _BY_NAME.get(name, RoleFacts(name))
