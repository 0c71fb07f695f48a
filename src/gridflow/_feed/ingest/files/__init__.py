"""Rows that the ranks read from files themselves, instead of being fed from the driver.

::

    gridflow._files  which files there are
    formats         a file's pieces, their rows and bytes, and how to read them
    shares          which rank reads which pieces, evenly by bytes
    reader          a rank's pieces as chunks of rows, read ahead, like the spool's reader
"""
