"""Which tests a run takes: ``make quick``, ``make test`` or ``make test-all``, whole or a part.

``make test`` runs what is quick, and of the slow tests those that ``tests/features.toml`` names.
"""

from __future__ import annotations

import collections
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from suite import reach, times

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "tests" / "features.toml"
#: Who takes one of them starts Spark, TensorFlow, a training process or Maven.
STARTERS = frozenset(
    {"cluster", "distribute", "hdfs", "jar", "launcher", "s3", "spark", "stored", "tf", "yarn"}
)
#: What must not be started under --quick, as it stands in command lines.
_STARTED = ("gridflow._agent", "gridflow._training", "spark-class", "spark-submit")
#: --changed leaves out tests beyond so many seconds, at three at a time some four minutes.
_CHANGED_SECONDS = 700
#: What a quick test takes.
_QUICK_SECONDS = 0.1
_left_out = pytest.StashKey[collections.Counter]()


def pytest_addoption(parser):
    group = parser.getgroup("gridflow")
    group.addoption(
        "--quick",
        action="store_true",
        help="only tests that start neither Spark nor TensorFlow, nor Maven",
    )
    group.addoption("--all", action="store_true", dest="whole", help="every test")
    group.addoption("--part", metavar="I/N", help="the I-th of N parts that take equally long")
    group.addoption(
        "--changed",
        metavar="REVISION",
        help="only tests that what has changed since a revision concerns; 1: since the last commit",
    )


def pytest_configure(config):
    config.addinivalue_line(
        "markers",
        "slow: starts Spark, TensorFlow or Maven, beyond what its fixtures tell, or computes or "
        "waits for seconds; not in make quick",
    )
    config.stash[_left_out] = collections.Counter()
    if config.getoption("quick"):
        sys.addaudithook(_refuse_to_start)


def is_slow(item):
    """Return whether a test starts Spark, a store, TensorFlow or Maven, or takes long."""
    starts = bool(STARTERS.intersection(item.fixturenames))
    return starts or item.get_closest_marker("slow") is not None


def features():
    """Return the table of features: kind, feature, and its row."""
    return tomllib.loads(TABLE.read_text(encoding="utf-8"))


def proofs():
    """Return the tests that the table names, each with its features."""
    found = collections.defaultdict(list)
    for kind, rows in features().items():
        for feature, row in rows.items():
            for test in row["tests"]:
                found[test].append(f"{kind}: {feature}")
    return found


def names_of(nodeid):
    """Return a test's name with its parameters, without, and its file; the table takes each."""
    name = nodeid.partition("@")[0].removeprefix("tests/")
    return (name, name.partition("[")[0], name.partition("::")[0])


def matcher(named):
    """Return a function that gives the names of the table that stand for a test."""
    patterns = {
        name: re.compile(".*".join(re.escape(piece) for piece in name.split("*")))
        for name in named
        if "*" in name
    }

    def match(nodeid):
        names = names_of(nodeid)
        by_pattern = [each for each, regex in patterns.items() if regex.fullmatch(names[0])]
        return [name for name in dict.fromkeys(names) if name in named] + by_pattern

    return match


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    for item in items:
        item.user_properties.append(("slow", is_slow(item)))
    if config.getoption("quick"):
        _keep(config, items, {id(item) for item in items if not is_slow(item)}, "slow")
    elif config.getoption("changed"):
        _keep_changed(config, items)
    elif not config.getoption("whole"):
        _keep_features(config, items)
    if config.getoption("part"):
        _keep_part(config, items)


def _keep(config, items, wanted, reason=None):
    out = [item for item in items if id(item) not in wanted]
    if out:
        config.hook.pytest_deselected(items=out)
        if reason:
            config.stash[_left_out][reason] += len(out)
        items[:] = [item for item in items if id(item) in wanted]


def _keep_features(config, items):
    """Leave out slow tests that are no feature's, unless they were asked for by their names."""
    if [Path(config.rootpath, arg) for arg in config.args] != [ROOT / "tests"]:
        return
    named = proofs()
    match = matcher(named)
    taken, wanted = set(), set()
    for item in items:
        found = match(item.nodeid)
        taken.update(found)
        if found or not is_slow(item):
            wanted.add(id(item))
    missing = set(named) - taken
    if missing and not config.getoption("keyword"):
        lines = [f"  {test}  ({', '.join(named[test])})" for test in sorted(missing)]
        raise pytest.UsageError("\n".join([f"{TABLE} names tests that don't exist:", *lines]))
    _keep(config, items, wanted, "slow, and no feature's proof (make test-all)")


