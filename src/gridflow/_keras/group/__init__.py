"""The strategy of a group on TensorFlow: each process is one replica.

==============  ===============================================================================
``strategy``    the ``tf.distribute.Strategy``
``steps``       what a step computes: one process's values, or parts that are added up
``variables``   variables that are added up when they are read, or when they are assigned
``data``        this rank's part of a dataset
``exchange``    sums and concatenations over all ranks, as operations of TensorFlow
``collective``  the same through TensorFlow's own collective operations
``programs``    gives the strategy to programs that make TensorFlow's
==============  ===============================================================================
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

#: How to make the strategy of a job's group for programs that make TensorFlow's, and how many ranks
#: that needs. It is here so that offering it imports no TensorFlow.
offered: list[tuple[Callable[[], Any], int]] = []


def offer(make: Callable[[], Any], ranks: int) -> None:
    """Make the group's strategy in this way, once all ranks make TensorFlow's."""
    offered[:] = [(make, ranks)]


def is_of(strategy: Any) -> bool:
    """Return whether a strategy is gridflow's."""
    module = sys.modules.get("gridflow._keras.group.strategy")
    return module is not None and isinstance(strategy, module.GroupStrategy)
