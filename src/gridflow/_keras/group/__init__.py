"""The strategy of a group on TensorFlow: each process is one replica.

==============  ===============================================================================
``strategy``    the ``tf.distribute.Strategy``
``steps``       what a step computes: one process's values, or parts that are added up
``variables``   variables that are added up when they are read, or when they are assigned
``data``        this rank's part of a dataset
``exchange``    sums and concatenations over all ranks, as operations of TensorFlow
``collective``  the same through TensorFlow's own collective operations
==============  ===============================================================================
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from gridflow._keras.patches.registry import Patch

#: If set to ``1``, multi_worker_mirrored trains with this strategy: for its tests, until it
#: replaces TensorFlow's.
VARIABLE: Final = "GRIDFLOW_ONE_REPLICA"


def is_chosen() -> bool:
    """Return whether this process's group trains with gridflow's strategy."""
    return is_tried() and "TF_CONFIG" in os.environ


def is_tried() -> bool:
    """Return whether groups train with gridflow's strategy."""
    return os.environ.get(VARIABLE) == "1"


def is_of(strategy: Any) -> bool:
    """Return whether a strategy is gridflow's."""
    module = sys.modules.get("gridflow._keras.group.strategy")
    return module is not None and isinstance(strategy, module.GroupStrategy)


def elsewhere(patches: Iterable[Patch], names: Collection[str]) -> tuple[Patch, ...]:
    """Return patches, of which some are left out under gridflow's strategy.

    Parameters
    ----------
    patches : iterable of Patch
    names : collection of str
        Of those that only several replicas in a process need.
    """
    return tuple(
        replace(fix, concerns=lambda: not is_chosen()) if is_tried() and fix.name in names else fix
        for fix in patches
    )
