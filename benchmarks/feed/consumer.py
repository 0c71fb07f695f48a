"""A process as the training process will be: TensorFlow, a spool, no Spark.

Reads one request a line from stdin (JSON: directory, shape, batch), drains one epoch, answers with
the rows it has seen.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from gridflow._feed.dataset.distributed import distribute
from gridflow._feed.plan.epochs import steps_for
from gridflow._feed.plan.grants import FixedGrant
from gridflow._feed.store import SpoolReader

FORMS = {
    "784 floats": {"features": "x", "label": "y"},
    "11 numbers": {"features": [[f"c{i}" for i in range(10)]], "label": "c10"},
    "images of 100 KB": {"features": "x", "label": "y"},
}


def open_dataset(directory: Path, shape: str, batch: int, *, shuffle: bool = False):
    return dataset_of(SpoolReader(directory, "train"), shape, batch, shuffle=shuffle)


def dataset_of(reader: SpoolReader, shape: str, batch: int, *, shuffle: bool = False):
    options = {"batch_size": batch, "shuffle": shuffle, **FORMS[shape]}
    return distribute(None, reader, grant=FixedGrant(steps_for([reader.rows], batch)), **options)


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
        reader = SpoolReader(directory, "train")
        rows = drain(dataset_of(reader, request["shape"], request["batch"]))
        # A job that has ended maps no spool any more; TensorFlow keeps generators for good.
        reader._files.clear()  # noqa: SLF001
        reader._columns.clear()  # noqa: SLF001
        reader._chunks.clear()  # noqa: SLF001
        print(rows, flush=True)


if __name__ == "__main__":
    main()
