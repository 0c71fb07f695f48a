"""One Spark cluster for a whole run of the tests, whichever process of it needs it first.

Under xdist every process has an application of its own on it. A keeper, a process of its own,
holds the cluster: it ends when the run tells it to, and as soon as the main process of the run is
gone, however that ended. So no Java process is left behind by a run that was killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import os
import select
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from suite.waiting import patience, wait_for

#: Kept, as they are waited for by no one where another process ends them.
_keepers = []
#: Where the executors of this process's application keep what is temporary.
executors_folders = set()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session):
    """End the cluster, from the main process, after all that could use it."""
    if not hasattr(session.config, "workerinput"):
        factory = getattr(session.config, "_tmp_path_factory", None)
        if factory is not None and factory._basetemp is not None:
            end(factory._basetemp / "cluster")


def join(config, tmp_path_factory):
    """Return the cluster's address, after it was started if need be."""
    base = tmp_path_factory.getbasetemp()
    is_one_of_several = hasattr(config, "workerinput")
    owner = os.getppid() if is_one_of_several else os.getpid()
    slots = config.workerinput["workercount"] if is_one_of_several else 1
    folder = (base.parent if is_one_of_several else base) / "cluster"
    folder.mkdir(exist_ok=True)
    url = folder / "url"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not url.exists():
            _start(folder, owner, slots)
            log = folder / "log"
            wait_for(
                lambda: url.exists() or _keepers[-1].poll() is not None,
                "the cluster",
                seen=log.read_text,
            )
            assert url.exists(), f"the cluster's keeper ended: {log.read_text()}"
    return url.read_text()


def watch_executors_of(session):
    """Remember where the executors of an application keep what is temporary."""
    each = session.sparkContext.parallelize(range(2), 2).barrier()
    with warnings.catch_warnings():
        # PySpark leaves the socket that they came by to the garbage collector.
        warnings.simplefilter("ignore", ResourceWarning)
        found = each.mapPartitions(lambda _: os.environ["SPARK_LOCAL_DIRS"].split(",")).collect()
        gc.collect()
    executors_folders.update(Path(folder).parent for folder in found)


def _start(folder, owner, slots):
    # What finds the leaks of a test knows its processes by a mark: the cluster's are nobody's.
    from suite.reach import FOLDER

    mine = ("GRIDFLOW_TEST_MARK", FOLDER)
    environment = {k: v for k, v in os.environ.items() if k not in mine}
    with (folder / "log").open("wb") as log:
        keeper = subprocess.Popen(
            [sys.executable, "-m", "suite.cluster", str(folder), str(owner), str(slots)],
            cwd=Path(__file__).parents[1],
            env={**environment, "TMPDIR": str(folder)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    _keepers.append(keeper)
    (folder / "pid").write_text(str(keeper.pid))


def end(folder):
    """Tell the keeper to end the cluster, and wait until it has."""
    try:
        keeper = int((folder / "pid").read_text())
        watched = os.pidfd_open(keeper)
    except (FileNotFoundError, ProcessLookupError):
        return
    with contextlib.suppress(ProcessLookupError):
        os.kill(keeper, signal.SIGTERM)
    select.select([watched], [], [], patience())
    os.close(watched)
    for child in _keepers:
        child.wait(patience())


def keep(folder, owner, slots):
    """Hold a cluster until this process is told to end, or its owner has ended."""
    from gridflow.testing.cluster import StandaloneCluster

    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    watched = os.pidfd_open(owner)
    with StandaloneCluster(workers=2, cores=slots, memory=f"{2 * slots}g") as cluster:
        (folder / "new").write_text(cluster.url)
        (folder / "new").rename(folder / "url")
        select.select([watched], [], [])


if __name__ == "__main__":
    keep(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
