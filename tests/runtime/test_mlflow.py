"""A job is one run of MLflow, whatever happens to its tasks and drivers."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest
from pyspark.sql.functions import struct

from gridflow import InvalidArgument, SparkLauncher, TensorflowDistributor
from gridflow._coordinator.progress import JobReport
from gridflow._wire.failures import TaskFailure
from gridflow.errors import JobCancelled, MissingDependency, TrainingFailed
from gridflow.observers import JobEnd, JobStart, MLflow
from suite.ports import free_ports
from suite.waiting import patience, wait_for

#: MLflow's own command needs packages beside mlflow-skinny; its application doesn't.
SERVER = """
import os, sys
folder, port = sys.argv[1:]
os.environ |= {
    "_MLFLOW_SERVER_FILE_STORE": f"sqlite:///{folder}/mlflow.db",
    "_MLFLOW_SERVER_ARTIFACT_ROOT": "mlflow-artifacts:/",
    "_MLFLOW_SERVER_ARTIFACT_DESTINATION": f"{folder}/artifacts",
    "_MLFLOW_SERVER_SERVE_ARTIFACTS": "true",
}
from mlflow.server import app
from werkzeug.serving import run_simple
run_simple("127.0.0.1", int(port), app, threaded=True)
"""
#: Its first driver is killed in the third epoch, after a worker was killed in the second.
DRIVER = """
import sys
from pathlib import Path

import numpy as np

from gridflow import LocalLauncher, TensorflowDistributor
from gridflow.observers import MLflow

folder, uri, workers = sys.argv[1:]


