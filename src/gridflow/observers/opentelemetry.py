"""Traces and metrics of a job."""

from __future__ import annotations

import importlib.util
import time
from typing import TYPE_CHECKING, Any, Final

from gridflow._coordinator.observing import Observer
from gridflow._coordinator.phases import Phase
from gridflow.errors import InvalidArgument, MissingDependency

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gridflow._coordinator.observing import JobEnd, JobStart
    from gridflow._spec.place import Place
    from gridflow._wire.failures import TaskFailure

_NEEDED: Final = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")
_NAME: Final = "gridflow"
#: States in which a generation is over.
_ENDS: Final = {
    phase.value for phase in (Phase.COLLECTING, Phase.CLEARING, Phase.RELAUNCHING, Phase.CLOSING)
}


class OpenTelemetry(Observer):
    """Send a trace and metrics of each job by OTLP over HTTP.

    A trace has a span for the job, in it one for each generation (the time between two restarts),
    and in these one for each task, from its start to its return. Events in them are the job's
    states, epochs, checkpoints and each task's first step. Spans are sent when they end.

    Metrics are the gauges ``gridflow.step`` and ``gridflow.value`` (losses and metrics, by
    ``gridflow.metric``), and the counters ``gridflow.checkpoints`` and ``gridflow.restarts``.

    Parameters
    ----------
    endpoint : str, optional
        Address of a collector, such as ``http://collector:4318``. Default: the environment's
        ``OTEL_EXPORTER_OTLP_ENDPOINT`` and so on, or ``http://localhost:4318``.
    headers : mapping of str to str, optional
        Of each request, such as an ``Authorization``.
    tracer_provider, meter_provider : optional
        Providers of yours to use instead: gridflow doesn't close them.

    Raises
    ------
    MissingDependency
        The SDK or its exporter isn't installed.
    InvalidArgument
        The endpoint isn't a URL.

    Examples
    --------
    >>> from gridflow.observers import OpenTelemetry
    >>> OpenTelemetry("http://collector:4318")  # doctest: +SKIP
    """

    patience = 30.0

    def __init__(
        self,
        endpoint: str | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        tracer_provider: Any = None,
        meter_provider: Any = None,
    ) -> None:
        if not all(map(_is_there, _NEEDED)):
            raise MissingDependency(
                "observers.OpenTelemetry needs the SDK and its exporter: "
                "pip install 'gridflow[opentelemetry]'."
            )
        if endpoint is not None and not str(endpoint).startswith(("http://", "https://")):
            raise InvalidArgument(
                f"OpenTelemetry(endpoint=) must begin with https:// or http://; got {endpoint!r}."
            )
        self._endpoint, self._headers = endpoint, dict(headers or {}) or None
        self._given = tracer_provider, meter_provider

    def begin(self, job: JobStart) -> None:
        """Begin the trace."""
        tracers, meters = self._given
        #: Those made for this job, which are closed at its end.
        self._own = []
        if tracers is None:
            self._own.append(tracers := self._tracers())
        if meters is None:
            self._own.append(meters := self._meters())
        self._about = {"gridflow.job": job.id, "gridflow.run_id": job.run_id or ""}
        meter, self._tracer = meters.get_meter(_NAME), tracers.get_tracer(_NAME)
        self._step, self._value = map(meter.create_gauge, ("gridflow.step", "gridflow.value"))
        self._load = meter.create_gauge("gridflow.load")
        self._checkpoints = meter.create_counter("gridflow.checkpoints")
        self._restarts = meter.create_counter("gridflow.restarts")
        self._registered: dict[str, int] = {}
        self._generations = self._ended = 0
        options = {name: value for name, value in job.options.items() if value is not None}
        self._job = self._tracer.start_span("job", attributes={**self._about, **options})
        self._begin_generation(time.time_ns())

    def state(self, state: str) -> None:
        """Note the state, and when a generation is over."""
        self._job.add_event(state)
        if state in _ENDS and not self._ended:
            self._ended = time.time_ns()

    def task(self, name: str, state: str, host: str) -> None:
        """Begin the span of a task that is ready, and end it after its return."""
        now = time.time_ns()
        if state == "registered":
            self._registered[name] = now
        elif state == "ready":
            self._tasks[name] = span = self._span(
                name,
                self._generation,
                max(self._registered.get(name, 0), self._began),
                {"gridflow.task": name, "host.name": host},
            )
            span.add_event("ready")
        elif name in self._tasks:
            if state == "back":
                self._tasks[name].add_event("back")
            else:
                self._tasks.pop(name).end()

    def host(self, name: str, load: Mapping[str, float]) -> None:
        """Measure the load of a host."""
        for metric, value in load.items():
            about = {"host.name": name, "gridflow.metric": metric}
            self._load.set(value, {**self._about, **about})

    def metrics(self, step: int, values: Mapping[str, float], task: str) -> None:
        """Measure steps, losses and metrics."""
        about = {**self._about, "gridflow.task": task}
        self._step.set(step, about)
        for name, value in values.items():
            self._value.set(value, {**about, "gridflow.metric": name})
        if task in self._tasks and task not in self._stepped:
            self._stepped.add(task)
            self._tasks[task].add_event("first step", {"gridflow.step": step})

    def epoch(self, number: int, values: Mapping[str, float]) -> None:
        """Note an epoch's results."""
        self._generation.add_event("epoch", {"number": number, **values})
        for name, value in values.items():
            self._value.set(value, {**self._about, "gridflow.metric": f"epoch/{name}"})

    def checkpoint(self, place: Place) -> None:
        """Count a checkpoint."""
        self._checkpoints.add(1, self._about)
        self._generation.add_event("checkpoint", place.to_dict())

    def restart(self, cause: TaskFailure) -> None:
        """End the generation with its failure, and begin the next one."""
        about = {"gridflow.task": cause.task, "gridflow.kind": cause.kind}
        self._restarts.add(1, {**self._about, **about})
        self._begin_generation(self._end_generation(cause))

    def end(self, outcome: JobEnd) -> None:
        """End the trace and send what is left."""
        from opentelemetry.trace import StatusCode

        causes = getattr(outcome.error, "failures", ())[:1]
        self._end_generation(*causes)
        self._job.set_attribute("gridflow.state", outcome.state)
        if outcome.error is not None:
            name = type(outcome.error).__name__
            self._job.set_attribute("error.type", name)
            self._job.set_status(StatusCode.ERROR, causes[0].summary if causes else name)
        self._job.end()
        for provider in self._own:
            provider.shutdown()

    # ---------------------------------------------------------------------------------------------

    def _tracers(self) -> Any:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        exporter = OTLPSpanExporter(self._address("traces"), headers=self._headers)
        provider = TracerProvider(resource=_resource(), shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(exporter))
        return provider

    def _meters(self) -> Any:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

        exporter = OTLPMetricExporter(self._address("metrics"), headers=self._headers)
        readers = [PeriodicExportingMetricReader(exporter)]
        return MeterProvider(readers, _resource(), shutdown_on_exit=False)

    def _address(self, kind: str) -> str | None:
        return None if self._endpoint is None else f"{self._endpoint.rstrip('/')}/v1/{kind}"

    def _span(self, name: str, above: Any, began: int, about: Mapping[str, Any]) -> Any:
        from opentelemetry.trace import set_span_in_context

        context = set_span_in_context(above)
        return self._tracer.start_span(
            name, context, start_time=began, attributes={**self._about, **about}
        )

    def _begin_generation(self, began: int) -> None:
        self._began, self._ended = began, 0
        self._tasks: dict[str, Any] = {}
        self._stepped: set[str] = set()
        name = f"generation {self._generations}"
        about = {"gridflow.generation": self._generations}
        self._generation = self._span(name, self._job, began, about)
        self._generations += 1

    def _end_generation(self, cause: TaskFailure | None = None) -> int:
        """End the spans of a generation as of the time when it failed; return that."""
        from opentelemetry.trace import StatusCode

        ended = self._ended or time.time_ns()
        if cause is not None:
            about = {"gridflow.task": cause.task, "gridflow.kind": cause.kind}
            self._generation.set_attributes({**about, "host.name": cause.host})
            for span in (self._generation, self._tasks.get(cause.task)):
                if span is not None:
                    span.set_status(StatusCode.ERROR, cause.summary)
        for span in self._tasks.values():
            span.end(ended)
        self._generation.end(ended)
        return ended


def _is_there(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # nor the package above it
        return False


def _resource() -> Any:
    from opentelemetry.sdk.resources import Resource

    return Resource.create({"service.name": _NAME})
