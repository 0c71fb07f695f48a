"""Rows pushed to the agents of a running job.

::

    sender            in a feeder's task: distributes a partition's rows to the agents
    located           rows sent by their position in a file that both sides see
    inference_client  in a task of infer(): sends rows to one agent and returns its answers
    answers           the function's answers to rows
    exactly_once      who may send the rows of a partition, and which have arrived
    ranges            sets of row positions, so that a retry neither loses nor duplicates rows
    marks             what checkpoints cover of a stream's rows
"""

from typing import Final

#: The name of a job's pushed rows in its ledger.
STREAM: Final = "stream"
