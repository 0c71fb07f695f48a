"""What all tests share: a real Spark cluster, and a look for what a job left behind."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
import uuid
import warnings
from pathlib import Path

import cloudpickle
import psutil
import pytest
from hypothesis import settings

import suite
from gridflow._files.procfs import began
from suite import classes, waiting

# Jobs use it, too, where it can't be imported.
cloudpickle.register_pickle_by_value(suite)
# That a busy machine takes its time is no failure.
settings.register_profile("suite", deadline=None)
settings.load_profile("suite")
pytest_plugins = (
    "suite.cluster",
    "suite.deadline",
    "suite.garbage",
    "suite.reach",
    "suite.times",
    "suite.schedule",
    "suite.selection",  # behind those that it imports, and so the first to see all tests
    "suite.stores",
    "suite.kafka",
    "suite.yarn",
)

#: Everything that a test starts inherits it, whoever its parent is by then.
MARK = f"gridflow-test-{uuid.uuid4().hex}"
#: What fork servers run: they outlive a job, but no executor and no driver.
FORK_SERVERS = {"gridflow._agent.forkserver.server"}
# Ctrl-C is tried, too: a run in a shell's background ignores it, and so would all that it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def scratch(tmp_path_factory):
    """Put everybody's temporary files where a leak can be seen."""
    folder = tmp_path_factory.mktemp("scratch")
    os.environ["GRIDFLOW_TEST_MARK"] = MARK
    os.environ["TMPDIR"] = str(folder)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("JDK_JAVA_OPTIONS", classes.options())
    tempfile.tempdir = None
    yield folder
    tempfile.tempdir = None


@pytest.fixture(scope="session")
def cluster(request, scratch, tmp_path_factory):
    """Give the standalone cluster of the whole run: two workers, a core in each for us."""
    from gridflow.testing.cluster import StandaloneCluster
    from suite.cluster import join

    cluster = StandaloneCluster()
    cluster.url = join(request.config, tmp_path_factory)
    return cluster


@pytest.fixture(scope="session")
def spark(cluster, scratch):
    """Give this process's session on the standalone cluster."""
    import pyspark.cloudpickle

    from gridflow.testing.cluster import wait_for_slots
    from suite.cluster import watch_executors_of

    settings = {
        "spark_cores_max": "2",
        "spark_executor_cores": "1",
        "spark_executor_memory": "800m",
        "spark_sql_shuffle_partitions": "2",
        # A second try is one; each may have to import TensorFlow in a worker of its own.
        "spark_task_maxFailures": "2",
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        session = cluster.session(**settings)
    pyspark.cloudpickle.register_pickle_by_value(suite)
    session.sparkContext.setLogLevel("OFF")
    session.sparkContext.environment |= {"GRIDFLOW_TEST_MARK": MARK, "TMPDIR": str(scratch)}
    wait_for_slots(session, 2)
    watch_executors_of(session)
    yield session
    session.stop()


def is_warm(words):
    """Return whether a fork server may stay: as long as its executor or driver lives."""
    owner, owner_began = map(int, words[-3:-1])
    return began(owner) == owner_began


def left_processes():
    """Return the gridflow processes of these tests that still run."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE:
                continue
            if MARK.encode() not in Path(f"/proc/{process.pid}/environ").read_bytes():
                continue
            words = process.cmdline()
            command = " ".join(words)
        except (OSError, psutil.Error):
            continue
        if FORK_SERVERS & set(words) and is_warm(words):
            continue
        if (
            "gridflow._training" in command
            or "guardian.py" in command
            or "gridflow-janitor" in command
            or "gridflow._agent" in command
        ):
            found.append(f"{process.pid} {command[:120]}")
    return found


def left_threads():
    """Return the threads of gridflow in this process."""
    return [t.name for t in threading.enumerate() if t.name.startswith("gridflow")]


def left_ports():
    """Return what this process listens on, but for Spark's callback server."""
    return [
        connection.laddr.port
        for connection in psutil.Process().net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]


def left_files(scratch):
    """Return temporary files and folders of jobs, wherever they lie."""
    from suite.cluster import executors_folders

    return [
        str(Path(folder, name))
        # Unlike rglob it goes on when a folder vanishes under it.
        for root in (scratch, *executors_folders)
        for folder, folders, files in os.walk(root)
        for name in (*folders, *files)
        if name.startswith("gridflow-")
        and not name.startswith(("gridflow-jobs-", "gridflow-cluster-", "gridflow-forkserver-"))
        and "gridflow-jobs-" not in folder
    ]


@pytest.fixture(scope="module")
def by_value(request):
    """Send functions of a test's module to the tasks as a notebook's would go."""
    cloudpickle.register_pickle_by_value(request.module)
    yield
    cloudpickle.unregister_pickle_by_value(request.module)


#: What earlier tests left behind and were failed for: no fault of those that come next.
_known_leaks: set[str | int] = set()


@pytest.fixture
def no_leaks(request, scratch):
    """Fail a test that leaves a process, a port, a thread or a file behind."""
    parameters = getattr(request.node, "callspec", None)
    if "spark" in request.fixturenames or (
        parameters and parameters.params.get("launcher") == "spark"
    ):
        request.getfixturevalue("spark")  # its own ports and threads are no leak of the test
    ports = set(left_ports())
    yield

    def left():
        new_ports = set(left_ports()) - ports
        found = [*left_processes(), *left_threads(), *sorted(new_ports), *left_files(scratch)]
        return [each for each in found if each not in _known_leaks]

    try:
        waiting.wait_for(lambda: not left(), "the end of what the test has started", seen=left)
    finally:
        _known_leaks.update(left())


@pytest.fixture
def printed(capfd):
    """Call gridflow; return the exit code, standard output and standard error."""
    from gridflow.cli import main

    def call(*words):
        code = main(words)
        return (code, *capfd.readouterr())

    return call


@pytest.fixture
def job(request, tmp_path):
    """Give the path of a file with the test module's JOB."""
    path = tmp_path / "job.yaml"
    path.write_text(request.module.JOB)
    return str(path)
