"""In which order tests begin, and which stay together, so that all processes are busy to the end.

Under xdist tests are handed out one by one, those first that took longest when times were recorded;
what is over in a moment fills the end. Tests that share something that is dear, such as a trained
model or a Spark application, form a group that one process runs.
"""

from __future__ import annotations

import collections
import fcntl
import pickle

import pytest

#: Fixtures whose users stay together: one process makes what they give.
_SHARED = {
    "spark": "spark",
    "hdfs": "stores",
    "yarn": "stores",
    "run_script": "local masters",
    "s3": "stores",
    "stored": "stores",
    "kafka": "kafka",
    "uninterrupted": "resume",
    "reference": "parity",
    "unpacked": "packed environment",
    "wheel": "wheel",
}
#: Files that stay together, as all of their tests share a fixture, or import TensorFlow here.
_TOGETHER = {
    "connect/test_connect.py": "connect",
    "docs/test_site.py": "site",
    "distribution/test_servers_on_spark.py": "servers on spark",
    "distribution/test_worker_records.py": "tensorflow",
    "feed/test_source.py": "tensorflow",
    "gpu/test_gpu_devices.py": "tensorflow",
    "gpu/test_gpu_spark.py": "gpus on spark",
    "keras/test_locked_updates.py": "tensorflow",
    "keras/test_shared_paths.py": "tensorflow",
    "tfrecord/test_fuzz.py": "tensorflow",
}


def group_of(item):
    """Return the group of tests that a test belongs to, or None."""
    for fixture, group in _SHARED.items():
        if fixture in item.fixturenames:
            return group
    values = item.callspec.params if hasattr(item, "callspec") else {}
    if values.get("launcher") == "spark":
        return "spark"
    if "backend" in values and "distribute" in item.fixturenames:
        return f"backend {values['backend']}"
    path = item.path.as_posix()
    if path.endswith("conformance/test_conformance.py"):
        return f"conformance {values['strategy']} {values['flavour']}"
    return next((group for end, group in _TOGETHER.items() if path.endswith(end)), None)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Group the tests, and sort them; among equals their order stays."""
    from suite import times
    from suite.selection import is_slow

    places, seconds, groups = {}, collections.Counter(), {}
    for item in items:
        group = groups[item] = group_of(item)
        if group is not None:
            item.add_marker(pytest.mark.xdist_group(group))
        if group is not None or is_slow(item):
            seconds[group or item.nodeid] += times.seconds_of(item.nodeid)
    for item, group in groups.items():
        # What is compared with what other processes compute comes when they have done so.
        waits = group == "spark" and "conformance" in item.nodeid
        places[item] = (-seconds[group or item.nodeid], group or "", waits)
    items.sort(key=places.__getitem__)


def pytest_collection_finish(session):
    """Fail if groups are torn apart: each of them would be made in every process."""
    if session.config.getoption("loadgroup", False):
        torn = [
            item.nodeid
            for item in session.items
            if item.get_closest_marker("xdist_group") and "@" not in item.nodeid
        ]
        if torn:
            raise pytest.UsageError(f"this pytest-xdist keeps no groups together: {torn[0]}")


def made_once(config, tmp_path_factory, name, make):
    """Return what a function makes, in one process of the run; the others wait and read it."""
    if not hasattr(config, "workerinput"):
        return make()
    place = tmp_path_factory.getbasetemp().parent / name
    with place.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            place.write_bytes(pickle.dumps(make()))
    return pickle.loads(place.read_bytes())
