"""Files that a program leaves in its folder are deleted, and named."""

from __future__ import annotations

from pathlib import Path

import pytest

from gridflow import LocalLauncher, TensorflowDistributor, TrainingFailed
from gridflow._training.process import describe

QUIET = {"launcher": LocalLauncher(), "logs": "none", "progress": False}


def test_files_are_named_with_their_size_but_for_what_is_nobodys_work(tmp_path):
    assert describe(tmp_path) == ""
    (tmp_path / "empty").mkdir()
    (tmp_path / ".gridflow").mkdir()
    (tmp_path / ".gridflow" / "checkpoint-0-1-0.npz").write_bytes(b"x")
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "a.pyc").write_bytes(b"x")
    assert describe(tmp_path) == ""
    (tmp_path / "logs" / "train").mkdir(parents=True)
    for name in ("a", "b"):
        (tmp_path / "logs" / "train" / name).write_bytes(b"x" * 1000)
    (tmp_path / "my_model.keras").write_bytes(b"x" * 3)
    (tmp_path / "link").symlink_to("/")
    words = describe(tmp_path)
    assert "link (1 bytes), logs/ (2 files, 2 KiB), my_model.keras (3 bytes). To keep" in words
    for number in range(9):
        (tmp_path / f"a{number}\x1b[2J").touch()
    assert "a4" in (words := describe(tmp_path))
    assert "and 7 more" in words
    assert "\x1b" not in words


def leave(ctx, fails):
    """Write by relative paths."""
    Path("logs").mkdir()
    Path("logs", f"rank-{ctx.rank}.txt").write_text("all went well")
    if fails:
        raise ValueError("no such luck")


@pytest.mark.slow
def test_the_log_says_what_is_gone(tmp_path):
    result = TensorflowDistributor(1, "none", **QUIET).run(leave, False)
    said = "gridflow: deleted with this task's folder: logs/ (1 file, 13 bytes). To keep such files"
    assert said in result.logs(0)
    with pytest.raises(TrainingFailed) as caught:
        TensorflowDistributor(1, "none", **QUIET).run(leave, True)
    assert any(line.startswith(said) for line in caught.value.first.log_tail)


def hold(ctx, folder):
    """Return what the process holds after each quarter of 200 uses of its rows."""
    import gc
    import os
    import threading

    import pyarrow as pa
    import pyarrow.parquet as pq

    import keras

    rows = {"x": [0.5] * 24, "y": [1.0] * 24}
    pq.write_table(pa.table(rows), f"{folder}/rows.parquet", row_group_size=8)
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    columns = {"batch_size": 8, "features": "x", "label": "y"}
    found = []
    for use in range(200):
        if use % 8:
            dataset = ctx.dataset(**columns)
        else:
            dataset = ctx.parquet_dataset(folder, name=f"files{use}", **columns)
        if use % 4 == 0:
            for _ in dataset:
                pass
        elif use % 4 == 1:
            model.fit(dataset, verbose=0)
        elif use % 4 == 2:
            model.evaluate(dataset, verbose=0)
        else:
            model.predict(dataset, verbose=0)
        if use % 50 == 49:
            del dataset
            gc.collect()
            maps = Path("/proc/self/maps").read_text().count(".arrow")
            own = [t for t in threading.enumerate() if t.name.startswith("gridflow-files")]
            found.append([len(os.listdir("/proc/self/fd")), maps, len(own)])
    return found


@pytest.mark.slow
def test_200_datasets_fits_evaluations_and_predictions_leave_nothing_open(tmp_path):
    (tmp_path / "rows").mkdir()
    rows = {"x": [0.5] * 24, "y": [1.0] * 24}
    distributor = TensorflowDistributor(1, "none", **QUIET)
    found = distributor.run(hold, str(tmp_path / "rows"), data={"train": rows}).value
    assert found[1:] == found[1:2] * 3, found
    assert found[-1][1:] == [0, 0], found
