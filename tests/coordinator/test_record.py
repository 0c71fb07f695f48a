"""What a job's result.json says, and that what it returned is read back as it was."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gridflow import LocalLauncher, TensorflowDistributor, errors
from gridflow._coordinator import folders, record
from gridflow._coordinator.job import PreparedJob
from gridflow._coordinator.policies import MaxRestarts
from gridflow._coordinator.progress import TaskProgress
from gridflow._coordinator.record import Ending, Outcome
from gridflow._feed.ledger import DatasetCounts, EpochRecord, Ledger
from gridflow._spec.cluster import Task
from gridflow._spec.network import Network
from gridflow._spec.place import Place
from gridflow._wire.failures import Attempt, TaskFailure

LOST = TaskFailure("worker:1", "host-7", "lost", "its executor is gone", log_tail=("x",))
ATTEMPTS = (Attempt(0, 2.0, LOST), Attempt(1, 3.25, None, Place(0, 1, 5), (LOST,), ((1.5, 2),)))


@pytest.fixture
def job(tmp_path):
    spec = TensorflowDistributor(2, "none", launcher=LocalLauncher()).spec
    places = {"job_dir": tmp_path, "checkpoint_dir": tmp_path, "network": Network(host="127.0.0.1")}
    plain = {"program": b"", "modules": b"", "data": {}, "left_out": {}, "restart": MaxRestarts(0)}
    return PreparedJob(id="ab12", spec=spec, run_id="monday", **places, **plain)


def ending(error=None, **changes):
    fields = {
        "began": 1_700_000_000.0,
        "ended": 1_700_000_005.5,
        "error": error,
        "attempts": ATTEMPTS,
        "history": {(0, 1): {"loss": 0.5}, (0, 0): {"loss": 2.0}},
        "warnings": ("a disk was full",),
        "last_step": TaskProgress(Place(0, 2, 0), 8, "train", {}),
    }
    return Ending(**{**fields, **changes})


def test_a_success_is_told_with_its_times_attempts_and_last_values(job):
    said = json.loads(json.dumps(record.describe(job, ending())))
    assert said.pop("gridflow")
    assert said == {
        "version": 1,
        "job": "ab12",
        "run_id": "monday",
        "state": "succeeded",
        "exit_code": 0,
        "error": None,
        "began": "2023-11-14T22:13:20.000+00:00",
        "ended": "2023-11-14T22:13:25.500+00:00",
        "seconds": 5.5,
        "strategy": "none",
        "backend": "tensorflow",
        "tasks": ["worker:0", "worker:1"],
        "attempts": [
            {
                "generation": 0,
                "seconds": 2.0,
                "resumed_at": None,
                "failure": "worker:1: its executor is gone",
                "replaced": [],
                "sizes": [],
            },
            {
                "generation": 1,
                "seconds": 3.25,
                "resumed_at": {"fit": 0, "epoch": 1, "step": 5},
                "failure": None,
                "replaced": ["worker:1: its executor is gone"],
                "sizes": [[1.5, 2]],
            },
        ],
        "preemptions": 0,
        "epochs": 2,
        "place": {"fit": 0, "epoch": 2, "step": 0, "steps_per_epoch": 8},
        "history": {"loss": 0.5},
        "not_finite": None,
        "warnings": ["a disk was full"],
    }


def test_a_failure_is_told_with_its_kind_its_code_and_the_first_task(job):
    said = record.describe(job, ending(errors.TaskLost("all of it", (LOST,))))
    assert (said["state"], said["exit_code"]) == ("failed", 197)
    assert (said["error"]["kind"], said["error"]["message"]) == ("TaskLost", "all of it")
    first = said["error"]["first"]
    assert (first["task"], first["host"], first["kind"]) == ("worker:1", "host-7", "lost")
    cancelled = record.describe(job, ending(errors.JobCancelled("by a person")))
    assert (cancelled["state"], cancelled["exit_code"]) == ("cancelled", 130)
    assert cancelled["error"]["first"] is None


def test_what_never_began_has_no_place_and_no_values(job):
    said = record.describe(job, ending(errors.StartTimeout(""), history={}, last_step=None))
    assert (said["epochs"], said["place"], said["history"]) == (0, None, {})


def test_every_json_parser_reads_a_loss_that_is_no_number(job):
    said = record.describe(job, ending(history={(0, 0): {"loss": float("nan"), "mae": 1.0}}))
    assert said["history"] == {"loss": None, "mae": 1.0}
    json.dumps(said, allow_nan=False)


def test_a_result_is_there_whole_or_not_at_all(tmp_path):
    record.write(tmp_path, record.RESULT, {"state": "failed"})
    with pytest.raises(TypeError):
        record.write(tmp_path, record.RESULT, {"state": object()})
    assert record.read_result(tmp_path) == {"state": "failed"}
    (tmp_path / record.RESULT).write_text('{"state": ')
    assert record.read_result(tmp_path) is None


def test_an_outcome_is_read_back_as_it_was(tmp_path):
    ledger = Ledger()
    ledger.set_counts("train", 0, DatasetCounts(rows_in=10, rows=9, dropped=1, nulls={"x": 1}))
    ledger.add(EpochRecord("train", 0, 0, 12, 3, 0, complete=True))
    logs = {Task("worker", 0): tmp_path / "logs" / "worker-0.log"}
    outcome = Outcome(
        results=({"kind": "pickle", "files": ["value"]}, {"kind": "none", "files": []}),
        history={(0, 0): {"loss": float("inf")}, (1, 0): {"loss": 0.1}},
        ledger=ledger,
        attempts=ATTEMPTS,
        log_paths=logs,
        tensorboard_url=None,
        evaluation={Place(0, 1, 0): {"loss": 0.2}},
        not_finite="a loss of nan in epoch 0",
    )
    record.write_outcome(tmp_path, outcome)
    again = record.read_outcome(tmp_path)
    assert again.ledger.to_dict() == ledger.to_dict()
    unlike = {"ledger": None}
    assert {**vars(again), **unlike} == {**vars(outcome), **unlike}


@pytest.mark.parametrize("text", ["", "[]", '{"version": 2}', '{"version": 1}'])
def test_an_outcome_that_cannot_be_read_is_an_error_and_no_silent_new_training(tmp_path, text):
    (tmp_path / record.OUTCOME).write_text(text)
    with pytest.raises(errors.GridflowError, match="Delete the folder to train again"):
        record.read_outcome(tmp_path)


def test_a_run_that_goes_on_cannot_be_started_a_second_time(tmp_path):
    claim = folders.Claim(tmp_path, "monday")
    with pytest.raises(errors.JobExists, match=rf"by process {os.getpid()} on "):
        folders.Claim(tmp_path, "monday")
    claim.release()
    folders.Claim(tmp_path, "monday").release()


def test_a_run_whose_driver_was_killed_can_be_started_again(tmp_path):
    code = (
        "import sys; from pathlib import Path; from gridflow._coordinator import folders\n"
        "claim = folders.Claim(Path(sys.argv[1]), 'monday')\n"
        "print('claimed', flush=True); sys.stdin.read()"
    )
    words = [sys.executable, "-c", code, str(tmp_path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(words, **pipes) as driver:
        driver.stdout.readline()
        with pytest.raises(errors.JobExists, match=f"by process {driver.pid} "):
            folders.Claim(tmp_path, "monday")
        driver.kill()
        driver.wait()
    folders.Claim(tmp_path, "monday").release()


def start(folder, **options):
    return TensorflowDistributor(
        1, "none", launcher=LocalLauncher(), job_dir=folder, run_id="monday", **options
    ).start(print)


def test_a_run_whose_start_failed_can_be_started_again(tmp_path):
    no_folder = tmp_path / "file"
    no_folder.touch()
    for _ in range(2):  # the second one would find the run claimed
        with pytest.raises(errors.InvalidArgument, match="not a folder"):
            start(tmp_path, checkpoint_dir=no_folder)
    (tmp_path / "monday" / record.RESULT).write_text('{"state": "succeeded"}')
    (tmp_path / "monday" / record.OUTCOME).write_text("{")
    with pytest.raises(errors.GridflowError, match="can't be read"):
        start(tmp_path)
    folders.Claim(tmp_path, "monday").release()


def test_a_claim_that_finds_the_disk_full_is_none(tmp_path):
    (tmp_path / "monday" / "driver.json").mkdir(parents=True)  # can't be written
    for _ in range(2):
        with pytest.raises(errors.InvalidArgument, match="Is a directory"):
            folders.Claim(tmp_path, "monday")
    (tmp_path / "monday" / "driver.json").rmdir()
    folders.Claim(tmp_path, "monday").release()


@pytest.mark.parametrize("way", ["release", "death"])
def test_a_process_that_a_driver_forked_does_not_hold_its_claim(tmp_path, way):
    code = (
        "import os, sys; from pathlib import Path; from gridflow._coordinator import folders\n"
        "claim = folders.Claim(Path(sys.argv[1]), 'monday')\n"
        "if not os.fork():\n"
        "    os.write(1, b'forked\\n'); sys.stdin.read(); os._exit(0)\n"
        "if sys.argv[2] == 'release':\n"
        "    claim.release()\n"
        "os.write(1, b'done\\n')\n"
        "os._exit(0) if sys.argv[2] == 'death' else os.wait()"
    )
    words = [sys.executable, "-c", code, str(tmp_path), way]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as driver:
        assert {driver.stdout.readline() for _ in range(2)} == {b"forked\n", b"done\n"}
        if way == "death":
            driver.wait()
        folders.Claim(tmp_path, "monday").release()


@pytest.mark.parametrize("run_id", ["", "a/b", "..", "x" * 201, 7, "ä"])
def test_a_run_id_that_can_be_no_folder_is_refused(run_id, tmp_path):
    with pytest.raises(errors.InvalidArgument, match="run_id= must be a valid folder name"):
        TensorflowDistributor(launcher=LocalLauncher(), run_id=run_id, job_dir=tmp_path)


def test_a_run_id_needs_a_place_to_be_remembered():
    with pytest.raises(errors.InvalidArgument, match="job_dir="):
        TensorflowDistributor(launcher=LocalLauncher(), run_id="monday")


def test_the_ids_of_airflow_and_argo_are_taken(tmp_path):
    for run_id in ("scheduled__2026-11-23T02:00:00+00:00", "flights-x7k2p", "manual__2026.1"):
        TensorflowDistributor(launcher=LocalLauncher(), run_id=run_id, job_dir=Path(tmp_path))
