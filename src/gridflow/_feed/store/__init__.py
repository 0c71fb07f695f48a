"""The rows of one rank on its local disk, in segments (`segment`) of one writer (`writer`).

A *spool* keeps all of them for every epoch (`spool`)::

    <directory>/<dataset>/manifest.json       rows, schema, segments, whether all rows are there
    <directory>/<dataset>/00000000.arrow      a segment

A segment has its final name only when it is whole, and the manifest names no other. It is replaced
as a whole, too: by a longer one while rows still arrive, where somebody wants to hear of them, and
by the last one at the end. So a reader sees the spool grow, and never half of anything.

A *stream* keeps each until its rows were taken (`stream`). The training process is told by messages
which there are.
"""

from gridflow._feed.store.reader import SpoolReader
from gridflow._feed.store.segment import Segment, size_of
from gridflow._feed.store.spool import SpoolWriter

__all__ = ["Segment", "SpoolReader", "SpoolWriter", "size_of"]
