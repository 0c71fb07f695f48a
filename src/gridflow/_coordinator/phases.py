"""The table of a job's phases: where each may lead, and how long it may last.

`gridflow._coordinator.machine` decides when to go from one to another.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gridflow._spec.option_groups import Deadlines

#: Seconds to collect more failures after a first one that looks like the cause.
COLLECT_SECONDS: Final = 1.5
#: Beyond the heartbeat's deadline: time for the report of a silent task to arrive.
COLLECT_MARGIN: Final = 2.0


class Phase(enum.Enum):
    """A phase of a job."""

    #: The agents of a launch start.
    GATHERING = "gathering"
    #: The training processes of a generation start.
    STARTING = "starting"
    TRAINING = "training"
    #: The evaluators evaluate the last checkpoint.
    EVALUATING = "evaluating"
    #: Something failed; waiting for the cause.
    COLLECTING = "collecting"
    #: The training processes end, and another generation may follow.
    CLEARING = "clearing"
    #: The agents end, and another launch follows.
    RELAUNCHING = "relaunching"
    #: The agents end, and with them the job.
    CLOSING = "closing"
    CLOSED = "closed"


def _for_ever(_: Deadlines, __: float) -> float:
    return math.inf


@dataclass(frozen=True)
class Stage:
    """The properties of a phase.

    `lasts`: Its deadline in seconds, from the job's deadlines and ``start_timeout``.
    """

    leads_to: frozenset[Phase]
    lasts: Callable[[Deadlines, float], float] = _for_ever


_AT_ANY_TIME: Final = frozenset({Phase.COLLECTING, Phase.RELAUNCHING, Phase.CLOSING})
STAGES: Final[Mapping[Phase, Stage]] = {
    Phase.GATHERING: Stage(
        _AT_ANY_TIME | {Phase.STARTING},
        lambda _, start_timeout: start_timeout,
    ),
    Phase.STARTING: Stage(
        _AT_ANY_TIME | {Phase.TRAINING},
        lambda _, start_timeout: start_timeout,
    ),
    # Its deadlines are those of steps: `gridflow._coordinator.deadlines`.
    Phase.TRAINING: Stage(_AT_ANY_TIME | {Phase.EVALUATING}),
    Phase.EVALUATING: Stage(
        frozenset({Phase.CLOSING}),
        lambda deadlines, _: deadlines.shutdown,
    ),
    # If only consequences are known, the cause may be a frozen or unreachable task, which takes up
    # to the heartbeat's deadline to show.
    Phase.COLLECTING: Stage(
        frozenset({Phase.CLEARING, Phase.CLOSING}),
        lambda deadlines, _: deadlines.heartbeat + COLLECT_MARGIN,
    ),
    Phase.CLEARING: Stage(
        frozenset({Phase.STARTING, Phase.RELAUNCHING, Phase.CLOSING}),
        lambda deadlines, _: deadlines.shutdown,
    ),
    Phase.RELAUNCHING: Stage(
        frozenset({Phase.GATHERING, Phase.CLOSING}),
        lambda deadlines, _: deadlines.shutdown,
    ),
    Phase.CLOSING: Stage(
        frozenset({Phase.CLOSED}),
        lambda deadlines, _: deadlines.shutdown,
    ),
    Phase.CLOSED: Stage(frozenset()),
}
