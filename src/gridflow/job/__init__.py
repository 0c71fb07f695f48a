"""The description of a job: the same fields as dataclasses and as ``job.yaml``.

Examples
--------
>>> from gridflow.job import Job, Resources, Role
>>> job = Job(
...     name="flights",
...     image="registry.example/flights:1",
...     command=["python", "train.py"],
...     roles={"worker": Role(replicas=2, resources=Resources(cpu="2", memory="4Gi"))},
... )
>>> job.tasks
2
"""

from __future__ import annotations

from gridflow.deploy.description.description import Job
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
    Marathon,
    Model,
    Notebook,
    Serve,
    Spark,
)
from gridflow.deploy.description.services import (
    TensorBoardSection as TensorBoard,
)

__all__ = [
    "Batching",
    "Credentials",
    "Gang",
    "GcsCredentials",
    "Job",
    "JobError",
    "Marathon",
    "Model",
    "Notebook",
    "Problem",
    "Resources",
    "Role",
    "S3Credentials",
    "SecretKey",
    "Secrets",
    "Serve",
    "Spark",
    "TensorBoard",
    "Toleration",
    "Volume",
    "load_job",
    "parse_job",
]
