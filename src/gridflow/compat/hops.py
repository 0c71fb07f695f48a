"""The Hops helpers ``util`` and ``hdfs``.

Replace ``from hops import util, hdfs`` with ``from gridflow.compat.hops import util, hdfs``.
"""

from __future__ import annotations

import getpass
from types import SimpleNamespace
from typing import Any

from gridflow._launch.spark import configured
from gridflow._launch.spark.session import session_of

__all__ = ["hdfs", "util"]


def _num_executors(spark: Any = None) -> int:
    """Return the configured number of executors, see `gridflow.util`."""
    return configured.num_executors(spark or session_of())


def _num_param_servers(spark: Any = None) -> int:
    """Return the configured number of parameter servers: ``spark.gridflow.num.ps``."""
    session = spark or session_of()
    # Hops sets this for the same purpose.
    theirs = session.conf.get("spark.tensorflow.num.ps", None)
    return int(theirs) if theirs else configured.num_param_servers(session)


def _default_fs() -> str:
    """Return Spark's default file system, without a trailing slash."""
    from gridflow.compat.tfos._launcher import default_fs

    return default_fs(session_of().sparkContext)


def _project_user() -> str:
    return getpass.getuser()


def _project_path(project: str | None = None) -> str:
    """Return the folder of the user, or of a project, on the default file system."""
    root = _default_fs()
    if project is not None:
        return f"{root}/Projects/{project}/"
    return f"{root}/user/{getpass.getuser()}/"


def _abs_path(path: str, project: str | None = None) -> str:
    """Return a full URI; a relative path is resolved against `_project_path`."""
    if "://" in path:
        return path
    return _default_fs() + path if path.startswith("/") else _project_path(project) + path


#: ``num_executors()`` and ``num_param_servers()``.
util = SimpleNamespace(num_executors=_num_executors, num_param_servers=_num_param_servers)
#: ``project_user()``, ``project_path()`` and ``abs_path(path)``. They only build names; read and
#: write the files with TensorFlow, pyarrow or Spark.
hdfs = SimpleNamespace(project_user=_project_user, project_path=_project_path, abs_path=_abs_path)