def train(ctx, folder):
    import os, signal, time
    from pathlib import Path

    import keras

    class Dies(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 1 and ctx.num_workers == 2 and ctx.rank == 1 and not ctx.generation:
                os.kill(os.getpid(), signal.SIGKILL)
            if epoch == 2 and ctx.num_workers == 2:
                Path(folder, "third").touch()
                time.sleep(600)

    with ctx.strategy.scope():
        model = keras.Sequential([keras.Input((4,), name="x"), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    rows = ctx.dataset("train", batch_size=16, features="x", label="y")
    callbacks = [*ctx.callbacks(tensorboard=False), Dies()]
    model.fit(rows, epochs=4, verbose=0, callbacks=callbacks)
    return model


x = np.random.default_rng(0).normal(size=(320, 4)).astype("float32")
result = TensorflowDistributor(
    int(workers),
    "multi_worker_mirrored",
    launcher=LocalLauncher(),
    job_dir=folder,
    run_id="monday",
    max_restarts=1,
    logs="none",
    observers=[MLflow("flights", tracking_uri=uri, register="flights", params={"lr": 0.01})],
).run(train, folder, data={"train": {"x": x, "y": x[:, 0]}})

import mlflow
import pandas as pd

mlflow.set_tracking_uri(uri)
found = mlflow.pyfunc.load_model("models:/flights/1").predict(pd.DataFrame({"x": list(x)}))
expected = result.model.load().predict(x, verbose=0)
print("predicted", np.allclose(found.to_numpy(), expected, atol=1e-5))
"""
LOST = TaskFailure("worker:1", "host1", "signal", "killed by SIGKILL")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Give the address of an MLflow server, with its database in a file."""
    folder = tmp_path_factory.mktemp("mlflow")
    (port,) = free_ports(1)
    address = f"http://127.0.0.1:{port}"
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", SERVER, str(folder), str(port)],
            stdout=log,
            stderr=log,
            env={**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"},
        )

    def is_up():
        assert process.poll() is None, (folder / "log").read_text()
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"{address}/health") as answer:
            return answer.status == 200

    try:
        wait_for(is_up, "MLflow's server", ignoring=(OSError,))
        yield address
    finally:
        process.terminate()
        process.wait(patience())


@pytest.fixture
def client(server, monkeypatch):
    """Give a client of the server, and its address."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    from mlflow import MlflowClient

    return MlflowClient(server), server


def only_run(client, experiment):
    found = client.get_experiment_by_name(experiment)
    (run,) = client.search_runs([found.experiment_id])
    return run


def steps_of(client, run, name):
    return [each.step for each in client.get_metric_history(run.info.run_id, name)]


def ends(state, error=None, generation=0):
    return JobEnd(state, error, 1.0, JobReport(state, generation, {}, 0, {}, (), None))


@pytest.mark.slow
def test_killed_workers_and_drivers_and_a_changed_group_go_on_with_one_run(client, tmp_path):
    client, address = client
    folder = tmp_path / "jobs"
    script = tmp_path / "driver.py"
    script.write_text(DRIVER)

    def driver(workers):
        words = [sys.executable, str(script), str(folder), address, str(workers)]
        return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    first = driver(2)
    try:
        wait_for(lambda: (folder / "third").exists() or first.poll() is not None, "the third epoch")
        assert first.poll() is None, first.stdout.read()
        wait_for(
            lambda: steps_of(client, only_run(client, "flights"), "loss") == [0, 1], "two epochs"
        )
        assert only_run(client, "flights").info.status == "RUNNING"
    finally:
        first.send_signal(signal.SIGKILL)
        first.communicate()
    second = driver(1)
    said, _ = second.communicate(timeout=patience())
    assert second.returncode == 0, said
    assert "predicted True" in said
    run = only_run(client, "flights")
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "monday"
    assert steps_of(client, run, "loss") == [0, 1, 2, 3]
    steps = steps_of(client, run, "worker_0/loss")
    assert steps == sorted(set(steps))
    samples = steps_of(client, run, f"system/{socket.gethostname()}/cpu_utilization_percentage")
    assert samples == list(range(len(samples)))
    assert len(samples) >= 2  # of each driver
    assert run.data.params["num_workers"] == "2"
    assert run.data.params["lr"] == "0.01"
    assert run.data.tags["gridflow.now.num_workers"] == "1"
    assert run.data.tags["gridflow.last_restart"].startswith("worker:1 on ")
    assert "gridflow.error" not in run.data.tags
    assert client.get_registered_model("flights").latest_versions[0].version == "1"
    (rows,) = run.inputs.dataset_inputs
    assert rows.dataset.name == "train"
    names = {each.path for each in client.list_artifacts(run.info.run_id)}
    assert names == {"ledger.json", "model", "report.html", "result.json"}
    path = client.download_artifacts(run.info.run_id, "result.json", str(tmp_path))
    with open(path) as file:
        assert json.load(file)["state"] == "succeeded"


@pytest.mark.filterwarnings(
    "ignore:.*Any type hint is inferred", "ignore:.*An input example was not provided"
)
def test_spark_predicts_with_the_model_of_a_run_whose_signature_has_its_schema(
    spark, client, monkeypatch
):
    client, address = client
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)

    def makes(ctx):
        import keras

        x, more = keras.Input((2,), name="x"), keras.Input((1,), name="more")
        both = keras.layers.Concatenate()([x, more])
        total = keras.layers.Dense(1, kernel_initializer="ones", name="total")(both)
        return keras.Model({"x": x, "more": more}, {"total": total, "twice": 2 * x})

    rows = spark.range(4).selectExpr("array(float(id), 1f) AS x", "double(id) AS more")
    TensorflowDistributor(
        launcher=SparkLauncher(spark),
        logs="none",
        progress=False,
        observers=[MLflow("schemas", tracking_uri=address)],
    ).run(makes, data=rows)
    run = only_run(client, "schemas")
    (dataset,) = (each.dataset for each in run.inputs.dataset_inputs)
    assert json.loads(dataset.schema) == {"x": "array<float>", "more": "double"}
    assert dataset.digest
    import mlflow

    uri = f"runs:/{run.info.run_id}/model"
    signature = mlflow.models.get_model_info(uri).signature.to_dict()
    inputs = {each["name"]: each["type"] for each in json.loads(signature["inputs"])}
    assert inputs == {"x": "array", "more": "double"}
    predict = mlflow.pyfunc.spark_udf(spark, uri, result_type="float", env_manager="local")
    found = rows.withColumn("p", predict(struct("x", "more"))).collect()
    assert sorted(row.p for row in found) == [1.0, 3.0, 5.0, 7.0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("state", "error", "status"),
    [
        ("failed", TrainingFailed("no", failures=(LOST,)), "FAILED"),
        ("cancelled", JobCancelled("by you"), "KILLED"),
    ],
)
def test_a_failure_is_the_runs_status_and_a_tag_until_it_goes_on(
    client, tmp_path, capsys, state, error, status
):
    client, address = client
    address = address.replace("//", "//me:secret@")
    job = JobStart("a1", "monday", tmp_path, ("worker:0", "worker:1"), {"seed": 1})
    observer = MLflow(state, tracking_uri=address)
    observer.begin(job)
    for task in job.tasks:
        observer.metrics(2, {"loss": 0.5}, task)
    observer.epoch(0, {"loss": 0.5})
    observer.restart(LOST)
    observer.end(ends(state, error, 1))
    run = only_run(client, state)
    assert run.info.status == status
    assert run.data.tags["gridflow.error"] == type(error).__name__
    assert run.data.tags["gridflow.restarts"] == "1"
    failure = "worker:1 on host1: signal: killed by SIGKILL"
    assert run.data.tags["gridflow.last_restart"] == failure
    assert run.data.tags.get("gridflow.failure") == (failure if state == "failed" else None)
    assert set(run.data.metrics) == {"loss", "worker_0/loss"}

    observer = MLflow(state, tracking_uri=address, every_task=True)
    observer.begin(dataclasses.replace(job, options={"seed": 2}))
    run = only_run(client, state)
    assert run.info.status == "RUNNING"
    assert not {"gridflow.error", "gridflow.failure"} & set(run.data.tags)
    for step in (1, 2, 3):
        observer.metrics(step, {"loss": 0.25}, "worker:0")
        observer.metrics(step, {"loss": 0.25}, "worker:1")
    observer.epoch(0, {"loss": 0.5})
    observer.end(ends("succeeded"))
    run = only_run(client, state)
    assert run.info.status == "FINISHED"
    assert steps_of(client, run, "loss") == [0]
    assert steps_of(client, run, "worker_0/loss") == [2, 3]
    assert steps_of(client, run, "worker_1/loss") == [1, 2, 3]
    said = capsys.readouterr()
    assert "secret" not in f"{said}{run.data}{run.inputs}"
    assert (run.data.params["seed"], run.data.tags["gridflow.now.seed"]) == ("1", "2")


@pytest.mark.slow
def test_a_server_that_is_away_gets_everything_when_it_is_back(client, tmp_path, monkeypatch):
    client, address = client
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    job = JobStart("a2", None, tmp_path, ("worker:0",), {})
    observer = MLflow("away", tracking_uri="http://127.0.0.1:9")
    with pytest.raises(Exception, match="127.0.0.1"):
        observer.begin(job)
    with pytest.raises(Exception, match="127.0.0.1"):
        observer.epoch(0, {"loss": 0.5})
    observer._uri = address
    observer.epoch(1, {"loss": 0.25})
    assert steps_of(client, only_run(client, "away"), "loss") == [0, 1]


@pytest.mark.slow
def test_a_parameter_that_mlflow_refuses_costs_itself_alone(client, tmp_path):
    client, address = client
    observer = MLflow("odd", tracking_uri=address, params={"a?": 1})
    with pytest.raises(Exception, match="parameter"):
        observer.begin(JobStart("a3", None, tmp_path, ("worker:0",), {}))
    observer.epoch(0, {"top_k@5": float("nan")})
    observer.end(ends("succeeded"))
    run = only_run(client, "odd")
    assert run.info.status == "FINISHED"
    assert steps_of(client, run, "top_k_5") == [0]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"experiment": 1}, "experiment="),
        ({"run": ""}, "run="),
        ({"model": "yes"}, "model"),
        ({"register": "flights", "model": False}, "needs model=True"),
    ],
)
def test_options_of_a_wrong_kind_are_refused(options, words):
    with pytest.raises(InvalidArgument, match=words):
        MLflow(**options)


def test_a_missing_package_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(MissingDependency, match=r"pip install 'gridflow\[mlflow\]'"):
        MLflow()
