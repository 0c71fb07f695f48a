"""The path of rows from Spark, arrays or files into tf.data.

``ingest`` runs in the driver and in Spark's tasks, ``normalize`` and ``store`` in the agent,
``plan`` and ``dataset`` in the training process, ``push`` on both sides, ``ledger`` everywhere.
"""
