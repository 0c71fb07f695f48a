"""TensorFlowOnSpark's interface (2.2.5) on top of gridflow.

Change ``from tensorflowonspark import TFCluster`` to ``from gridflow.compat.tfos import TFCluster``
and so on, or run the unchanged program with ``python -m gridflow.compat.tfos.run program.py``. See
``docs/conversion.md``.

As in the original, importing this package configures logging, unless the program already has: such
programs report their progress with ``logging.info``.
"""

from __future__ import annotations

import logging

logging.basicConfig(
    level=logging.INFO,
    format="%(asctime)s %(levelname)s (%(threadName)s-%(process)d) %(message)s",
)

#: The version of TensorFlowOnSpark whose interface this is.
__version__ = "2.2.5"
