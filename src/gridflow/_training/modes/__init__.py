"""How a process trains, by strategy and backend, in one module each.

=================  ============================================================================
``synchronous``    TensorFlow, ranks side by side: ``multi_worker_mirrored``, ``mirrored``, ``none``
``servers``        TensorFlow, over parameter servers: ``parameter_server``
``classic``        TensorFlow, servers and all else by the user's own program: ``server``
``neutral``        Keras 3 on any other backend
=================  ============================================================================

The tables in `gridflow._spec.strategies` and `gridflow._spec.backends` choose the mode.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from gridflow._spec import backends

if TYPE_CHECKING:
    from gridflow._training.modes.base import Mode
    from gridflow._training.process import TaskProcess


def mode_of(process: TaskProcess) -> Mode:
    name = backends.of(process.training.backend).mode or process.facts.mode
    mode: type[Mode] = importlib.import_module(f"gridflow._training.modes.{name}").MODE
    return mode(process)
