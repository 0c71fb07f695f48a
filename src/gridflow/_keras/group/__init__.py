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
from typing import Any


def is_of(strategy: Any) -> bool:
    """Return whether a strategy is gridflow's."""
    module = sys.modules.get("gridflow._keras.group.strategy")
    return module is not None and isinstance(strategy, module.GroupStrategy)
