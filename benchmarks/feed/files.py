"""Rows of files into tf.data beside what a user would pick: ``files.py [times [shape …]]``.

The same rows as Parquet and as TFRecord, read from the page cache by one process, and by two that
share them. Each repetition is an epoch of its own; rates are medians of rows per second and per
CPU-second of the reading processes, once they are started and have read an epoch before.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

#: Name -> rows, batch size.
SHAPES = {
    "784 floats": (32_000, 256),
    "11 numbers": (400_000, 1024),
    "11 numbers, large batches": (4_000_000, 8192),
    "images of 100 KB": (6_400, 32),
}
NUMBERS = [f"c{i}" for i in range(11)]
#: Who reads, and which files.
READERS = {
    "pyarrow.dataset, batches only": "arrow",
    "gridflow, parquet_dataset": "parquet",
    "gridflow, tfrecord_dataset": "tfrecord",
    "tf.data, TFRecordDataset and parse_example": "tf.data",
    "pyarrow.dataset, its batches as tensors": "tensors",
    "tf.data, batches that are ready in memory": "ready",
}
RECORDS = {"tfrecord", "tf.data"}
#: Who doesn't read a shape. What a tensor costs at least is of interest where that is more than to
#: read its rows: to make it of images, and to be handed batches of few bytes. Millions of records
#: take minutes to write.
LEFT_OUT = {
    "784 floats": {"tensors", "ready"},
    "11 numbers": {"tensors"},
    "11 numbers, large batches": {"tensors", *RECORDS},
    "images of 100 KB": {"ready"},
}


def table(shape: str, rows: int):
    import numpy as np
    import pyarrow as pa

    rng = np.random.default_rng(1)
    if shape == "784 floats":
        pixels = pa.array(rng.random(rows * 784, dtype=np.float32))
        x = pa.FixedSizeListArray.from_arrays(pixels, 784).cast(pa.list_(pa.float32()))
        return pa.table({"x": x, "y": pa.array(np.arange(rows) % 10)})
    if shape.startswith("11 numbers"):
        return pa.table({name: rng.random(rows, dtype=np.float32) for name in NUMBERS})
    images = [rng.bytes(100_000) for _ in range(rows)]
    return pa.table({"x": pa.array(images, pa.binary()), "y": pa.array(np.arange(rows) % 10)})


def write(folder: Path, shape: str, rows: int) -> None:
    import pyarrow.parquet as pq

    from gridflow.tfrecord import serialize_example, write_records

    made = table(shape, rows)
    for number, first in enumerate(range(0, rows, rows // 4)):
        part = made.slice(first, rows // 4)
        groups = max(1, rows // 16)
        (folder / "parquet").mkdir(exist_ok=True)
        pq.write_table(part, folder / "parquet" / f"{number}.parquet", row_group_size=groups)
        if LEFT_OUT[shape] >= RECORDS:
            continue
        (folder / "tfrecord").mkdir(exist_ok=True)
        columns = [values_of(column) for column in part.combine_chunks().columns]
        examples = (
            serialize_example(dict(zip(part.schema.names, values, strict=True)))
            for values in zip(*columns, strict=True)
        )
        write_records(folder / "tfrecord" / f"{number}.tfrecord", examples)


def values_of(column):
    """Return the values of each row as a feature takes them."""
    import pyarrow as pa

    array = column.combine_chunks()
    if pa.types.is_list(array.type):
        return array.flatten().to_numpy().reshape(len(array), -1)
    if pa.types.is_binary(array.type):
        return [[value] for value in array.to_pylist()]
    return array.to_numpy().reshape(-1, 1)


def forms(shape: str) -> dict:
    if shape.startswith("11 numbers"):
        return {"features": [NUMBERS[:10]], "label": "c10"}
    return {"features": "x", "label": "y"}


def reader(kind: str, folder: Path, shape: str, batch: int, rank: int, ranks: int):
    """Return a function that reads an epoch of a rank's share and returns its rows."""
    files = sorted(folder.glob(f"{'tfrecord' if kind in RECORDS else 'parquet'}/*"))
    import pyarrow.dataset as ds

    if kind == "arrow":
        return lambda: sum(
            each.num_rows for each in ds.dataset(files[rank::ranks]).to_batches(batch_size=65_536)
        )
    if kind == "tensors":
        return lambda: sum(map(tensors_of, ds.dataset(files[rank::ranks]).to_batches()))
    if kind == "ready":
        dataset = ready_dataset(files[rank::ranks], batch)
    elif kind == "tf.data":
        dataset = plain_dataset(files[rank::ranks], shape, batch)
    else:
        import gridflow.data

        make = getattr(gridflow.data, f"{kind}_dataset")
        place = {"rank": rank, "num_workers": ranks}
        dataset = make([str(f) for f in files], batch_size=batch, **forms(shape), **place)
        steps = len(dataset) if len(dataset) > 0 else None
        dataset = dataset.take(steps) if steps else dataset
    return lambda: sum(int(y.shape[0]) for _, y in dataset)


