"""A process as the training process will be: TensorFlow, a spool, no Spark.

Reads one request a line from stdin (JSON: directory, shape, batch), drains one epoch, answers with
the rows it has seen.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from gridflow.feed.batches import steps_for
from gridflow.feed.source import make_dataset
from gridflow.feed.spool import SpoolReader

FORMS = {
    "784 floats": {"features": "x", "label": "y"},
    "11 numbers": {"features": [[f"c{i}" for i in range(10)]], "label": "c10"},
}


def open_dataset(directory: Path, shape: str, batch: int, *, shuffle: bool = False):
    reader = SpoolReader(directory, "train")
    steps = steps_for([reader.rows], batch)
    return make_dataset(reader, batch_size=batch, steps=steps, shuffle=shuffle, **FORMS[shape])


def drain(dataset) -> int:
    rows = 0
    for _, y in dataset:
        rows += y.shape[0]
    return rows


def main() -> None:
    import tensorflow as tf

    drain(tf.data.Dataset.range(2).map(lambda i: (i, i)).batch(1))
    print("ready", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        directory = Path(request["directory"])
        print(drain(open_dataset(directory, request["shape"], request["batch"])), flush=True)


if __name__ == "__main__":
    main()
