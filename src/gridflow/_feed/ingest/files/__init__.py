"""Rows that the ranks read from files themselves, instead of being fed by the driver's data.

::

    gridflow._files  which files there are
    formats         of a file: its pieces, how many rows and bytes each has, and the rows
    shares          which pieces are whose, evenly by bytes
    reader          a rank's pieces as chunks of rows, read ahead: what the spool's reader is, too
"""
