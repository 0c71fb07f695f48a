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

from gridflow.deploy.description import (
    Batching,
    Credentials,
    Gang,
    GcsCredentials,
    Job,
    JobError,
    Marathon,
    Model,
    Notebook,
    Problem,
    Resources,
    Role,
    S3Credentials,
    SecretKey,
    Secrets,
    Serve,
    Spark,
    TensorBoard,
    Toleration,
    Volume,
    load_job,
    parse_job,
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
