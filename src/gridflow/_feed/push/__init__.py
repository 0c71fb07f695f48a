"""Rows that others push to the agents of a running job.

::

    sender      in a feeder's task (or the driver): deals a partition's rows out to the agents
    located     rows that are sent by their place in a file which both sides see
    asker       in a task that asks: sends rows to one agent, and returns its answers
    inflow      in each agent: what has come, what is still to be taken, and room for more
    answers     what the function answers to rows, as it travels back
    attempts    who may bring the rows of a partition, and what has come of it
    ranges      which rows of a partition have come: what makes a retry neither lose nor double any
"""

from typing import Final

#: What the rows that are pushed into a job are called in its ledger.
STREAM: Final = "stream"
