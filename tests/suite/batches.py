"""Datasets without a strategy, for tests of the feed."""

from gridflow._feed.dataset.distributed import distribute
from gridflow._feed.plan.grants import FixedGrant


def make_dataset(reader, *, steps, **options):
    """Return a ``tf.data.Dataset`` of the rows of one rank."""
    return distribute(None, reader, grant=FixedGrant(steps), **options)
