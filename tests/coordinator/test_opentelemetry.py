"""What OpenTelemetry is sent of a job, in memory and over HTTP."""

from __future__ import annotations

import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from gridflow import InvalidArgument
from gridflow._coordinator.progress import JobReport
from gridflow._spec.place import Place
from gridflow._wire.failures import TaskFailure
from gridflow.errors import MissingDependency, TrainingFailed
from gridflow.observers import JobEnd, JobStart, OpenTelemetry

TASKS = ("worker:0", "worker:1")
KILLED = TaskFailure("worker:1", "host1", "signal", "killed by SIGKILL")


def tells_a_job(observer, folder, error=None):
    """Tell an observer of a job of two tasks, of which one is killed once."""
    observer.begin(JobStart("a1", "monday", folder, TASKS, {"strategy": "none", "seed": None}))
    for number, task in enumerate(TASKS):
        observer.task(task, "registered", f"host{number}")
    observer.state("training")
    for number, task in enumerate(TASKS):
        observer.task(task, "ready", f"host{number}")
        observer.metrics(2, {"loss": 0.5}, task)
        observer.metrics(4, {"loss": 0.25}, task)
    observer.epoch(0, {"loss": 0.25})
    observer.checkpoint(Place(0, 1, 0))
    observer.state("collecting")
    observer.restart(KILLED)
    for number, task in enumerate(TASKS):
        observer.task(task, "ready", f"host{number}")
        observer.task(task, "returned", f"host{number}")
    state = "succeeded" if error is None else "failed"
    observer.end(JobEnd(state, error, 1.0, JobReport(state, 1, {}, 1, {}, (), None)))


@pytest.fixture
def collector():
    """Give the address of a collector of OTLP, and the requests that it was sent by path."""
    kinds = {"/v1/traces": ExportTraceServiceRequest, "/v1/metrics": ExportMetricsServiceRequest}
    sent = {path: [] for path in kinds}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            content = self.rfile.read(int(self.headers["Content-Length"]))
            sent[self.path].append((kinds[self.path].FromString(content), self.headers))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", sent
        server.shutdown()
        thread.join()


def test_a_trace_has_job_generations_and_tasks_with_their_events(tmp_path):
    kept, reader, tracers = InMemorySpanExporter(), InMemoryMetricReader(), TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(kept))
    meters = MeterProvider([reader])
    tells_a_job(OpenTelemetry(tracer_provider=tracers, meter_provider=meters), tmp_path)
    spans = kept.get_finished_spans()
    by_id = {span.context.span_id: span for span in spans}
    above = {span: span.parent and by_id[span.parent.span_id].name for span in spans}
    assert [(span.name, above[span]) for span in spans] == [
        ("worker:0", "generation 0"),
        ("worker:1", "generation 0"),
        ("generation 0", "job"),
        ("worker:0", "generation 1"),
        ("worker:1", "generation 1"),
        ("generation 1", "job"),
        ("job", None),
    ]
    failed = [span.name for span in spans if span.status.status_code is StatusCode.ERROR]
    assert failed == ["worker:1", "generation 0"]
    first, killed, generation, *_, job = spans
    assert [event.name for event in first.events] == ["ready", "first step"]
    assert killed.status.description == "killed by SIGKILL"
    assert [event.name for event in generation.events] == ["epoch", "checkpoint"]
    assert generation.events[1].attributes == {"fit": 0, "epoch": 1, "step": 0}
    assert generation.attributes["host.name"] == "host1"
    assert [event.name for event in job.events] == ["training", "collecting"]
    assert job.attributes["strategy"] == "none"
    assert all(span.start_time <= span.end_time for span in spans)
    assert spans[5].start_time == generation.end_time
    scope = reader.get_metrics_data().resource_metrics[0].scope_metrics[0]
    points = {metric.name: list(metric.data.data_points) for metric in scope.metrics}
    steps = {each.attributes["gridflow.task"]: each.value for each in points["gridflow.step"]}
    assert steps == dict.fromkeys(TASKS, 4)
    assert {each.attributes["gridflow.metric"] for each in points["gridflow.value"]} == {
        "loss",
        "epoch/loss",
    }
    assert [each.value for each in points["gridflow.restarts"]] == [1]
    assert [each.value for each in points["gridflow.checkpoints"]] == [1]
    tracers.shutdown()
    meters.shutdown()


@pytest.mark.usefixtures("no_leaks")
def test_a_collector_gets_traces_and_metrics_over_http(tmp_path, collector, monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    address, sent = collector
    observer = OpenTelemetry(f"{address}/", headers={"authorization": "Bearer x"})
    for _ in range(2):  # it may observe one job after the other
        tells_a_job(observer, tmp_path, TrainingFailed("no", failures=(KILLED,)))
    spans = [
        span
        for request, _ in sent["/v1/traces"]
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
    jobs = [span for span in spans if span.name == "job"]
    assert len(spans) == 14
    assert len({span.trace_id for span in spans}) == len(jobs) == 2
    assert jobs[0].status.message == "killed by SIGKILL"
    assert {each.key: each.value.string_value for each in jobs[0].attributes} == {
        "gridflow.job": "a1",
        "gridflow.run_id": "monday",
        "strategy": "none",
        "gridflow.state": "failed",
        "error.type": "TrainingFailed",
    }
    ((request, headers), *_) = sent["/v1/metrics"]
    assert headers["authorization"] == "Bearer x"
    metrics = request.resource_metrics[0].scope_metrics[0].metrics
    assert {each.name for each in metrics} >= {"gridflow.step", "gridflow.value"}


def test_what_is_no_address_is_refused():
    with pytest.raises(InvalidArgument, match="must begin with https"):
        OpenTelemetry("collector:4318")


def test_a_missing_package_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk", None)
    with pytest.raises(MissingDependency, match=r"pip install 'gridflow\[opentelemetry\]'"):
        OpenTelemetry()