def tensors_of(batch) -> int:
    """Make tensors of a batch of images, 32 at a time, and nothing else."""
    import tensorflow as tf

    for first in range(0, batch.num_rows, 32):
        tf.constant(batch.column("x").slice(first, 32).to_numpy(zero_copy_only=False))
    return batch.num_rows


def ready_dataset(files: list[Path], batch: int):
    """Return the whole batches of the rows of numbers, from memory."""
    import numpy as np
    import pyarrow.dataset as ds
    import tensorflow as tf

    read = ds.dataset(files).to_table()
    columns = np.stack([read.column(name).to_numpy() for name in NUMBERS], axis=1)
    whole = columns[: len(columns) // batch * batch].reshape(-1, batch, len(NUMBERS))
    arrays = np.ascontiguousarray(whole[..., :10]), np.ascontiguousarray(whole[..., 10])
    return tf.data.Dataset.from_tensor_slices(arrays).prefetch(2)


def plain_dataset(files: list[Path], shape: str, batch: int):
    """Return what TensorFlow's guide to TFRecord says, batches parsed together."""
    import tensorflow as tf

    if shape.startswith("11 numbers"):
        spec = {name: tf.io.FixedLenFeature((), tf.float32) for name in NUMBERS}
    else:
        kind = tf.io.FixedLenFeature((784,), tf.float32)
        x = kind if shape == "784 floats" else tf.io.FixedLenFeature((), tf.string)
        spec = {"x": x, "y": tf.io.FixedLenFeature((), tf.int64)}

    def parse(records):
        found = tf.io.parse_example(records, spec)
        if shape.startswith("11 numbers"):
            return tf.stack([found[name] for name in NUMBERS[:10]], 1), found["c10"]
        return found["x"], found["y"]

    records = tf.data.TFRecordDataset([str(f) for f in files], num_parallel_reads=tf.data.AUTOTUNE)
    return records.batch(batch).map(parse, num_parallel_calls=tf.data.AUTOTUNE).prefetch(2)


def work(kind: str, folder: str, shape: str, batch: str, rank: str, ranks: str) -> None:
    """Be a process that reads: an epoch for each line of stdin."""
    read = reader(kind, Path(folder), shape, int(batch), int(rank), int(ranks))
    read()
    print("ready", flush=True)
    for _ in sys.stdin:
        cpu, wall = time.process_time(), time.monotonic()
        rows = read()
        spent = {"cpu": time.process_time() - cpu, "wall": time.monotonic() - wall, "rows": rows}
        print(json.dumps(spent), flush=True)


def measured(kind: str, folder: Path, shape: str, batch: int, ranks: int, times: int):
    """Return rows per second and per CPU-second."""
    processes = [
        subprocess.Popen(
            [
                sys.executable,
                __file__,
                "--read",
                kind,
                folder,
                shape,
                str(batch),
                str(rank),
                str(ranks),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""},
        )
        for rank in range(ranks)
    ]
    try:
        for process in processes:
            assert process.stdout.readline() == "ready\n", f"{kind} doesn't come up"
        walls, cpus, rows = [], [], 0
        for _ in range(times):
            for process in processes:
                process.stdin.write("\n")
                process.stdin.flush()
            found = [json.loads(process.stdout.readline()) for process in processes]
            walls.append(max(each["wall"] for each in found))
            cpus.append(sum(each["cpu"] for each in found))
            rows = sum(each["rows"] for each in found)
    finally:
        for process in processes:
            process.stdin.close()
            process.wait()
    return rows / statistics.median(walls), rows / statistics.median(cpus)


def main(times: int, shapes: list[str]) -> None:
    print(f"\nFiles into tf.data, medians of {times} epochs\n")
    print(f"{'':<66}{'rows/s':>12}{'rows/CPU-s':>12}{'/ arrow':>9}{'/ arrow, CPU':>14}")
    for shape in shapes or SHAPES:
        rows, batch = SHAPES[shape]
        folder = Path(tempfile.mkdtemp(prefix="gridflow-bench-"))
        try:
            write(folder, shape, rows)
            for ranks in (1, 2):
                alone = None
                for name, kind in READERS.items():
                    if kind in LEFT_OUT[shape]:
                        continue
                    what = f"{shape}, {ranks} process{'es' * (ranks > 1)}: {name}"
                    found = measured(kind, folder, shape, batch, ranks, times)
                    alone = alone or found
                    wall, cpu = found
                    print(
                        f"{what:<66}{wall:>12,.0f}{cpu:>12,.0f}{wall / alone[0]:>9.2f}"
                        f"{cpu / alone[1]:>14.2f}",
                        flush=True,
                    )
        finally:
            shutil.rmtree(folder)


if __name__ == "__main__":
    if "--read" in sys.argv:
        work(*sys.argv[2:])
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 5, sys.argv[2:])
