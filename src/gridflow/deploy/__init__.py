"""One job, many targets: Docker, Compose, Swarm, Kubernetes, Kubeflow, Marathon and Spark.

A `Job` has the same fields as ``job.yaml``; `render` turns it into a target's documents.

Examples
--------
>>> from gridflow.deploy import Job, Resources, Role, render
>>> job = Job(
...     name="flights",
...     image="registry.example/flights:1",
...     command=["python", "train.py"],
...     roles={"worker": Role(replicas=2, resources=Resources(cpu="2", memory="4Gi"))},
... )
>>> job.tasks
2
>>> [document.name for document in render(job, "kubernetes").documents]
['service-flights.yaml', 'job-flights-worker.yaml']
"""

# Names are loaded on first use, because the code that runs in containers (`inside`) needs no YAML.

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gridflow._lazy import lazily

if TYPE_CHECKING:
    from gridflow.deploy.description.description import Job, Marathon, Spark
    from gridflow.deploy.description.loading import load_job, parse_job
    from gridflow.deploy.description.parts import (
        Credentials,
        Gang,
        GcsCredentials,
        Resources,
        S3Credentials,
        SecretKey,
        Secrets,
        Toleration,
        Volume,
    )
    from gridflow.deploy.description.parts import (
        RoleSection as Role,
    )
    from gridflow.deploy.description.problems import JobError, Problem
    from gridflow.deploy.description.services import (
        Batching,
        Model,
        Notebook,
        Serve,
    )
    from gridflow.deploy.description.services import (
        TensorBoardSection as TensorBoard,
    )
    from gridflow.deploy.rendering import Explanation, explain, render
    from gridflow.deploy.targets.base import Document, Rendering, Target
    from gridflow.deploy.targets.registry import TARGETS, get_target
    from gridflow.deploy.validation import Validation, validate

_HOMES: Final = {
    "Batching": "description.services",
    "Credentials": "description.parts",
    "Document": "targets.base",
    "Explanation": "rendering",
    "Gang": "description.parts",
    "GcsCredentials": "description.parts",
    "Job": "description.description",
    "JobError": "description.problems",
    "Marathon": "description.description",
    "Model": "description.services",
    "Notebook": "description.services",
    "Problem": "description.problems",
    "Rendering": "targets.base",
    "Resources": "description.parts",
    "Role": "description.parts:RoleSection",
    "S3Credentials": "description.parts",
    "SecretKey": "description.parts",
    "Secrets": "description.parts",
    "Serve": "description.services",
    "Spark": "description.description",
    "TARGETS": "targets.registry",
    "Target": "targets.base",
    "TensorBoard": "description.services:TensorBoardSection",
    "Toleration": "description.parts",
    "Validation": "validation",
    "Volume": "description.parts",
    "explain": "rendering",
    "get_target": "targets.registry",
    "load_job": "description.loading",
    "parse_job": "description.loading",
    "render": "rendering",
    "validate": "validation",
}

__all__ = [
    "TARGETS",
    "Batching",
    "Credentials",
    "Document",
    "Explanation",
    "Gang",
    "GcsCredentials",
    "Job",
    "JobError",
    "Marathon",
    "Model",
    "Notebook",
    "Problem",
    "Rendering",
    "Resources",
    "Role",
    "S3Credentials",
    "SecretKey",
    "Secrets",
    "Serve",
    "Spark",
    "Target",
    "TensorBoard",
    "Toleration",
    "Validation",
    "Volume",
    "explain",
    "get_target",
    "load_job",
    "parse_job",
    "render",
    "validate",
]

__getattr__, __dir__ = lazily(__name__, _HOMES)
