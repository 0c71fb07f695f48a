"""The spool: the rows of one rank on its local disk, written once, mapped for every epoch.

::

    <directory>/<dataset>/manifest.json       rows, schema, segments; written last
    <directory>/<dataset>/00000.arrow         Arrow IPC file, uncompressed, so that it can be mapped

A segment has its final name only when it is whole.
"""

from gridflow.feed.spool.reader import SpoolReader
from gridflow.feed.spool.writer import SpoolWriter

__all__ = ["SpoolReader", "SpoolWriter"]
