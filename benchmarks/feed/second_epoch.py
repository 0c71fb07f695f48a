"""(d) An epoch from the spool against tf.data over the same arrays in memory, in one process."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np
import pyarrow as pa
from consumer import drain, open_dataset
from measure import NUMBERS, SHAPES

from gridflow._feed.store import SpoolWriter


def timed(dataset) -> dict[str, float]:
    cpu, wall = time.process_time(), time.monotonic()
    drain(dataset)
    return {"cpu": time.process_time() - cpu, "wall": time.monotonic() - wall}


def main(repetitions: int) -> None:
    import tensorflow as tf

    results = {}
    random = np.random.default_rng(0)
    for shape, options in SHAPES.items():
        rows, batch = options["rows_kept"], options["batch"]
        if shape == "784 floats":
            x, y = random.random((rows, 784), np.float32), np.arange(rows)
            columns = {"x": pa.FixedSizeListArray.from_arrays(x.ravel(), 784), "y": y}
        else:
            x, y = random.random((rows, 10), np.float32), random.random(rows, np.float32)
            values = [*np.ascontiguousarray(x.T), y]
            columns = dict(zip(NUMBERS, values, strict=True))
        with tempfile.TemporaryDirectory() as directory:
            with SpoolWriter(Path(directory)) as writer:
                for rows_of in pa.table(columns).to_batches(max_chunksize=5000):
                    writer.write("train", rows_of)
            memory = tf.data.Dataset.from_tensor_slices((x, y))
            variants = {
                "memory": memory.batch(batch).prefetch(2),
                "spool": open_dataset(Path(directory), shape, batch),
                "memory, shuffled": memory.shuffle(20_000).batch(batch).prefetch(2),
                "spool, shuffled": open_dataset(Path(directory), shape, batch, shuffle=True),
            }
            samples = {name: [] for name in variants}
            for dataset in variants.values():
                drain(dataset)
            for _ in range(repetitions):
                for name, dataset in variants.items():
                    samples[name].append(timed(dataset))
            results[shape] = {"rows": rows, "samples": samples}
    print("RESULT " + json.dumps(results))


if __name__ == "__main__":
    main(int(sys.argv[1]))
