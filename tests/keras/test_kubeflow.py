"""Progress for Kubeflow Trainer, whose server is played: KEP-2779 says what it takes."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest

from gridflow import TrainerStatus
from gridflow._keras import kubeflow
from gridflow._keras.callbacks import build


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A server that keeps what it is told, with its token in a file as in a pod."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            told.append((self.path, self.headers["Authorization"], json.loads(body)))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args):
            """Print nothing."""

    told = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    (tmp_path / "token").write_text("a-token\n")
    url = f"http://127.0.0.1:{server.server_address[1]}/trainjobs/mine/status"
    monkeypatch.setenv("KUBEFLOW_TRAINER_SERVER_URL", url)
    monkeypatch.setenv("KUBEFLOW_TRAINER_SERVER_TOKEN", str(tmp_path / "token"))
    yield told
    server.shutdown()
    thread.join()
    server.server_close()


def fit(callback, epochs=2, steps=4, start=0):
    """Call a callback as ``fit`` does."""
    callback.set_params({"epochs": epochs, "steps": steps})
    callback.on_train_begin()
    for epoch in range(start, epochs):
        callback.on_epoch_begin(epoch)
        for step in range(steps):
            callback.on_train_batch_end(step, {"loss": 0.5, "nothing": float("nan")})
            if callback._sending is not None:
                callback._sending.join()
        callback.on_epoch_end(epoch, {"loss": 0.25, "val_loss": 0.75})
    callback.on_train_end({"loss": 0.25, "val_loss": 0.75})


def test_trainer_is_told_how_far_the_training_is(server, monkeypatch):
    monkeypatch.setattr(kubeflow, "_INTERVAL", 0.0)
    fit(TrainerStatus())
    path, token, _ = server[0]
    assert (path, token) == ("/trainjobs/mine/status", "Bearer a-token")
    states = [body["trainerStatus"] for _, _, body in server]
    done = [state["progressPercentage"] for state in states]
    assert done == sorted(done)
    assert (done[0], done[-1]) == (12, 100)
    assert states[-1]["estimatedRemainingSeconds"] == 0
    metrics = {each["name"]: each["value"] for each in states[-1]["metrics"]}
    assert metrics == {
        "loss": "0.25",
        "val_loss": "0.75",
        "currentEpoch": "2",
        "totalEpochs": "2",
    }
    assert all(each["name"] != "nothing" for each in states[0]["metrics"])


def test_it_is_told_now_and_then_and_at_the_end(server):
    fit(TrainerStatus())
    assert len(server) == 2


def test_the_time_that_is_left_is_reckoned_from_where_a_training_resumed(monkeypatch):
    monkeypatch.setenv("KUBEFLOW_TRAINER_SERVER_URL", "http://127.0.0.1:9/")
    callback = TrainerStatus()
    callback.set_params({"epochs": 10, "steps": 1})
    assert "estimatedRemainingSeconds" not in callback._status(8.0, {}, 1.0, is_over=False)
    assert callback._status(9.0, {}, 60.0, is_over=False)["estimatedRemainingSeconds"] in {59, 60}


def test_a_server_that_is_not_there_disturbs_nothing_and_is_asked_less_often(monkeypatch, caplog):
    monkeypatch.setenv("KUBEFLOW_TRAINER_SERVER_URL", "http://127.0.0.1:9/status")
    callback = TrainerStatus()
    fit(callback)
    assert callback._interval > kubeflow._INTERVAL
    assert caplog.text.count("can't report progress") == 1


@pytest.mark.parametrize(
    ("is_chief", "url", "expected"),
    [(True, "http://a", True), (False, "http://a", False), (True, None, False)],
)
def test_the_chief_tells_trainer_where_it_asks_for_it(monkeypatch, is_chief, url, expected):
    monkeypatch.delenv("KUBEFLOW_TRAINER_SERVER_URL", raising=False)
    if url:
        monkeypatch.setenv("KUBEFLOW_TRAINER_SERVER_URL", url)
    runtime = SimpleNamespace(is_chief=is_chief, chief_changes=False)
    found = build(runtime, checkpoint=False)
    assert any(isinstance(each, TrainerStatus) for each in found) == expected
