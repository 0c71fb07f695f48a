"""Where a job stands, where it can go from there, and how long it may stay: the only table of it.

`gridflow._coordinator.machine` says what leads from one to the other.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gridflow._spec.option_groups import Deadlines

#: Seconds in which further failures are gathered after a first one that looks like the cause.
COLLECT_SECONDS: Final = 1.5
#: Beyond the heartbeat's deadline: time for the report of a silent task to arrive.
COLLECT_MARGIN: Final = 2.0


class Phase(enum.Enum):
    """Where a job stands."""

    #: The agents of a launch come up.
    GATHERING = "gathering"
    #: The training processes of a generation do.
    STARTING = "starting"
    TRAINING = "training"
    #: The evaluators look at the last checkpoint.
    EVALUATING = "evaluating"
    #: Something failed, and the cause is waited for.
    COLLECTING = "collecting"
    #: The training processes end, as another generation may follow.
    CLEARING = "clearing"
    #: The agents end, as another launch follows.
    RELAUNCHING = "relaunching"
    #: The agents end, and the job with them.
    CLOSING = "closing"
    CLOSED = "closed"


def _for_ever(_: Deadlines, __: float) -> float:
    return math.inf


@dataclass(frozen=True)
class Stage:
    """What holds of a phase.

    Attributes
    ----------
    leads_to : frozenset of Phase
    lasts : callable
        Its own deadline, of the job's and its ``start_timeout``: seconds after which something is
        done about what is missing.
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
    # Its deadlines are those of steps: `gridflow._coordinator.steps`.
    Phase.TRAINING: Stage(_AT_ANY_TIME | {Phase.EVALUATING}),
    Phase.EVALUATING: Stage(
        frozenset({Phase.CLOSING}),
        lambda deadlines, _: deadlines.shutdown,
    ),
    # Where only echoes are known, the one who caused them may be frozen or unreachable, which takes
    # up to the heartbeat's deadline to show.
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
