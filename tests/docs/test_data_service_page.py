"""The page on the data service: its program runs."""

from __future__ import annotations

import sys

import pytest
from documents import python_blocks, run_as_a_user

WRITES = """
if __name__ == "__main__":
    import pathlib

    import numpy as np
    import tensorflow as tf

    x = np.random.default_rng(1).normal(size=(400, 3)).astype("float32")
    rows = np.concatenate([x, x @ np.array([[1], [2], [-1]], "float32")], axis=1)
    for place in range(4):
        with tf.io.TFRecordWriter(f"{place}.tfrecord") as file:
            for row in rows[place::4]:
                file.write(tf.io.serialize_tensor(row).numpy())
    print("losses", *run(str(pathlib.Path("*.tfrecord").absolute())).history["loss"])
"""


@pytest.mark.slow
@pytest.mark.usefixtures("no_leaks")
def test_the_program_trains_on_what_the_data_workers_decode(tmp_path):
    program = python_blocks("docs/data_service.md")[0] + WRITES
    output = run_as_a_user(sys.executable, program, tmp_path)
    (line,) = [line for line in output.splitlines() if line.startswith("losses ")]
    losses = [float(word) for word in line.split()[1:]]
    assert len(losses) == 5
    assert losses[-1] < losses[0] / 2
    assert "for the data service; elements: " in output


PARQUET = """
import pyarrow as pa
import pyarrow.parquet

def rows(ctx, pattern, schema):
    return [n for batch in reads(ctx, pattern, schema) for n in batch["n"].numpy().tolist()]

if __name__ == "__main__":
    from gridflow import LocalLauncher, Role, TensorflowDistributor

    pa.parquet.write_table(pa.table({"n": range(100)}), "n.parquet")
    schema = converts("n.parquet", "n.tfrecord")
    roles = [Role("worker"), Role("data")]
    distributor = TensorflowDistributor(roles=roles, launcher=LocalLauncher())
    found = distributor.run(rows, str(pathlib.Path("*.tfrecord").absolute()), schema).value
    print("found", sorted(found) == list(range(100)))
"""


@pytest.mark.slow
@pytest.mark.usefixtures("no_leaks")
def test_rows_of_parquet_files_come_from_data_workers_once_they_are_converted(tmp_path):
    program = f"import pathlib\n{python_blocks('docs/data_service.md')[1]}{PARQUET}"
    assert "found True" in run_as_a_user(sys.executable, program, tmp_path)
