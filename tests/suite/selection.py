"""Which tests a run takes: ``make quick``, ``make test`` or ``make test-all``."""

from __future__ import annotations

import sys

import pytest

#: Who takes one of them starts Spark, TensorFlow, a training process or Maven.
STARTERS = frozenset(
    {"cluster", "distribute", "hdfs", "jar", "launcher", "s3", "spark", "stored", "tf", "yarn"}
)
#: What must not be started under --quick, as it stands in command lines.
_STARTED = ("gridflow._agent", "gridflow._training", "spark-class", "spark-submit")


def pytest_addoption(parser):
    group = parser.getgroup("gridflow")
    group.addoption(
        "--quick",
        action="store_true",
        help="only tests that start neither Spark nor TensorFlow, nor Maven",
    )
    group.addoption(
        "--all",
        action="store_true",
        dest="whole",
        help="the products in full, too: tests marked 'full', which one runs for a release",
    )


def pytest_configure(config):
    config.addinivalue_line(
        "markers",
        "slow: starts Spark, TensorFlow or Maven, beyond what its fixtures tell, or computes or "
        "waits for seconds; not in make quick",
    )
    config.addinivalue_line(
        "markers",
        "full(**parameters): where its parameters have these values (each may be a tuple of "
        "several; none given: always), in make test-all only",
    )
    if config.getoption("quick"):
        sys.addaudithook(_refuse_to_start)


def is_slow(item):
    """Return whether a test starts Spark, a store, TensorFlow or Maven, or takes long."""
    starts = bool(STARTERS.intersection(item.fixturenames))
    return starts or item.get_closest_marker("slow") is not None


def is_full(item):
    """Return whether a test is a cell of a product that only ``make test-all`` runs in full."""
    return any(_covers(mark, item) for mark in item.iter_markers("full"))


def _covers(mark, item):
    values = item.callspec.params if hasattr(item, "callspec") else {}

    def fits(name, wanted):
        if name not in values:
            raise pytest.UsageError(f"{item.nodeid}: full({name}=…) names no parameter of it")
        return values[name] in (wanted if isinstance(wanted, tuple) else (wanted,))

    return all(fits(name, wanted) for name, wanted in mark.kwargs.items())


def pytest_collection_modifyitems(config, items):
    quick, whole = config.getoption("quick"), config.getoption("whole")
    out = [item for item in items if (quick and is_slow(item)) or (not whole and is_full(item))]
    if out:
        config.hook.pytest_deselected(items=out)
        left = set(map(id, out))
        items[:] = [item for item in items if id(item) not in left]


def _refuse_to_start(event, arguments):
    if event != "subprocess.Popen":
        return
    words = arguments[1] if isinstance(arguments[1], str) else " ".join(map(str, arguments[1]))
    if any(name in words for name in _STARTED):
        raise AssertionError(
            "under --quick neither Spark nor a training process is started; this is: "
            f"{words[:200]}. Mark the test with @pytest.mark.slow."
        )
