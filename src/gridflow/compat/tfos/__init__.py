"""TensorFlowOnSpark's interface (2.2.5) on top of gridflow.

A program changes ``from tensorflowonspark import TFCluster`` into
``from gridflow.compat.tfos import TFCluster``, and so on; or stays as it is and is run by
``python -m gridflow.compat.tfos.run program.py``. See ``docs/conversion.md``.

As the original does, importing it sets logging up, unless the program has: those programs say what
they do by ``logging.info``.
"""

from __future__ import annotations

import logging

logging.basicConfig(
    level=logging.INFO,
    format="%(asctime)s %(levelname)s (%(threadName)s-%(process)d) %(message)s",
)

#: The version of TensorFlowOnSpark whose interface this is.
__version__ = "2.2.5"
