"""What orchestrators see of a job: its record, and what becomes of it when it is started again."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from gridflow import LocalLauncher, TensorflowDistributor, TrainingFailed, cli
from suite.waiting import patience

pytestmark = pytest.mark.slow
QUIET = {"logs": "none", "progress": False}


def trains(ctx, folder):
    """Train three epochs; the first time fail in the second."""
    from pathlib import Path

    import numpy as np

    import keras

    class Fails(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            with Path(folder, "epochs").open("a") as file:
                file.write(f"{epoch}\n")

        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 1 and not Path(folder, "failed").exists():
                Path(folder, "failed").touch()
                raise ValueError("as asked")

    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x = np.ones((8, 2), "float32")
    callbacks = [*ctx.callbacks(), Fails()]
    model.fit(x, x[:, :1], epochs=3, shuffle=False, verbose=0, callbacks=callbacks)
    return {"answer": 42}


def result_of(folder):
    return json.loads((folder / "result.json").read_text())


def test_a_run_goes_on_after_a_failure_and_is_not_trained_again_after_its_success(tmp_path, capsys):
    options = {**QUIET, "launcher": LocalLauncher(), "job_dir": tmp_path, "run_id": "monday"}
    distributor = TensorflowDistributor(1, **options)
    with pytest.raises(TrainingFailed, match="as asked"):
        distributor.run(trains, str(tmp_path))
    first = result_of(tmp_path / "monday")
    assert (first["state"], first["exit_code"], first["epochs"]) == ("failed", 70, 1)
    assert first["error"]["kind"] == "TrainingFailed"
    assert first["error"]["first"]["task"] == "worker:0"
    assert cli.main(["jobs", "--dir", str(tmp_path)]) == 0
    assert "TrainingFailed (70)" in capsys.readouterr().out

    result = distributor.run(trains, str(tmp_path))
    assert result.value == {"answer": 42}
    assert result.attempts[0].resumed_from == (1, 0)
    assert (tmp_path / "epochs").read_text().split() == ["0", "1", "2"]
    second = result_of(tmp_path / "monday")
    assert (second["state"], second["exit_code"], second["epochs"]) == ("succeeded", 0, 3)
    assert second["history"] == {"loss": result.history["loss"][-1]}
    assert (second["place"]["fit"], second["place"]["epoch"]) == (0, 2)
    assert not list((tmp_path / "monday" / "checkpoints").glob("checkpoint-*"))
    capsys.readouterr()

    again = TensorflowDistributor(1, **options)
    handle = again.start(trains, str(tmp_path))
    recorded = handle.result(timeout=patience())
    assert "nothing is trained again" in capsys.readouterr().out
    assert (tmp_path / "epochs").read_text().split() == ["0", "1", "2"]
    assert recorded.value == {"answer": 42}
    assert recorded.histories == result.histories
    assert recorded.attempts == result.attempts
    assert recorded.logs(0) == result.logs(0)
    assert handle.state == handle.report.state == "succeeded"
    assert handle.logs("worker:0") == result.logs(0)
    handle.wait_until("training")
    assert handle.feed([1]) == 0
    handle.stop()
    assert result_of(tmp_path / "monday") == second


def test_a_job_that_is_cancelled_says_so(tmp_path):
    distributor = TensorflowDistributor(1, **QUIET, launcher=LocalLauncher(), job_dir=tmp_path)
    handle = distributor.start(print)
    handle.cancel()
    with pytest.raises(Exception, match="cancelled"):
        handle.result(timeout=patience())
    said = result_of(Path(handle.job_dir))
    assert (said["state"], said["exit_code"]) == ("cancelled", 130)


def in_the_way(ctx, path):
    """Put a folder where the driver is to write or delete a file."""
    from pathlib import Path

    Path(path, "file").parent.mkdir(parents=True)
    Path(path, "file").touch()
    return {"answer": 42}


def a_file(ctx, path):
    """Make a file."""
    from pathlib import Path

    Path(path).touch()
    return {"answer": 42}


def test_a_job_has_succeeded_even_if_its_checkpoints_can_not_be_deleted(tmp_path, capsys):
    distributor = TensorflowDistributor(
        1, **QUIET, launcher=LocalLauncher(), job_dir=tmp_path, checkpoint_dir=tmp_path / "c"
    )
    left = tmp_path / "c" / "checkpoint-0000-000001-000000000.npz"
    handle = distributor.start(in_the_way, str(left))
    with pytest.warns(RuntimeWarning, match="can't delete its checkpoints: .* resumes from"):
        result = handle.result()
    assert result.value == {"answer": 42}
    assert handle.state == result_of(handle.job_dir)["state"] == "succeeded"
    assert (
        "[gridflow] the job has succeeded, but can't delete its checkpoints"
        in capsys.readouterr().out
    )
    assert [path.name for path in (tmp_path / "c").iterdir()] == [left.name]


def test_a_result_is_returned_even_if_it_can_not_be_kept_for_another_start(tmp_path):
    options = {**QUIET, "launcher": LocalLauncher(), "job_dir": tmp_path, "run_id": "monday"}
    with pytest.warns(RuntimeWarning, match="can't keep the result"):
        result = TensorflowDistributor(1, **options).run(
            in_the_way, str(tmp_path / "monday" / "outcome.json")
        )
    assert result.value == {"answer": 42}
    assert not (tmp_path / "monday" / "result.json").exists()


def test_a_result_that_the_disk_refuses_is_handed_over_and_nothing_is_trained_again(tmp_path):
    options = {**QUIET, "launcher": LocalLauncher(), "job_dir": tmp_path, "run_id": "monday"}
    there = tmp_path / "monday" / "result"  # where a folder should be
    with pytest.warns(RuntimeWarning, match="kept in this process's memory"):
        result = TensorflowDistributor(1, **options, max_restarts=3).run(a_file, str(there))
    assert result.value == {"answer": 42}
    assert len(result.attempts) == 1
    (warning,) = result.warnings
    assert f"the job's folder {tmp_path / 'monday'} on {socket.gethostname()}: File ex" in warning
    assert not (tmp_path / "monday" / "outcome.json").exists()
