"""What an agent does beside its task, each thing a module with one interface (`base.Feature`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gridflow.agent.features.backpressure import Backpressure
from gridflow.agent.features.board import Board
from gridflow.agent.features.evaluation import EvaluationNews
from gridflow.agent.features.row_borrowing import RowBorrowing
from gridflow.agent.features.step_grants import StepGrants
from gridflow.agent.features.streams import Streams

if TYPE_CHECKING:
    from gridflow.agent.features.base import Feature, Tools

__all__ = ["features_of"]


def features_of(tools: Tools) -> list[Feature]:
    """Return the features of an agent."""
    return [
        EvaluationNews(tools),
        StepGrants(tools),
        Backpressure(tools),
        RowBorrowing(tools),
        Streams(tools),
        Board(tools),
    ]
