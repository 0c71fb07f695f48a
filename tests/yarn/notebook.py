"""A driver that runs one function after the other in one session, as a notebook runs its cells.

``notebook.py SOCKET``. What comes is a source, the name of a function in it (None: the source
alone) and its further arguments; what goes back is its value, or a traceback.
"""

from __future__ import annotations

import sys
import traceback
from multiprocessing.connection import Client

from pyspark.sql import SparkSession


def run(shared, source, name, arguments):
    try:
        exec(source, shared)
        value = shared[name](spark, *arguments) if name else None
    except BaseException:
        return None, traceback.format_exc()
    return value, None


if __name__ == "__main__":
    spark = SparkSession.builder.getOrCreate()
    # As in a notebook, what is defined here belongs to no module that executors could import.
    cells = {"__name__": "__main__"}
    with Client(sys.argv[1]) as connection:
        try:
            while True:
                connection.send(run(cells, *connection.recv()))
        except EOFError:
            spark.stop()
