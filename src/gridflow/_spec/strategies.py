"""The strategies: what each asks of a job, and what holds under it. Pure.

Whoever has to know asks here; nobody compares names. A new strategy is an entry of this table, and
a module of `gridflow._training.modes` if it trains in a way of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

from gridflow._spec.roles import CHIEF, EVALUATOR, PS, ROLES, TRAINING_ROLES, WORKER
from gridflow.errors import InvalidArgument

Strategy = Literal[
    "multi_worker_mirrored", "mirrored", "parameter_server", "server", "command", "none"
]
STRATEGIES: Final = get_args(Strategy)
#: That of jobs whose tasks run programs of their own.
COMMAND: Final = "command"


@dataclass(frozen=True)
class StrategyFacts:
    """What holds under a strategy.

    Attributes
    ----------
    name : str
    mode : str
        The module of `gridflow._training.modes` that trains by it under TensorFlow.
    needs_backend : bool
        Whether it is made of TensorFlow; else the function needn't use that either.
    is_made_together : bool
        Whether its making takes all tasks that train.
    exchanges_gradients : bool
        Whether the ranks train one model by exchanging gradients, each with a copy of it.
    hands_out_steps : bool
        Whether a chief that computes nothing hands out steps, which workers make side by side.
    has_servers : bool
        Whether it knows parameter servers.
    spreads_variables : bool
        Whether it cuts large variables into shards on those.
    takes_flags : bool
        Whether programs under it know the classic flags.
    runs_programs : bool
        Whether its tasks run command lines; those of a role may be standard servers instead.
    most_workers : int or None
        How many tasks may train; None: any number.
    needs, adds : tuple of str
        Roles that a job must have, and those that it gets where they aren't asked for.
    runs_function, is_awaited, is_fed, is_replaced : tuple of str
        Roles whose tasks are so, see `gridflow._spec.tasks.Part`.
    is_pushed : tuple of str or None
        The same; None: those that are fed.
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
    runs_function: tuple[str, ...] = ROLES
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
    """Return the facts of a strategy that there is."""
    return _BY_NAME[name]  # type: ignore[index]


def with_servers() -> tuple[str, ...]:
    """Return the strategies that know parameter servers."""
    return tuple(facts.name for facts in _FACTS if facts.has_servers)


def check_workers(name: str, num_workers: int) -> None:
    """Refuse more tasks that train than a strategy is for.

    Raises
    ------
    InvalidArgument
        With their number.
    """
    most = of(name).most_workers
    if most is not None and num_workers > most:
        raise InvalidArgument(
            f"strategy={name!r} is for the devices of one worker; got {num_workers} workers. Use "
            "'multi_worker_mirrored' for one model on several, or 'none' for a model each."
        )
