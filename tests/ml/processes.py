"""The executors of a session's application, and the models' processes beside them."""

from __future__ import annotations

import psutil

from suite.commands import words_of

PROCESS = "gridflow.ml.inference.process"
EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"


def executors(spark):
    """Return the executors."""
    application = spark.sparkContext.applicationId
    return [
        process
        for process in psutil.process_iter()
        if EXECUTOR in (words := words_of(process)) and application in words
    ]


def models(spark):
    """Return the models' processes."""
    return [
        process
        for executor in executors(spark)
        for process in executor.children()
        if PROCESS in words_of(process)
    ]
