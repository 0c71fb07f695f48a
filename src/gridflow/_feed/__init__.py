"""Rows on their way from Spark, or from arrays, into tf.data.

``schema`` and ``spool`` run in the agent, ``batches`` and ``source`` in the process that trains,
``frames`` in the Spark driver, ``local`` in the launcher of plain processes, ``ledger`` in all.
"""
