"""The description of a job; users import its names from `gridflow.job`."""

from __future__ import annotations

from gridflow.deploy.description.description import Job
from gridflow.deploy.description.loading import load_job, parse_job
from gridflow.deploy.description.parts import (
    Credentials,
    Gang,
    GcsCredentials,
    Resources,
    Role,
    S3Credentials,
    SecretKey,
    Secrets,
    Toleration,
    Volume,
)
from gridflow.deploy.description.problems import JobError, Problem
from gridflow.deploy.description.services import (
    Batching,
    Marathon,
    Model,
    Notebook,
    Serve,
    Spark,
    TensorBoard,
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
