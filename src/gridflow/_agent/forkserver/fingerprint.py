"""Which training processes may share a fork server.

Two processes that differ in anything that a library could see at import may not. Only what is known
to be read later, or never, is left out.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gridflow._spec.gpus import VISIBLE
from gridflow._wire.channel import AGENT_VARIABLE, CHANNEL_VARIABLE, PRELOAD_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Set in the forked process: CUDA, TensorFlow and JAX read these when they first use a device, and
#: `gridflow._agent.forkserver.safety` sees to it that none was used before.
LATE: Final = frozenset(
    {
        AGENT_VARIABLE,
        CHANNEL_VARIABLE,
        PRELOAD_VARIABLE,
        VISIBLE,
        "CUDA_DEVICE_ORDER",
        "TF_CONFIG",
        "TF_FORCE_GPU_ALLOW_GROWTH",
        "XLA_PYTHON_CLIENT_MEM_FRACTION",
        "XLA_PYTHON_CLIENT_PREALLOCATE",
        "TMPDIR",
        "TEMP",
        "TMP",
    }
)
#: Of shells, terminals and test runners: they change from run to run, and no library reads them.
_NOISE: Final = frozenset(
    {"_", "COLUMNS", "LINES", "OLDPWD", "PWD", "PYTEST_CURRENT_TEST", "SHLVL"}
)
#: What Spark tells its own Python workers.
_SPARKS: Final = ("SPARK_", "PYSPARK_", "PYTHON_WORKER_", "PYTHON_DAEMON_", "PYTHON_UDF_")


def fingerprint(environment: Mapping[str, str], versions: Mapping[str, str]) -> str:
    """Return the fingerprint: processes with the same one may share a server.

    `environment`: Of the training process, ``PYTHONPATH`` (what the agent can import) and the job's
        ``env=`` included.
    `versions`: Of the packages, as they are installed now.
    """
    seen = {name: value for name, value in environment.items() if matters(name)}
    interpreter = [sys.executable, sys.version]
    files = [_own_sources(), _keras_settings(environment)]
    facts = [interpreter, sorted(seen.items()), sorted(versions.items()), files]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def early(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the part of a process's environment that its server has from the start."""
    return {name: value for name, value in environment.items() if name not in LATE}


def matters(name: str) -> bool:
    """Return whether a library could see a variable of the environment as it is imported."""
    return name not in LATE and name not in _NOISE and not name.startswith(_SPARKS)


def _keras_settings(environment: Mapping[str, str]) -> str:
    """Return the file of settings that Keras reads when it is imported."""
    folder = environment.get("KERAS_HOME") or Path(environment.get("HOME", "/")) / ".keras"
    try:
        return Path(folder, "keras.json").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _own_sources() -> int:
    """Return the moment of the last change of gridflow itself, which may be edited in place."""
    root = Path(__file__).parents[2]
    if not root.is_dir():  # inside of an archive
        return next((each.stat().st_mtime_ns for each in root.parents if each.is_file()), 0)
    newest = 0
    for folder, _, names in os.walk(root):
        for name in names:
            if name.endswith(".py"):
                newest = max(newest, os.stat(os.path.join(folder, name)).st_mtime_ns)  # noqa: PTH116, PTH118 (pathlib takes three times as long)
    return newest
