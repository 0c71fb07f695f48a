"""Programs without a context, as ``gridflow launch`` starts them: their place is TF_CONFIG's."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gridflow import data
from gridflow.errors import GridflowError, InvalidArgument
from gridflow.tfrecord import write_records
from suite.waiting import LONGEST

PROGRAM = """
import sys
from gridflow.data import parquet_dataset
rows = parquet_dataset(sys.argv[1], batch_size=8, features="x", epoch=1, step=int(sys.argv[2]))
print([x.numpy().tolist() for x in rows])
print(rows.cardinality().numpy())
"""


@pytest.mark.slow
def test_launched_programs_read_their_parts_in_equal_steps(tmp_path):
    pq.write_table(pa.table({"x": range(50)}), tmp_path / "x.parquet", row_group_size=20)
    (tmp_path / "read.py").write_text(PROGRAM)

    def launched(task):
        config = {"cluster": {"chief": ["127.0.0.1:1"], "worker": ["127.0.0.1:2"]}, "task": task}
        words = ["-m", "gridflow.cli", "launch", "--", sys.executable, "read.py", "x.parquet"]
        return subprocess.Popen(
            [sys.executable, *words, str(int(task["type"] == "worker"))],
            cwd=tmp_path,
            env={**os.environ, "TF_CONFIG": json.dumps(config)},
            stdout=subprocess.PIPE,
            text=True,
        )

    tasks = [launched({"type": role, "index": 0}) for role in ("chief", "worker")]
    found = [task.communicate(timeout=LONGEST)[0].splitlines() for task in tasks]
    chief, worker = (json.loads(lines[-2]) for lines in found)
    assert [lines[-1] for lines in found] == ["4", "4"]
    assert len(chief) == 4
    assert len(worker) == 3  # its first step was made before
    own, rest = ([x for batch in batches for x in batch] for batches in (chief, worker))
    assert own == list(range(len(own)))
    assert rest == list(range(50 - len(rest), 50))
    assert len(own) < 50 - len(rest) <= len(own) + 8


def test_a_place_among_the_workers_is_checked(monkeypatch):
    def read(**options):
        return data.parquet_dataset("x", batch_size=1, features="x", **options)

    with pytest.raises(InvalidArgument, match="give both rank= and num_workers="):
        read(rank=1)
    with pytest.raises(InvalidArgument, match="rank=2 is out of range for num_workers=2"):
        read(rank=2, num_workers=2)
    monkeypatch.setenv("TF_CONFIG", "{}")
    with pytest.raises(InvalidArgument, match="can't parse TF_CONFIG"):
        read()
    task = {"type": "worker", "index": 2}
    config = {"cluster": {"worker": ["a:1", "b:1"]}, "task": task}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    with pytest.raises(InvalidArgument, match="worker:2, which isn't in its cluster of worker:0"):
        read()
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": [], "task": task}))
    with pytest.raises(InvalidArgument, match="can't parse TF_CONFIG"):
        read()


def test_options_of_a_dataset_are_checked(tmp_path):
    pq.write_table(pa.table({"x": [1.0]}), tmp_path / "x.parquet")
    for name, value in {"shuffle": "no", "seed": "a", "prefetch": -1, "map": "f"}.items():
        with pytest.raises(InvalidArgument, match=f"{name} must be"):
            data.parquet_dataset(
                str(tmp_path / "x.parquet"), batch_size=1, features="x", **{name: value}
            )


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (None, r"r\.tfrecord holds a record that is no Example"),
        (["x"], r"spec= maps features .*; got \['x'\]"),
    ],
)
def test_records_and_specs_of_a_wrong_kind_are_said(tmp_path, spec, said):
    write_records(tmp_path / "r.tfrecord", [b"hello"])
    with pytest.raises(GridflowError, match=said):
        data.tfrecord_dataset(str(tmp_path / "r.tfrecord"), batch_size=1, features="x", spec=spec)
