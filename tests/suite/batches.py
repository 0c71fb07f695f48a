"""Datasets without a strategy, and values of their columns, for tests of the feed."""

import pyarrow as pa
from hypothesis import strategies as st

from gridflow._feed.dataset.distributed import distribute
from gridflow._feed.plan.grants import FixedGrant

#: Types of columns, and what their values are drawn from.
LEAVES = {
    "int8": (pa.int8(), st.integers(-128, 127)),
    "int64": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "float32": (pa.float32(), st.floats(width=32)),
    "float64": (pa.float64(), st.floats()),
    "bool": (pa.bool_(), st.booleans()),
    "string": (pa.string(), st.text(max_size=5)),
    "binary": (pa.binary(), st.binary(max_size=5)),
}


def make_dataset(reader, *, steps, **options):
    """Return a ``tf.data.Dataset`` of the rows of one rank."""
    return distribute(None, reader, grant=FixedGrant(steps), **options)
