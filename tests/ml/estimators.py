"""What the tests of estimators share."""

from __future__ import annotations

import pytest

from gridflow.ml import KerasEstimator

#: Marks of the files.
MARKS = [
    pytest.mark.usefixtures("collects", "no_leaks", "by_value"),
    # Keras's own, of numpy; and those of PySpark, which leaves sockets to the collector.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

QUIET = {"logs": "none", "progress": False}


def estimator(**params):
    return KerasEstimator(distributor=QUIET, **params)
