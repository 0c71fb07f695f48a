"""What an agent does beside its task: one module for each feature (`base.Feature`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gridflow._agent.features.backpressure import Backpressure
from gridflow._agent.features.board import Board
from gridflow._agent.features.evaluation import EvaluationNews
from gridflow._agent.features.row_borrowing import RowBorrowing
from gridflow._agent.features.step_grants import StepGrants
from gridflow._agent.features.streams import Streams

if TYPE_CHECKING:
    from gridflow._agent.features.base import Feature, Tools

__all__ = ["features_of"]


def features_of(tools: Tools) -> list[Feature]:
    return [
        EvaluationNews(tools),
        StepGrants(tools),
        Backpressure(tools),
        RowBorrowing(tools),
        Streams(tools),
        Board(tools),
    ]
