"""What the training function is given; see `gridflow.training.context`."""

from __future__ import annotations

from gridflow.training.context import TrainingContext, current_context

__all__ = ["TrainingContext", "current_context"]