def _keep_part(config, items):
    """Divide the tests by what they took, so that each part takes as long as the others."""
    found = re.fullmatch(r"(\d+)/(\d+)", config.getoption("part"))
    if not found or not 1 <= int(found[1]) <= int(found[2]):
        raise pytest.UsageError(f"--part takes I/N, such as 2/10, not {config.getoption('part')!r}")
    mine, number = int(found[1]), int(found[2])
    pieces = collections.defaultdict(list)
    for item in items:
        pieces[names_of(item.nodeid)[1]].append(item)
    record = times.committed()
    seconds = {
        name: sum(_seconds_of(item, record) for item in tests) for name, tests in pieces.items()
    }
    parts = [0.0] * number
    of_part = collections.Counter()
    wanted = set()
    # The longest first, each into the part that has least; a function's cases stay together.
    for name in sorted(pieces, key=lambda name: (-seconds[name], name)):
        part = parts.index(min(parts))
        parts[part] += seconds[name]
        of_part[part + 1] += len(pieces[name])
        if part + 1 == mine:
            wanted.update(map(id, pieces[name]))
    for part, count in of_part.items():
        if part != mine:
            config.stash[_left_out][f"in part {part}/{number}"] += count
    _keep(config, items, wanted)


def _seconds_of(item, record=None):
    return times.seconds_of(item.nodeid, record) if is_slow(item) else _QUICK_SECONDS


def _keep_changed(config, items):
    """Keep the tests that changed files concern, those first that run little else."""
    revision = config.getoption("changed")
    changed = _changed_since("HEAD" if revision == "1" else revision)
    numbers, tests_of = reach.read()
    files = {item: names_of(item.nodeid)[2] for item in items}
    concerned, own = set(), set()
    for path in changed:
        if path.startswith("tests/"):
            own.add(path.removeprefix("tests/"))
        elif path.startswith("src/gridflow/"):
            concerned.update(tests_of.get(path.removeprefix("src/gridflow/"), ()))
            folder = Path(path).parts[2].strip("_")
            concerned.update(file for file in files.values() if file.startswith(f"{folder}/"))
        else:
            # Documents, programs, the jar: what names them.
            concerned.update(_naming(path, set(files.values())))
    match = matcher(proofs())
    ordered = sorted(
        (item for item in items if files[item] in concerned | own),
        key=lambda item: (files[item] not in own, is_slow(item), numbers.get(files[item], 0)),
    )
    wanted, seconds = set(), 0.0
    for item in ordered:
        if is_slow(item) and files[item] not in own and not match(item.nodeid):
            continue
        seconds += _seconds_of(item)
        if seconds <= _CHANGED_SECONDS or not is_slow(item):
            wanted.add(id(item))
    _keep(config, items, wanted, f"not concerned by {len(changed)} changed files, or too slow")


def _changed_since(revision):
    def git(*words):
        ran = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
        if ran.returncode:
            raise pytest.UsageError(f"--changed={revision}: {ran.stderr.strip()}")
        return ran.stdout.splitlines()

    new = git("ls-files", "--others", "--exclude-standard")
    return {*git("diff", "--name-only", revision), *new} or {
        *git("diff", "--name-only", f"{revision}~1", revision)
    }


def _naming(path, files):
    words = {Path(path).name, Path(path).stem}
    return {
        file
        for file in files
        if any(word in (ROOT / "tests" / file).read_text(encoding="utf-8") for word in words)
    }


def pytest_sessionfinish(session):
    """Tell the process that reports what this one has left out."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = dict(session.config.stash[_left_out])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    left = getattr(node, "workeroutput", {}).get("left_out")
    if left is not None:
        node.config.stash[_left_out] = collections.Counter(left)


def pytest_terminal_summary(terminalreporter, config):
    """Say which tests didn't run, and why."""
    skipped = len(terminalreporter.stats.get("skipped", ()))
    left = config.stash[_left_out]
    if (left or skipped) and config.getoption("whole"):
        terminalreporter.section("not run")
        for reason, number in sorted(left.items()):
            terminalreporter.write_line(f"{number:6} {reason}")
        if skipped:
            terminalreporter.write_line(f"{skipped:6} skipped, for the reasons above")


def _refuse_to_start(event, arguments):
    if event != "subprocess.Popen":
        return
    words = arguments[1] if isinstance(arguments[1], str) else " ".join(map(str, arguments[1]))
    if any(name in words for name in _STARTED):
        raise AssertionError(
            "under --quick neither Spark nor a training process is started; this is: "
            f"{words[:200]}. Mark the test with @pytest.mark.slow."
        )
