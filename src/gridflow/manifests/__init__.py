"""One job, many targets: documents for Docker, Compose, Kubernetes, Kubeflow, Marathon and Spark.

Examples
--------
>>> from gridflow.job import Job
>>> from gridflow.manifests import render
>>> job = Job(name="flights", image="registry.example/flights:1", command=["python", "train.py"])
>>> [document.name for document in render(job, "kubernetes").documents]
['service-flights.yaml', 'job-flights-worker.yaml']
"""

from __future__ import annotations

from gridflow.deploy.registry import TARGETS, get_target
from gridflow.deploy.rendering import Explanation, Rendering, explain, render
from gridflow.deploy.target import Document, Target
from gridflow.deploy.validation import Validation, validate

__all__ = [
    "TARGETS",
    "Document",
    "Explanation",
    "Rendering",
    "Target",
    "Validation",
    "explain",
    "get_target",
    "render",
    "validate",
]
