"""Reads numbers through the job's data service, or trains, and says what came."""

from __future__ import annotations

import sys

import tensorflow as tf

from gridflow.data import data_service
from suite.data_service import train

if sys.argv[1:] == ["train"]:
    served, plain = train(lambda rows: data_service(rows, sharding="off")), train(lambda rows: rows)
    print("differs by", max(abs(a - b) for a, b in zip(served, plain, strict=True)), flush=True)
else:
    found = []
    for batch in data_service(tf.data.Dataset.range(100).batch(7)):
        found += batch.numpy().tolist()
    print("found", len(found), sum(found), flush=True)
