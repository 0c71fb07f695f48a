"""The state machine's view of each task."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gridflow._wire.failures import TaskFailure


@dataclass
class Member:
    """The state of one rank in the current launch and generation."""

    agent: str = ""
    host: str = ""
    address: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    last_heard: float = 0.0
    last_step: float = 0.0
    armed: bool = False
    #: Its steps need all ranks that train.
    together: bool = False
    ready: bool = False
    succeeded: bool = False
    cleared: bool = False
    lost: bool = False
    #: How its process for the next generation has failed already.
    failed_early: TaskFailure | None = None
    #: Why its executor or host will be preempted; empty: it won't.
    leaving: str = ""
    #: Its agent was seen to die, or has sent its last report.
    died: bool = False
    gone: bool = False
    stack: str | None = None
    waiting: bool = False
    in_step: bool = False
    replacements: int = 0
    #: When the replacement of a dead process must be up.
    up_by: float | None = None
