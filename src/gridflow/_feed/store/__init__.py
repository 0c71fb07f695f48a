"""The spool: the rows of one rank on its local disk, written once, mapped for every epoch.

::

    <directory>/<dataset>/manifest.json       rows, schema, segments, whether all rows are there
    <directory>/<dataset>/00000.arrow         Arrow IPC file, uncompressed, so that it can be mapped

A segment has its final name only when it is whole, and the manifest names no other. It is replaced
as a whole, too: by a longer one while rows still arrive, where somebody wants to hear of them, and
by the last one at the end. So a reader sees the spool grow, and never half of anything.
"""

from gridflow._feed.store.reader import SpoolReader
from gridflow._feed.store.segment import Segment, size_of
from gridflow._feed.store.spool import SpoolWriter

__all__ = ["Segment", "SpoolReader", "SpoolWriter", "size_of"]
