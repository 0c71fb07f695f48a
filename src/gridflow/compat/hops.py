"""The helpers of Hops that programs on its clusters call: ``util`` and ``hdfs``.

``from hops import util, hdfs`` becomes ``from gridflow.compat.hops import util, hdfs``.
"""

from __future__ import annotations

import getpass
from types import SimpleNamespace
from typing import Any

from gridflow._launch.spark import configured
from gridflow._launch.spark.session import session_of

__all__ = ["hdfs", "util"]


def _num_executors(spark: Any = None) -> int:
    """Return how many executors the session is configured with, see `gridflow.util`."""
    return configured.num_executors(spark or session_of())


def _num_param_servers(spark: Any = None) -> int:
    """Return how many parameter servers it is meant for: ``spark.gridflow.num.ps``."""
    session = spark or session_of()
    # What Hops sets for the same purpose.
    theirs = session.conf.get("spark.tensorflow.num.ps", None)
    return int(theirs) if theirs else configured.num_param_servers(session)


def _default_fs() -> str:
    """Return Spark's default file system, without a slash behind it."""
    from gridflow.compat.tfos._starting import default_fs

    return default_fs(session_of().sparkContext)


def _project_user() -> str:
    """Return the user."""
    return getpass.getuser()


def _project_path(project: str | None = None) -> str:
    """Return the user's folder on the default file system, or that of a project."""
    root = _default_fs()
    if project is not None:
        return f"{root}/Projects/{project}/"
    return f"{root}/user/{getpass.getuser()}/"


def _abs_path(path: str, project: str | None = None) -> str:
    """Return a path as it is if it has a scheme or is absolute, else below `_project_path`."""
    if "://" in path:
        return path
    return _default_fs() + path if path.startswith("/") else _project_path(project) + path


#: ``num_executors()`` and ``num_param_servers()``.
util = SimpleNamespace(num_executors=_num_executors, num_param_servers=_num_param_servers)
#: ``project_user()``, ``project_path()`` and ``abs_path(path)``, names without access to files:
#: TensorFlow, pyarrow or Spark read and write what they name.
hdfs = SimpleNamespace(project_user=_project_user, project_path=_project_path, abs_path=_abs_path)
