"""What a real job tells its observers, and a service."""

from __future__ import annotations

import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from gridflow import LocalLauncher, TensorflowDistributor
from gridflow.observers import Notify, Observer, OpenTelemetry

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_leaks")]


class Remembers(Observer):
    def __init__(self):
        self.told = []

    def begin(self, job):
        self.told.append(("begin", job.tasks, job.options["strategy"]))

    def state(self, state):
        self.told.append(("state", state))

    def task(self, name, state, host):
        self.told.append(("task", name, state, bool(host)))

    def host(self, name, load):
        self.told.append(("host", name, sorted(load)))

    def progress(self, task, progress):
        self.told.append(("progress", task, *progress.place, progress.phase, progress.rows))

    def metrics(self, step, values, task):
        self.told.append(("metrics", step, task))

    def epoch(self, number, values):
        self.told.append(("epoch", number, sorted(values)))

    def checkpoint(self, place):
        self.told.append(("checkpoint", *place))

    def restart(self, cause):
        self.told.append(("restart", cause.task, cause.kind))

    def end(self, outcome):
        epochs, result = len(outcome.report.history["loss"]), outcome.result
        self.told.append(("end", outcome.state, outcome.error, epochs, result.value))


class Sleeps(Observer):
    patience = 2.0

    def __init__(self):
        self.wakes = threading.Event()

    def state(self, state):
        self.wakes.wait(600)


@pytest.fixture
def service():
    """Give the address of a service, and what it was sent."""
    sent = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            sent.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/hook", sent
        server.shutdown()
        thread.join()


def trains(ctx):
    """Train three epochs, of which the second fails at first."""
    import keras

    class Fails(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 1 and not ctx.generation:
                raise ValueError("no")

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    rows = ctx.dataset("rows", batch_size=16, features="x", label="y")
    model.fit(rows, epochs=3, verbose=0, callbacks=[*ctx.callbacks(tensorboard=False), Fails()])


def test_a_job_tells_each_step_once_and_how_it_ended(service, capsys, monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    address, sent = service
    seen, sleeps = Remembers(), Sleeps()
    kept, tracers, meters = InMemorySpanExporter(), TracerProvider(), MeterProvider()
    tracers.add_span_processor(SimpleSpanProcessor(kept))
    traces = OpenTelemetry(tracer_provider=tracers, meter_provider=meters)
    values = np.random.default_rng(0).normal(size=(640, 4)).astype("float32")
    TensorflowDistributor(
        launcher=LocalLauncher(),
        max_restarts=1,
        logs="none",
        progress=False,
        observers=[seen, sleeps, Notify(address), traces],
    ).run(trains, data={"rows": {"x": values, "y": values[:, 0]}})
    sleeps.wakes.set()
    kinds = [each[0] for each in seen.told]
    assert seen.told[0] == ("begin", ("worker:0",), "none")
    assert seen.told[-1] == ("end", "succeeded", None, 3, None)
    states = [each[1] for each in seen.told if each[0] == "state"]
    assert states[:2] == ["starting", "training"]
    assert states.count("training") == 2
    assert seen.told[kinds.index("restart")] == ("restart", "worker:0", "exception")
    tasks = [each[1:] for each in seen.told if each[0] == "task"]
    up = ["registered", "ready", "ready", "returned"]
    assert tasks == [("worker:0", state, True) for state in up]
    loads = [each[1:] for each in seen.told if each[0] == "host"]
    assert loads[0][0] == socket.gethostname()
    assert "cpu_utilization_percentage" in loads[0][1]
    checkpoints = [each[1:] for each in seen.told if each[0] == "checkpoint"]
    assert checkpoints == [(0, epoch, 0) for epoch in (1, 2, 3)]
    steps = [each[1] for each in seen.told if each[0] == "metrics"]
    assert steps == sorted(set(steps))
    assert steps[-1] == 120
    places = [each[1:] for each in seen.told if each[0] == "progress"]
    assert places[-1][:5] == ("worker:0", 0, 2, 40, "idle")
    assert [place[5] for place in places] == sorted(place[5] for place in places)
    assert places[-1][5] >= 3 * len(values)
    epochs = [each[1:] for each in seen.told if each[0] == "epoch"]
    assert epochs == [(number, ["loss"]) for number in range(3)]
    assert [(each["state"], each["error"]) for each in sent] == [("succeeded", None)]
    assert set(sent[0]["metrics"]) == {"loss"}
    spans = kept.get_finished_spans()
    assert [(span.name, [event.name for event in span.events]) for span in spans[:-1]] == [
        ("worker:0", ["ready", "first step"]),
        ("generation 0", ["epoch", "checkpoint"]),
        ("worker:0", ["ready", "first step"]),
        ("generation 1", ["epoch", "checkpoint"] * 2),
    ]
    assert [event.name for event in spans[-1].events] == states
    tracers.shutdown()
    meters.shutdown()
    assert "Sleeps was given up" in capsys.readouterr().out
