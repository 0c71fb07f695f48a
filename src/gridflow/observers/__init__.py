"""Those who are told in the driver how a job goes: ``TensorflowDistributor(observers=[…])``.

`MLflow` keeps a run, `OpenTelemetry` sends traces and metrics, `Notify` a message when a job has
ended. Others inherit `Observer`; a package brings one by name with an entry point of the group
``gridflow.observers``.
"""

from __future__ import annotations

from gridflow._coordinator.observing import JobEnd, JobStart, Observer
from gridflow.observers.mlflow import MLflow
from gridflow.observers.notify import Notify
from gridflow.observers.opentelemetry import OpenTelemetry

__all__ = ["JobEnd", "JobStart", "MLflow", "Notify", "Observer", "OpenTelemetry"]
