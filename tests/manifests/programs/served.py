"""Reads numbers through the job's data service, and says what came."""

from __future__ import annotations

import tensorflow as tf

from gridflow.data import data_service

found = []
for batch in data_service(tf.data.Dataset.range(100).batch(7)):
    found += batch.numpy().tolist()
print("found", len(found), sum(found), flush=True)
