"""What the training function is given; see `gridflow._training.context`."""

from __future__ import annotations

from gridflow._training.context import TrainingContext, current_context

__all__ = ["TrainingContext", "current_context"]
