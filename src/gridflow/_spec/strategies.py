"""The table of strategies: what each needs, and what it does. Pure.

Other code asks this table and never compares names. A new strategy is an entry of this table, and a
module of `gridflow._training.modes` if it trains in its own way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

from gridflow._spec.cluster import CHIEF, EVALUATOR, FUNCTION_ROLES, PS, TRAINING_ROLES, WORKER
from gridflow.errors import InvalidArgument

Strategy = Literal[
    "multi_worker_mirrored", "mirrored", "parameter_server", "server", "command", "none"
]
STRATEGIES: Final = get_args(Strategy)
#: The strategy of jobs whose tasks run programs.
COMMAND: Final = "command"


@dataclass(frozen=True)
class StrategyFacts:
    """The properties of a strategy.

    `mode`: The module of `gridflow._training.modes` that implements it for TensorFlow.
    `needs_backend`: Whether it needs TensorFlow; otherwise the function needn't use TensorFlow
        either.
    `is_made_together`: Whether creating it needs all tasks that train.
    `exchanges_gradients`: Whether the ranks train copies of one model by exchanging gradients.
    `hands_out_steps`: Whether a chief that computes nothing hands out steps to the workers.
    `has_servers`: Whether it supports parameter servers.
    `spreads_variables`: Whether it cuts large variables into shards on parameter servers.
    `takes_flags`: Whether its programs can get the classic flags.
    `runs_programs`: Whether its tasks run command lines; tasks of a role may be standard servers
        instead.
    `most_workers`: How many tasks may train; None: any number.
    `needs`, `adds`: Roles that a job must have, and those that are added if missing.
    `runs_function`, `is_awaited`, `is_fed`, `is_replaced`: Roles whose tasks have the property, see
        `gridflow._spec.job.Part`.
    `is_pushed`: The same; None: those that are fed.
    """

    name: Strategy
    mode: str
    needs_backend: bool = True
    is_made_together: bool = False
    exchanges_gradients: bool = False
    hands_out_steps: bool = False
    has_servers: bool = False
    spreads_variables: bool = False
    takes_flags: bool = False
    runs_programs: bool = False
    most_workers: int | None = None
    needs: tuple[str, ...] = ()
    adds: tuple[str, ...] = ()
    runs_function: tuple[str, ...] = FUNCTION_ROLES
    is_awaited: tuple[str, ...] = TRAINING_ROLES
    is_fed: tuple[str, ...] = TRAINING_ROLES
    is_replaced: tuple[str, ...] = (EVALUATOR,)
    is_pushed: tuple[str, ...] | None = None


_FACTS: Final = (
    StrategyFacts(
        "multi_worker_mirrored", "synchronous", is_made_together=True, exchanges_gradients=True
    ),
    StrategyFacts("mirrored", "synchronous", most_workers=1),
    StrategyFacts(
        "parameter_server",
        "servers",
        is_made_together=True,
        hands_out_steps=True,
        has_servers=True,
        spreads_variables=True,
        needs=(PS, WORKER),
        adds=(CHIEF,),
        runs_function=(CHIEF, EVALUATOR),
        is_awaited=(CHIEF,),
        is_fed=(WORKER,),
        is_replaced=(WORKER, EVALUATOR),
        is_pushed=(CHIEF,),
    ),
    StrategyFacts("server", "classic", has_servers=True, takes_flags=True),
    StrategyFacts(
        COMMAND,
        "synchronous",
        needs_backend=False,
        has_servers=True,
        takes_flags=True,
        runs_programs=True,
    ),
    StrategyFacts("none", "synchronous", needs_backend=False),
)
_BY_NAME: Final = {facts.name: facts for facts in _FACTS}


def of(name: str) -> StrategyFacts:
    return _BY_NAME[name]  # type: ignore[index]


def with_servers() -> tuple[str, ...]:
    """Return the strategies that support parameter servers."""
    return tuple(facts.name for facts in _FACTS if facts.has_servers)


def check_workers(name: str, num_workers: int) -> None:
    """Refuse more training tasks than a strategy supports.

    Raises `InvalidArgument`: With their number.
    """
    most = of(name).most_workers
    if most is not None and num_workers > most:
        raise InvalidArgument(
            f"strategy={name!r} supports only one worker; got {num_workers} workers. Use "
            "'multi_worker_mirrored' for one model on all workers, or 'none' for a model each."
        )
